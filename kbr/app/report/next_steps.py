"""What the numbers of a run suggest to try next, each with the command where there is one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kbr.app.models.outcome import Outcome
from kbr.app.report.by_latent import Latent
from kbr.app.runs.notes import told_edge
from kbr.app.text.commands import command

SHORT, WIDE = 0.8, 0.97  # coverage of 90 % regions that is far from it
LOST = 0.05  # share of steps without evidence that is many
LITTLE = 0.5  # share of the variance that is little
OFFSET = 0.5  # share of the error that is bias
WORSE = 2.0  # test error over validation error
TRIALS = 10


@dataclass(frozen=True)
class Step:
    why: str
    how: str = ""  # a command


def next_steps(
    outcome: Outcome,
    metrics: dict[str, Any],
    latents: Sequence[Latent],
    typed: Sequence[str],
    *,
    recorded: bool,
) -> Iterator[Step]:
    """In the order of what may help most; `typed` are the words of the run's own command.

    Of recorded data all seeds have the same rows.
    """
    for note in outcome.notes:
        if told_edge(note) is not None:
            yield Step(f"A better value may lie beyond what was allowed: {note}.")
    poor = [one.name for one in latents if one.explained < LITTLE]
    if poor:
        yield Step(
            f"Less than {100 * LITTLE:.0f} % of the variance of {', '.join(poor)} is explained: "
            "x may tell little of it at one step. With model=iw, see several rows at once.",
            _again(typed, "model.history=auto", "model.velocity=auto") if _is_kernel(typed) else "",
        )
    offset = [one.name for one in latents if abs(one.bias) > OFFSET * one.rmse]
    if offset:
        yield Step(
            f"Answers for {', '.join(offset)} are off to one side: the test rows differ from the "
            "training rows there. Train on rows like these."
        )
    val, test = metrics.get("val/mse"), metrics["test/mse"]
    if val and test > WORSE * val:
        yield Step(
            f"The test error is {test / val:.1f} times the validation error: the end of the "
            "training rows is easier than the test rows, or unlike them. Train on more of them."
        )
    if outcome.evidence is not None:
        lost = metrics["test/steps_without_evidence"] / outcome.evidence.numel()
        if lost > LOST:
            yield Step(
                f"{100 * lost:.0f} % of the test steps had no usable observation: missing, "
                "or unlike any of training. Train on rows like these, or name sensors "
                "that drop out by themselves (data.sensors)."
            )
    share = metrics.get("test/coverage_90")
    if share is not None and share < SHORT:
        yield Step(
            f"90 % regions hold {100 * share:.0f} % of the truths: errors on the test rows "
            "are larger than on held-out training rows. Where truths arrive later, "
            "filter(x, truth=z, adapt=True) follows them."
        )
    if share is not None and share > WIDE:
        yield Step(
            f"90 % regions hold {100 * share:.0f} % of the truths: they are wider than the "
            "test rows need."
        )
    if outcome.alternative is not None and outcome.alternative.is_worth_a_try:
        model = outcome.alternative.model
        yield Step(f"Another model: {outcome.alternative}.", _again(typed, f"model={model}"))
    if metrics["test/trials"] == 1 and not recorded:
        yield Step(
            "One trial says little about the next: repeat it over seeds.",
            _again(typed, f"trials={TRIALS}"),
        )
    rival = "original" if outcome.evidence is None else "moving" if recorded else "lstm"
    same = "rows" if recorded else "data, seed by seed"
    yield Step(
        f"Is it good? Compare with another model on the same {same}.",
        command("train", "-m", *without(typed, "model"), _beside(typed, rival)),
    )


def _beside(typed: Sequence[str], rival: str) -> str:
    """The run's own model and `iw`, or `iw` and its rival."""
    own = next((word.partition("=")[2] for word in typed if word.startswith("model=")), "iw_nn")
    return f"model=iw,{own if own.isidentifier() and own != 'iw' else rival}"


def _again(typed: Sequence[str], *words: str) -> str:
    """The run's own command with other words."""
    kept = without(typed, *(word.partition("=")[0] for word in words))
    return command("train", *kept, *words)


def without(typed: Sequence[str], *keys: str) -> list[str]:
    """The words of other keys; a model's own keys go with it, and so do its tuned settings."""
    keys = (*keys, "hparams") if "model" in keys else keys
    own = tuple(f"{key}." for key in keys)
    parts = [(word, word.partition("=")[0].lstrip("+~")) for word in typed]
    return [word for word, key in parts if key not in keys and not key.startswith(own)]


def _is_kernel(typed: Sequence[str]) -> bool:
    return any(word in ("model=iw", "model=iw_refined", "model=iw_paper") for word in typed)
