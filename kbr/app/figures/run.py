"""Pictures of one run: its first trial."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbr.app.figures.beliefs import AGAINST, ESTIMATE, TRUTH, ellipses, weights_figure
from kbr.app.figures.frames import contact_sheet, encoder_figure, observations
from kbr.app.figures.style import picture, save
from kbr.app.figures.uncertainty import uncertainty_figures
from kbr.app.figures.view import View, coordinate_names, spread_out
from kbr.app.models.kernel import Outcome
from kbr.app.tasks.heading import degrees_text

STEPS = 100  # of a test sequence that are drawn
ROWS = 300  # of a recording whose truth nobody knows
RUNNING = 20  # steps of the running mean
SHEET = 32  # training frames of the contact sheet
GAZES = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Track:
    """Answers of the first trial at every step; the truth, where it is known."""

    mean: np.ndarray
    cov: np.ndarray
    evidence: np.ndarray
    truth: np.ndarray
    names: list[str]
    turns: tuple[float | None, ...]
    spread: str

    @classmethod
    def of(cls, outcome: Outcome, view: View | None) -> "Track":
        assert outcome.cov is not None
        assert outcome.evidence is not None
        count = outcome.mean.shape[-1]
        return cls(
            mean=outcome.mean[0].double().numpy(),
            cov=outcome.cov[0].double().numpy(),
            evidence=outcome.evidence[0].numpy(),
            truth=outcome.truth[0].double().numpy(),
            names=view.names if view else coordinate_names(outcome.labels, count),
            turns=(view.turns if view else None) or (None,) * count,
            spread=outcome.shown_spread,
        )


def run_figures(folder: Path, outcome: Outcome, *, quick: bool = False) -> list[Path]:
    """Answers against the truth; unless `quick`, all else that the run has to show."""
    folder.mkdir(parents=True, exist_ok=True)
    if outcome.evidence is None or outcome.cov is None:
        return [_scatter(folder / "posterior_mean.png", outcome)]
    view = None if quick or outcome.view is None else outcome.view()
    track = Track.of(outcome, view)
    written = [_trajectory(folder / "trajectory.png", track, STEPS, "step of the test sequence")]
    if quick:
        return written
    written.append(_errors(folder / "error.png", track, outcome.labels))
    written += uncertainty_figures(folder, outcome)
    if len(track.names) == 2:
        window = None if view is None else view.window
        written.append(ellipses(folder / "ellipses.png", track, window))
    if view is not None:
        written += _observed(folder, outcome, view)
    return written


def recording_figures(folder: Path, outcome: Outcome) -> list[Path]:
    """Of a recording whose truth nobody knows: what the filter believes at every row."""
    folder.mkdir(parents=True, exist_ok=True)
    track = Track.of(outcome, None)
    return [_trajectory(folder / "trajectory.png", track, ROWS, "row of the recording")]


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


def _trajectory(path: Path, track: Track, steps: int, axis_name: str) -> Path:
    """The first steps with a band of two standard deviations; steps without evidence are shaded."""
    mean, truth = track.mean[:steps], track.truth[:steps]
    sd = np.sqrt(np.diagonal(track.cov[:steps], axis1=-2, axis2=-1).clip(0))
    time = np.arange(1, len(mean) + 1)
    count = len(track.names)
    size = (7, 1.7 * count + 0.6)
    with picture(path, count, figsize=size, sharex=True) as (_, axes):
        for k, axis in enumerate(axes[:, 0]):
            drawn = np.stack([time, mean[:, k], 2 * sd[:, k], truth[:, k]])
            t, centre, half, true = broken(drawn, track.turns[k])
            band = {"color": ESTIMATE, "alpha": 0.2, "lw": 0, "label": f"± {track.spread}"}
            axis.fill_between(t, centre - half, centre + half, **band)
            if np.isfinite(true).any():
                axis.plot(t, true, color=TRUTH, lw=1, ls="--", label="truth")
            axis.plot(t, centre, color=ESTIMATE, lw=1.3, label="filter mean")
            axis.set_ylabel(track.names[k])
            for i, (start, end) in enumerate(gaps(~track.evidence[:steps])):
                name = None if i else "no evidence"
                axis.axvspan(start + 0.5, end + 0.5, color=AGAINST, alpha=0.12, lw=0, label=name)
        axes[-1, 0].set_xlabel(axis_name)
        axes[0, 0].legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
    return path


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


def _errors(path: Path, track: Track, labels: tuple[str, ...] | None) -> Path:
    """Squared error at every step with its running mean; steps without evidence are marked."""
    error, lost = np.square(track.mean - track.truth).sum(-1), ~track.evidence
    time = np.arange(1, len(error) + 1)
    running = _running_mean(error)
    with picture(path, figsize=(7, 2.6)) as (_, axes):
        axis = axes[0, 0]
        axis.plot(time, error, ".", color="#999999", ms=3, label="each step")
        axis.plot(time, running, color=ESTIMATE, lw=1.5, label=f"mean of {RUNNING} steps")
        axis.axhline(error.mean(), color=TRUTH, lw=1, ls="--", label=f"mean {error.mean():.3g}")
        if lost.any():
            axis.plot(time[lost], error[lost], "x", color=AGAINST, ms=5, label="no evidence")
        if error.min() > 0:
            axis.set_yscale("log")
        axis.set_xlabel("step of the test sequence")
        names = coordinate_names(labels, 0) if labels and len(labels) <= 2 else []
        summed = " + ".join(f"({name})²" for name in names) or "(units of $z^2$)"
        axis.set_ylabel(f"squared error\n{summed}")
        axis.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1.2)
    return path


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the last RUNNING values, of fewer at the start."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - RUNNING, 0)
    mean: np.ndarray = (total[end] - total[start]) / (end - start)
    return mean


def _scatter(path: Path, outcome: Outcome) -> Path:
    mean, truth = (z[0].double().numpy().ravel() for z in (outcome.mean, outcome.truth))
    with picture(path, figsize=(3.8, 3.6)) as (_, axes):
        axis, ends = axes[0, 0], [truth.min(), truth.max()]
        axis.scatter(truth, mean, s=6, color=ESTIMATE, alpha=0.4, lw=0, label="estimates")
        axis.plot(ends, ends, color=TRUTH, lw=1, ls="--", label="exact")
        axis.set_aspect("equal", adjustable="datalim")
        axis.set_xlabel("exact posterior mean (units of $z$)")
        axis.set_ylabel("estimate (units of $z$)")
        axis.legend(loc="upper left")
    return path
