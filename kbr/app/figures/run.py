"""Pictures of one run: its first trial."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from kbr.app.figures.beliefs import AGAINST, ESTIMATE, TRUTH, ellipses, weights_figure
from kbr.app.figures.frames import contact_sheet, encoder_figure, observations
from kbr.app.figures.style import STYLE, save
from kbr.app.figures.uncertainty import uncertainty_figures
from kbr.app.figures.view import View, coordinate_names, spread_out
from kbr.app.models.kernel import Outcome
from kbr.app.tasks.heading import in_words

SHOWN_STEPS = 100
RUNNING = 20  # steps of the running mean
SHEET = 32  # training frames of the contact sheet
GAZES = 5


def run_figures(folder: Path, outcome: Outcome, *, quick: bool = False) -> list[Path]:
    """Answers against the truth; unless `quick`, all else that the run has to show."""
    folder.mkdir(parents=True, exist_ok=True)
    mean, truth = outcome.mean[0].double().numpy(), outcome.truth[0].double().numpy()
    if outcome.evidence is None or outcome.cov is None:
        return [_scatter(folder / "posterior_mean", mean, truth)]
    evidence, spread = outcome.evidence[0].numpy(), outcome.shown_spread
    cov = outcome.cov[0].double().numpy()
    view = None if quick or outcome.view is None else outcome.view()
    names = view.names if view else coordinate_names(outcome.labels, mean.shape[-1])
    turns = (view.turns if view else None) or (None,) * mean.shape[-1]
    written = [_track(folder / "trajectory", mean, truth, cov, evidence, names, turns, spread)]
    if quick:
        return written
    written.append(_errors(folder / "error", mean, truth, evidence, outcome.labels))
    written += uncertainty_figures(folder, outcome)
    if mean.shape[-1] == 2:
        path = folder / "ellipses"
        written.append(ellipses(path, mean, truth, cov, evidence, names, view, spread))
    if view is not None:
        written += _views(folder, outcome, view)
    return written


def _views(folder: Path, outcome: Outcome, view: View) -> list[Path]:
    written = []
    if view.weights is not None:
        written.append(weights_figure(folder / "weights", outcome.mean[0], outcome.truth[0], view))
    if not view.has_images:
        return written
    written.append(observations(folder / "observations", outcome.mean[0], outcome.truth[0], view))
    steps = spread_out(SHEET, len(view.x_train))
    titles = [in_words(view.z_train[t]) if view.circular else f"step {t + 1}" for t in steps]
    sheet = contact_sheet(view.x_train[steps], titles)
    written += save(sheet, folder / "contact_sheet", ("png",))
    if view.gaze is not None:
        frames = view.x_test[view.x_test.flatten(1).isfinite().all(1)]
        frames = frames[spread_out(GAZES, len(frames))]
        found = view.gaze(frames) if len(frames) else None
        if found is not None:
            written += save(encoder_figure(frames, *found), folder / "encoder", ("png",))
    return written


def _track(
    path: Path,
    mean: np.ndarray,
    truth: np.ndarray,
    cov: np.ndarray,
    evidence: np.ndarray,
    names: list[str],
    turns: tuple[float | None, ...],
    spread: str,
) -> Path:
    """The first steps with a band of two standard deviations; steps without evidence are shaded."""
    with plt.style.context(STYLE):
        steps = min(SHOWN_STEPS, len(mean))
        coordinates = mean.shape[-1]
        figure, axes = plt.subplots(
            coordinates, 1, figsize=(7, 1.7 * coordinates + 0.6), sharex=True, squeeze=False
        )
        time = np.arange(1, steps + 1)
        sd = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1).clip(0))
        for k, axis in enumerate(axes[:, 0]):
            drawn = np.stack([time, mean[:steps, k], 2 * sd[:steps, k], truth[:steps, k]])
            t, centre, half, true = broken(drawn, turns[k])
            band = {"color": ESTIMATE, "alpha": 0.2, "lw": 0, "label": f"± {spread}"}
            axis.fill_between(t, centre - half, centre + half, **band)
            axis.plot(t, true, color=TRUTH, lw=1, ls="--", label="truth")
            axis.plot(t, centre, color=ESTIMATE, lw=1.3, label="filter mean")
            axis.set_ylabel(names[k])
            for i, (start, end) in enumerate(gaps(~evidence[:steps])):
                name = None if i else "no evidence"
                axis.axvspan(start + 0.5, end + 0.5, color=AGAINST, alpha=0.12, lw=0, label=name)
        axes[-1, 0].set_xlabel("step of the test sequence")
        axes[0, 0].legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
        figure.align_ylabels()
        figure.tight_layout()
        return save(figure, path, ("png",))[0]


def broken(series: np.ndarray, turn: float | None) -> np.ndarray:
    """Rows [time, mean, spread, truth] with a gap where an angle passes a full turn."""
    if turn is None:
        return series
    jumps = (np.abs(np.diff(series[[1, 3]])) > turn / 2).any(0)
    parted: np.ndarray = np.insert(series, np.flatnonzero(jumps) + 1, np.nan, axis=1)
    return parted


def gaps(missing: np.ndarray) -> list[tuple[int, int]]:
    """First and behind the last place of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(int)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _errors(
    path: Path,
    mean: np.ndarray,
    truth: np.ndarray,
    evidence: np.ndarray,
    labels: tuple[str, ...] | None,
) -> Path:
    """Squared error at every step with its running mean; steps without evidence are marked."""
    error = np.square(mean - truth).sum(-1)
    time = np.arange(1, len(error) + 1)
    with plt.style.context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 2.6))
        axis.plot(time, error, ".", color="#999999", ms=3, label="each step")
        axis.plot(
            time, _running_mean(error), color=ESTIMATE, lw=1.5, label=f"mean of {RUNNING} steps"
        )
        axis.axhline(error.mean(), color=TRUTH, lw=1, ls="--", label=f"mean {error.mean():.3g}")
        if not evidence.all():
            axis.plot(
                time[~evidence], error[~evidence], "x", color=AGAINST, ms=5, label="no evidence"
            )
        if error.min() > 0:
            axis.set_yscale("log")
        axis.set_xlabel("step of the test sequence")
        names = coordinate_names(labels, 0) if labels and len(labels) <= 2 else []
        summed = " + ".join(f"({name})²" for name in names) or "(units of $z^2$)"
        axis.set_ylabel(f"squared error\n{summed}")
        axis.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1.2)
        figure.tight_layout()
        return save(figure, path, ("png",))[0]


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the last RUNNING values, of fewer at the start."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - RUNNING, 0)
    mean: np.ndarray = (total[end] - total[start]) / (end - start)
    return mean


def _scatter(path: Path, mean: np.ndarray, truth: np.ndarray) -> Path:
    with plt.style.context(STYLE):
        figure, axis = plt.subplots(figsize=(3.8, 3.6))
        axis.scatter(
            truth.ravel(), mean.ravel(), s=6, color=ESTIMATE, alpha=0.4, lw=0, label="estimates"
        )
        ends = [truth.min(), truth.max()]
        axis.plot(ends, ends, color=TRUTH, lw=1, ls="--", label="exact")
        axis.set_aspect("equal", adjustable="datalim")
        axis.set_xlabel("exact posterior mean (units of $z$)")
        axis.set_ylabel("estimate (units of $z$)")
        axis.legend(loc="upper left")
        figure.tight_layout()
        return save(figure, path, ("png",))[0]
