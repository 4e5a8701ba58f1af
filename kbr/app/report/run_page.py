"""report.html of a single run: what came out, how sure it is, what was chosen, what to try next."""

import base64
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from kbr.app.models.outcome import Outcome
from kbr.app.report.by_latent import Latent, latents_of
from kbr.app.report.next_steps import next_steps
from kbr.app.report.page import render
from kbr.app.report.svg import inline_svg
from kbr.app.run.folder import write_bytes
from kbr.app.runs.notes import told_edge
from kbr.app.text.commands import command
from kbr.app.text.numbers import in_digits, with_error
from kbr.app.text.plain import one_line
from kbr.core.showing.plotting import AGAINST, ESTIMATE
from kbr.core.showing.summary import Setting, Summary, numbers
from kbr.core.uncertainty.regions import coverage
from kbr.core.units.units import Units

PAGE = "report.html"
STEPS = 300  # of the first trial's residuals that are drawn
LATENTS = 12  # whose residuals are drawn
COUNTED = 20  # steps without evidence from which on their coverage is told
PICTURES = {  # of the run that the page shows, in this order
    "posterior_mean": "Posterior means against the exact ones",
    "trajectory": "The first steps of the first trial; band: two standard deviations",
    "ellipses": "The last steps in the plane of the latents",
    "coverage": "Share of truths in regions of each level; on the line, regions hold what they say",
    "pit": "Where truths lie in their marginals: flat if calibrated",
}


def write_run_page(
    folder: Path,
    *,
    model: str,
    data: str,
    outcome: Outcome,
    metrics: dict[str, Any],
    seconds: float,
    typed: Sequence[str],
    recorded: bool,
    units: Units | None,
) -> Path:
    """The page in the run's folder, of all that the run has measured and drawn."""
    latents = latents_of(outcome, None if units is None else units.z)
    summary = None if outcome.summary is None else outcome.summary()
    text = render(
        "run.html",
        title=one_line(f"{model} on {data}"),
        facts=_facts(outcome, metrics, seconds),
        command=command("train", *typed),
        latents=latents,
        pictures=_pictures(folder / "figures"),
        residuals=[] if outcome.evidence is None else _residuals(outcome, latents),
        summary="" if summary is None else repr(summary),
        settings=_settings(outcome, summary),
        checks=[note for note in outcome.notes if told_edge(note) is None],
        steps=list(next_steps(outcome, metrics, latents, typed, recorded=recorded)),
        metrics={name: value for name, value in metrics.items() if name != "test/measure"},
    )
    write_bytes(folder / PAGE, text.encode(errors="backslashreplace"))
    return folder / PAGE


def _facts(outcome: Outcome, metrics: dict[str, Any], seconds: float) -> dict[str, str]:
    mse = in_digits(metrics["test/mse"])
    if metrics["test/trials"] > 1:
        mse = with_error(metrics["test/mse"], metrics["test/mse_stderr"])
    summed = ", summed over latents" if outcome.mean.shape[-1] > 1 else ""
    facts = {"test error": f"{mse} (squared{summed})"}
    if "test/mse_of_mean" in metrics:
        facts["test error"] += (
            f"; {in_digits(metrics['test/mse_of_mean'])} by always answering the training mean"
        )
    if "test/mse_standardised" in metrics:
        facts["standardised"] = (
            f"{in_digits(metrics['test/mse_standardised'])} (the same with each latent in standard "
            "deviations of its training values: units do not matter)"
        )
    if "test/measure" in metrics:
        facts["in units"] = f"{in_digits(metrics['test/error'])} {metrics['test/measure']}"
    if "test/coverage_90" in metrics:
        facts["coverage"] = (
            f"90 % regions hold {100 * metrics['test/coverage_90']:.1f} % of the truths"
            f"{_without_evidence(outcome)}"
        )
    steps = f"{outcome.mean.shape[-2]}"
    if "test/steps_without_evidence" in metrics:
        steps += f"; {metrics['test/steps_without_evidence']} without evidence"
    facts["test steps"] = steps + (" in all trials" if metrics["test/trials"] > 1 else "")
    facts["trials"] = str(metrics["test/trials"])
    if metrics["test/trials"] > 1:
        low, high = (in_digits(float(end)) for end in outcome.mse.aminmax())
        facts["trials"] += f", with errors from {low} to {high}"
    facts["time"] = (
        f"{seconds:.1f} s in all; fit {metrics['fit/seconds']:.3g} s, a step "
        f"{1e3 * metrics['filter/seconds_per_step']:.3g} ms"
    )
    return facts


def _without_evidence(outcome: Outcome) -> str:
    """The share at steps that were predicted, where there are enough to count."""
    if outcome.evidence is None or outcome.cov is None:
        return ""
    lost = ~outcome.evidence
    if int(lost.sum()) < COUNTED:
        return ""
    mean, cov, truth = (t[lost].double() for t in (outcome.mean, outcome.cov, outcome.truth))
    share = float(coverage(mean, cov, truth, level=0.9))
    return f", and {100 * share:.1f} % at the {int(lost.sum())} steps without evidence"


def _settings(outcome: Outcome, summary: Summary | None) -> list[Setting]:
    """What was chosen: with its grid where the model says so, else the values alone."""
    if summary is not None and summary.settings:
        return list(summary.settings)
    return [
        Setting(name=name, values=numbers(values), source="")
        for name, values in outcome.chosen.items()
        if not (name.startswith("val_") or bool(values.isnan().any()))
    ]


def _pictures(folder: Path) -> list[tuple[str, str, str]]:
    """Names, captions and addresses of the pictures that are there."""
    found = []
    for name, caption in PICTURES.items():
        path = folder / f"{name}.png"
        if path.is_file():
            inside = base64.b64encode(path.read_bytes()).decode()
            found.append((name, caption, f"data:image/png;base64,{inside}"))
    return found


def _residuals(outcome: Outcome, latents: Sequence[Latent]) -> list[Markup]:
    """A picture for each latent: answer minus truth at every step of the first trial."""
    return [
        Markup(
            inline_svg(
                partial(_residual, outcome=outcome, k=k),
                size=(6.4, 1.7),
                label=f"Residuals of {one.name} over time",
            )
        )
        for k, one in enumerate(latents[:LATENTS])
    ]


def _residual(axis: Any, *, outcome: Outcome, k: int) -> None:
    assert outcome.cov is not None
    assert outcome.evidence is not None
    error = (outcome.mean - outcome.truth)[0, :STEPS, k].double().numpy()
    sd = np.sqrt(outcome.cov[0, :STEPS, k, k].double().numpy().clip(0))
    lost, time = ~outcome.evidence[0, :STEPS].numpy(), np.arange(1, len(error) + 1)
    axis.fill_between(time, -2 * sd, 2 * sd, color=ESTIMATE, alpha=0.2, lw=0, label="± 2 sd")
    axis.axhline(0, color="#000000", lw=0.8)
    axis.plot(time, error, ".", color=ESTIMATE, ms=3, label="answer minus truth")
    if lost.any():
        axis.plot(time[lost], error[lost], "x", color=AGAINST, ms=5, label="no evidence")
    axis.set_xlabel("step of the test sequence")
    axis.margins(x=0.01)
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
