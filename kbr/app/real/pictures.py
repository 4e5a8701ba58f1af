"""A picture of each real recording that tells its story: what was true, and what a filter thought.

Each is of one filter on test sequences, with regions that hold the truth at 90 % of the steps.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.patches import Ellipse

from kbr.app.figures.style import picture
from kbr.app.real import rtt_canteen as walks
from kbr.app.real import uwb_plaza as plaza
from kbr.app.real.turbofan import MOST
from kbr.app.recordings.task import OwnData
from kbr.core.showing.plotting import AGAINST, ESTIMATE, TRUTH, ellipse_axes
from kbr.core.uncertainty.regions import coverage

LEVEL = 0.9
NORMAL_90 = 1.6449  # standard deviations to either side
CIRCLE_90 = 2.1460  # radius that holds 90 % of a Gaussian in the plane
ELLIPSES = 25  # along a path
MOWED = 300  # steps of the robot
PLACE = {"color": AGAINST, "ls": "none", "marker": "^", "ms": 8}


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One test sequence: its rows, and a filter's moments there."""

    name: str
    rows: np.ndarray  # of the recording
    mean: np.ndarray  # [T, dz]
    cov: np.ndarray  # [T, dz, dz]
    truth: np.ndarray  # [T, dz], NaN where it is not known
    time: np.ndarray  # [T]

    @classmethod
    def of(cls, problem: OwnData, filt: Any, piece: int, most: int | None = None) -> "Scene":
        found, rows = problem.recording, problem.parts.test[piece][:most]
        moves = {} if found.u is None else {"u": torch.from_numpy(found.u[rows])}
        result = filt.filter(torch.from_numpy(found.x[rows]), **moves)
        assert found.ids is not None
        assert found.time is not None
        return cls(
            name=str(found.ids[rows[0]]).partition("/")[2].removesuffix(".csv"),
            rows=rows,
            mean=result.mean.double().numpy(),
            cov=result.cov.double().numpy(),
            truth=found.z[rows],
            time=found.time[rows] - found.time[rows[0]],
        )

    @property
    def inside(self) -> float:
        """Share of the steps whose truth is in the 90 % region."""
        known = np.isfinite(self.truth).all(1)
        parts = (torch.from_numpy(part[known]) for part in (self.mean, self.cov, self.truth))
        mean, cov, truth = parts
        return float(coverage(mean, cov, truth, level=LEVEL))


def canteen_walk(path: Path, problem: OwnData, filt: Any) -> None:
    """The first test walk among the access points."""
    places = walks.places(_root(problem))
    _path(path, Scene.of(problem, filt, 0), places, "access points", "a walk")


def robot_path(path: Path, problem: OwnData, filt: Any) -> None:
    """The beginning of the test part among the beacons: all of it would cover the lawn."""
    site = str(problem.recording.ids[-1]).partition("/")[2]  # type: ignore[index]
    scene = Scene.of(problem, filt, 0, most=MOWED)
    _path(path, scene, plaza.places(_root(problem), site=site), "beacons", "mowing")


def discharges(path: Path, problem: OwnData, filt: Any) -> None:
    """The state of charge over the time of every test cycle."""
    scenes = [Scene.of(problem, filt, k) for k in range(len(problem.parts.test))]
    size = (3.1 * len(scenes) + 0.6, 2.9)
    with picture(path, 1, len(scenes), figsize=size, sharey=True) as (figure, axes):
        for axis, scene in zip(axes[0], scenes, strict=True):
            _band(axis, scene.time / 60, 100 * scene.mean[:, 0], 100 * np.sqrt(scene.cov[:, 0, 0]))
            axis.plot(scene.time / 60, 100 * scene.truth[:, 0], color=TRUTH, lw=1, ls="--")
            axis.set_xlabel("time [min]")
            axis.set_title(f"{scene.name}: {scene.inside:.0%} inside", fontsize=9)
        axes[0, 0].set_ylabel("state of charge [%]")
        _legend(figure, axes[0, 0])


def engine_life(path: Path, problem: OwnData, filt: Any) -> None:
    """The test engine that is nearest to its end, and all engines at their last cycle."""
    last = [problem.recording.z[rows[-1], 0] for rows in problem.parts.test]
    scenes = [Scene.of(problem, filt, k) for k in range(len(last))]
    scene = scenes[int(np.nanargmin(last))]
    left = np.minimum(scene.truth[-1, 0] + scene.time[-1] - scene.time, MOST)
    ends = [(one.truth[-1, 0], one.mean[-1, 0], one.cov[-1, 0, 0] ** 0.5) for one in scenes]
    truth, mean, spread = np.array(sorted(ends)).T
    inside = np.mean(np.abs(mean - truth) <= NORMAL_90 * spread)
    with picture(path, 1, 2, figsize=(8.4, 3.1), sharey=True) as (figure, axes):
        one, every = axes[0]
        _band(one, scene.time, scene.mean[:, 0], np.sqrt(scene.cov[:, 0, 0]))
        one.plot(scene.time, left, color=TRUTH, lw=1, ls="--")
        one.set_xlabel("cycles since the first")
        one.set_ylabel("remaining cycles")
        one.set_title(f"test engine {scene.name}", fontsize=9)
        at = np.arange(1, len(truth) + 1)
        every.vlines(
            at, mean - NORMAL_90 * spread, mean + NORMAL_90 * spread, color=ESTIMATE, alpha=0.3
        )
        every.plot(at, mean, ".", color=ESTIMATE, ms=4)
        every.plot(at, truth, color=TRUTH, lw=1, ls="--")
        every.set_xlabel("test engines, in the order of their truth")
        every.set_title(f"at the last cycle: {inside:.0%} inside", fontsize=9)
        _legend(figure, one)


def _path(path: Path, scene: Scene, places: dict[str, np.ndarray], what: str, name: str) -> None:
    some = np.unique(np.linspace(0, len(scene.mean) - 1, ELLIPSES).round().astype(int))
    missed = np.linalg.norm(scene.mean - scene.truth, axis=1).mean()
    with picture(path, figsize=(5.4, 5.2)) as (figure, [[axis]]):
        axes = ellipse_axes(scene.cov[some], CIRCLE_90)
        for centre, width, height, angle in zip(scene.mean[some], *axes, strict=True):
            look: Any = {"facecolor": f"{ESTIMATE}1c", "edgecolor": f"{ESTIMATE}90", "lw": 0.7}
            axis.add_patch(Ellipse(centre, width, height, angle=angle, **look))
        axis.plot(*scene.truth.T, color=TRUTH, lw=1, ls="--", label="truth")
        axis.plot(*scene.mean.T, color=ESTIMATE, lw=1.1, label="filter, 90 % ellipses")
        for number, (label, place) in enumerate(places.items()):
            axis.plot(*place, **PLACE, label=what if number == 0 else None)
            axis.annotate(label, place, xytext=(6, 4), textcoords="offset points", fontsize=8)
        seen = np.vstack([scene.truth, scene.mean, *places.values()])
        low, high = seen.min(0), seen.max(0)  # not of the ellipses, which may be wide
        margin = 0.08 * (high - low).max()
        axis.set(xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin))
        axis.set_aspect("equal", adjustable="box")
        axis.set_xlabel("position [m]")
        axis.set_ylabel("position [m]")
        title = f"{name}: mean error {missed:.2f} m, {scene.inside:.0%} inside"
        axis.set_title(title, fontsize=9)
        figure.legend(loc="outside lower center", ncols=3, columnspacing=1)


def _root(problem: OwnData) -> str:
    return str(problem.source.path)


def _band(axis: Any, at: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> None:
    low, high = mean - NORMAL_90 * spread, mean + NORMAL_90 * spread
    axis.fill_between(at, low, high, color=ESTIMATE, alpha=0.2, lw=0, label="90 % band")
    axis.plot(at, mean, color=ESTIMATE, lw=1.2, label="filter")
    axis.plot([], [], color=TRUTH, lw=1, ls="--", label="truth")


def _legend(figure: Any, axis: Any) -> None:
    handles, names = axis.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
