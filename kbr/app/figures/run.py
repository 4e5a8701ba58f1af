"""Pictures of one run, drawn from its first trial."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kbr.app.figures.beliefs import ellipses, weights_figure
from kbr.app.figures.frames import contact_sheet, encoder_figure, observations
from kbr.app.figures.style import picture, save
from kbr.app.figures.uncertainty import uncertainty_figures
from kbr.app.figures.view import View, coordinate_names, first_trial, spread_out
from kbr.app.models.kernel import Outcome
from kbr.app.tasks.heading import degrees_text
from kbr.core.showing.plotting import AGAINST, ESTIMATE, TRUTH

STEPS = 100  # of a test sequence that are drawn
ROWS = 300  # of a recording whose truth nobody knows
RUNNING = 20  # steps of the running mean
SHEET = 32  # training frames of the contact sheet
GAZES = 5  # test frames on which the encoder's places are shown


def run_figures(folder: Path, outcome: Outcome, *, quick: bool = False) -> list[Path]:
    """Answers against the truth; unless `quick`, all else that the run has to show."""
    folder.mkdir(parents=True, exist_ok=True)
    if outcome.evidence is None or outcome.cov is None:
        return [_scatter(folder / "posterior_mean.png", outcome)]
    view = None if quick or outcome.view is None else outcome.view()
    names = view.names if view else coordinate_names(outcome.labels, outcome.mean.shape[-1])
    turns = view.turns if view else None
    written = [_trajectory(folder / "trajectory.png", outcome, names, turns=turns)]
    if quick:
        return written
    written.append(_errors(folder / "error.png", outcome))
    written += uncertainty_figures(folder, outcome)
    if len(names) == 2:
        window = view.window if view else None
        written.append(ellipses(folder / "ellipses.png", outcome, names, window))
    if view is not None:
        written += _observed(folder, outcome, view)
    return written


def recording_figures(folder: Path, outcome: Outcome) -> list[Path]:
    """Of a recording whose truth nobody knows: what the filter believes at every row."""
    folder.mkdir(parents=True, exist_ok=True)
    names = coordinate_names(outcome.labels, outcome.mean.shape[-1])
    path, axis_name = folder / "trajectory.png", "row of the recording"
    return [_trajectory(path, outcome, names, steps=ROWS, axis_name=axis_name)]


def _observed(folder: Path, outcome: Outcome, view: View) -> list[Path]:
    """Weights, frames, and what the encoder looks at, where the run has them."""
    mean, truth = outcome.mean[0], outcome.truth[0]
    written = []
    if view.weights is not None:
        written.append(weights_figure(folder / "weights.png", mean, truth, view))
    if not view.has_images:
        return written
    written.append(observations(folder / "observations.png", mean, truth, view))
    steps = spread_out(SHEET, len(view.x_train))
    titles = [degrees_text(view.z_train[t]) if view.circular else f"step {t + 1}" for t in steps]
    sheet = contact_sheet(view.x_train[steps], titles)
    written += save(sheet, folder / "contact_sheet", ("png",))
    if view.gaze is not None:
        frames = view.x_test[view.x_test.flatten(1).isfinite().all(1)]
        frames = frames[spread_out(GAZES, len(frames))]
        gaze = view.gaze(frames) if len(frames) else None
        if gaze is not None:
            written += save(encoder_figure(frames, *gaze), folder / "encoder", ("png",))
    return written


def _trajectory(
    path: Path,
    outcome: Outcome,
    names: list[str],
    *,
    turns: Sequence[float | None] | None = None,
    steps: int = STEPS,
    axis_name: str = "step of the test sequence",
) -> Path:
    """The first steps with a band of two standard deviations; steps without evidence are shaded."""
    mean, truth, cov = (first_trial(z)[:steps] for z in (outcome.mean, outcome.truth, outcome.cov))
    lost = first_trial(outcome.evidence)[:steps] == 0
    gaps = np.flatnonzero(np.diff(lost, prepend=False, append=False)).reshape(-1, 2)
    band = 2 * np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1).clip(0))
    time = np.arange(1, len(mean) + 1)
    style = {"color": ESTIMATE, "alpha": 0.2, "lw": 0, "label": f"± {outcome.shown_spread}"}
    with picture(path, len(names), figsize=(7, 1.7 * len(names) + 0.6), sharex=True) as (_, axes):
        for k, axis in enumerate(axes[:, 0]):
            series = np.stack([time, mean[:, k], band[:, k], truth[:, k]])
            t, centre, half, true = _broken(series, turns[k] if turns else None)
            axis.fill_between(t, centre - half, centre + half, **style)
            if np.isfinite(true).any():
                axis.plot(t, true, color=TRUTH, lw=1, ls="--", label="truth")
            axis.plot(t, centre, color=ESTIMATE, lw=1.3, label="filter mean")
            axis.set_ylabel(names[k])
            for i, (start, end) in enumerate(gaps + 0.5):
                name = None if i else "no evidence"
                axis.axvspan(start, end, color=AGAINST, alpha=0.12, lw=0, label=name)
        axes[-1, 0].set_xlabel(axis_name)
        axes[0, 0].legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
    return path


def _broken(series: np.ndarray, turn: float | None) -> np.ndarray:
    """Rows [time, mean, spread, truth] with a gap where an angle passes a full turn."""
    if turn is not None:
        jumps = (np.abs(np.diff(series[[1, 3]])) > turn / 2).any(0)
        series = np.insert(series, np.flatnonzero(jumps) + 1, np.nan, axis=1)
    return series


def _errors(path: Path, outcome: Outcome) -> Path:
    """Squared error at every step with its running mean; steps without evidence are marked."""
    error = np.square(first_trial(outcome.mean) - first_trial(outcome.truth)).sum(-1)
    lost = first_trial(outcome.evidence) == 0
    time = np.arange(1, len(error) + 1)
    running = np.convolve(error, np.ones(RUNNING))[: len(error)] / time.clip(max=RUNNING)
    with picture(path, figsize=(7, 2.6)) as (_, [[axis]]):
        axis.plot(time, error, ".", color="#999999", ms=3, label="each step")
        axis.plot(time, running, color=ESTIMATE, lw=1.5, label=f"mean of {RUNNING} steps")
        axis.axhline(error.mean(), color=TRUTH, lw=1, ls="--", label=f"mean {error.mean():.3g}")
        if lost.any():
            axis.plot(time[lost], error[lost], "x", color=AGAINST, ms=5, label="no evidence")
        if error.min() > 0:
            axis.set_yscale("log")
        axis.set_xlabel("step of the test sequence")
        labels = outcome.labels
        names = coordinate_names(labels, 0) if labels and len(labels) <= 2 else []
        summed = " + ".join(f"({name})²" for name in names) or "(units of $z^2$)"
        axis.set_ylabel(f"squared error\n{summed}")
        axis.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1.2)
    return path


def _scatter(path: Path, outcome: Outcome) -> Path:
    mean, truth = (first_trial(z).ravel() for z in (outcome.mean, outcome.truth))
    ends = [truth.min(), truth.max()]
    with picture(path, figsize=(3.8, 3.6)) as (_, [[axis]]):
        axis.scatter(truth, mean, s=6, color=ESTIMATE, alpha=0.4, lw=0, label="estimates")
        axis.plot(ends, ends, color=TRUTH, lw=1, ls="--", label="exact")
        axis.set_aspect("equal", adjustable="datalim")
        axis.set_xlabel("exact posterior mean (units of $z$)")
        axis.set_ylabel("estimate (units of $z$)")
        axis.legend(loc="upper left")
    return path
