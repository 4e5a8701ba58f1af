"""Pictures of beliefs, for notebooks and scripts; Matplotlib is loaded when the first is drawn.

`FilterResult.plot` and `Belief.plot` are the ways in. Colours are Okabe and Ito's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.uncertainty.regions import chi2_quantile
from kbr.core.units.units import Units

STYLE = Path(__file__).with_name("kbr.mplstyle")
TRUTH, ESTIMATE, OBSERVED, AGAINST = "#000000", "#0072B2", "#E69F00", "#D55E00"
ALIKE = 5  # ratio of two coordinates' spreads that share one scale
PAGE = 12  # latents in a picture
RINGS = 60  # ellipses along a path, evenly spaced
SPREAD = 4  # standard deviations to either side of a marginal


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """What a picture shows: moments at T steps as arrays, and what they are called.

    `lost` marks steps without evidence; `turns` are full turns of angles, None for other latents.
    `points` [n, dz] and their `weights` are what a kernel belief is made of.
    """

    mean: np.ndarray
    cov: np.ndarray
    labels: Sequence[str]
    lost: np.ndarray
    turns: Sequence[float | None]
    truth: np.ndarray | None = None
    time: np.ndarray | None = None
    level: float = 0.9
    points: np.ndarray | None = None
    weights: np.ndarray | None = None

    @classmethod
    def of(cls, units: Units, beliefs: tuple[Tensor, Tensor, Tensor], **more: Any) -> "Scene":
        """Of means [T dz], covariances and evidence."""
        mean, cov, evidence = map(array, beliefs)
        count, z = mean.shape[-1], units.z
        turns = [z.turn if mark else None for mark in z.circular or (False,) * count]
        labels = units.latent_labels(count)
        return cls(mean=mean, cov=cov, labels=labels, lost=~evidence, turns=turns, **more)

    @property
    def named(self) -> str:
        return f"{100 * self.level:g} %"

    @property
    def steps(self) -> np.ndarray:
        return np.arange(len(self.mean)) if self.time is None else self.time

    def band(self, k: int) -> np.ndarray:
        """Half widths of the latent's own region."""
        half: np.ndarray = np.sqrt(chi2_quantile(self.level, 1) * self.cov[:, k, k].clip(0))
        return half


def plot_steps(scene: Scene, ax: Any = None) -> Any:
    """Each latent over time with its band; steps without evidence are shaded."""
    count = min(len(scene.labels), PAGE)
    with _axes(ax, count, (7.0, 1.7 * count + 0.6), sharex=True) as axes:
        for k, axis in enumerate(axes):
            _one_latent(axis, scene, k)
        axes[-1].set_xlabel("step" if scene.time is None else "time")
        if ax is None:
            axes[0].legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), columnspacing=1)
            axes[0].figure.align_ylabels()
            if count < len(scene.labels):
                axes[0].set_title(f"{count} of {len(scene.labels)} latents", loc="left")
    return axes if count > 1 else axes[0]


def _one_latent(axis: Any, scene: Scene, k: int) -> None:
    mean, half, truth = scene.mean[:, k], scene.band(k), scene.truth
    series = [mean, half] if truth is None else [mean, half, truth[:, k]]
    at = _broken(mean if truth is None else np.stack([mean, truth[:, k]]), scene.turns[k])
    parts = [np.split(values, at) for values in (scene.steps, *series)]
    for n, (t, centre, wide, *true) in enumerate(zip(*parts, strict=True)):
        named = {"mean": "filter mean", "band": f"{scene.named} band", "truth": "truth"}
        label = {what: name if n == 0 else None for what, name in named.items()}
        band = {"color": ESTIMATE, "alpha": 0.2, "lw": 0, "label": label["band"]}
        axis.fill_between(t, centre - wide, centre + wide, **band)
        for values in true:
            axis.plot(t, values, color=TRUTH, lw=1, ls="--", label=label["truth"])
        axis.plot(t, centre, color=ESTIMATE, lw=1.3, label=label["mean"])
    for n, (start, end) in enumerate(_gaps(scene)):
        name = None if n else "no evidence"
        axis.axvspan(start, end, color=AGAINST, alpha=0.12, lw=0, label=name)
    axis.set_ylabel(no_math(scene.labels[k]))
    axis.margins(x=0.01)


def _gaps(scene: Scene) -> Iterator[tuple[Any, Any]]:
    """Where runs of steps without evidence begin and end, half a step to either side."""
    borders = np.flatnonzero(np.diff(scene.lost, prepend=False, append=False)).reshape(-1, 2)
    time, last = scene.steps, len(scene.mean) - 1
    for start, end in borders:
        before, after = time[max(start - 1, 0)], time[min(end, last)]
        first, final = time[start], time[end - 1]
        yield first - (first - before) / 2, final + (after - final) / 2


def _broken(values: np.ndarray, turn: float | None) -> np.ndarray:
    """Steps before which an angle passes a full turn: lines do not cross the picture there."""
    if turn is None:
        return np.zeros(0, dtype=np.int64)
    jumps = np.abs(np.diff(values)) > turn / 2
    return np.flatnonzero(jumps if jumps.ndim == 1 else jumps.any(0)) + 1


def plot_path(scene: Scene, ax: Any = None) -> Any:
    """The path in the plane of two latents, with the ellipses of its regions."""
    with _axes(ax, 1, (4.8, 5.0)) as (axis,):
        some = np.unique(np.linspace(0, len(scene.mean) - 1, RINGS).round().astype(int))
        _rings(axis, scene, some)
        if scene.truth is not None:
            axis.plot(*scene.truth.T, color=TRUTH, lw=1, ls="--", label="truth")
        axis.plot(*scene.mean.T, color=ESTIMATE, lw=1.3, label=f"filter mean, {scene.named} region")
        axis.plot(*scene.mean[:1].T, "o", color=ESTIMATE, ms=5, label="first step")
        if scene.lost.any():
            axis.plot(*scene.mean[scene.lost].T, "x", color=AGAINST, ms=6, label="no evidence")
        _plane(axis, scene, [scene.mean] if scene.truth is None else [scene.mean, scene.truth])
        if ax is None:
            axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, columnspacing=1)
    return axis


def plot_belief(scene: Scene, ax: Any = None) -> Any:
    """One belief: the ellipse of two latents that are no angles, else the marginal of each."""
    if len(scene.labels) == 2 and not any(scene.turns):
        with _axes(ax, 1, (4.4, 4.4)) as (axis,):
            _dots(axis, scene)
            _rings(axis, scene, np.zeros(1, dtype=int))
            label = f"mean, {scene.named} region"
            axis.plot(*scene.mean.T, "o", color=ESTIMATE, ms=5, label=label)
            _plane(axis, scene, [scene.mean])
            axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, columnspacing=1)
        return axis
    count = min(len(scene.labels), PAGE)
    with _axes(ax, count, (5.0, 1.5 * count + 0.8)) as axes:
        for k, axis in enumerate(axes):
            _marginal(axis, scene, k)
        if ax is None:
            axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, columnspacing=1)
    return axes if count > 1 else axes[0]


def _marginal(axis: Any, scene: Scene, k: int) -> None:
    """The Gaussian of the latent's moments, and below it the weights that they are of."""
    centre, half = scene.mean[0, k], scene.band(k)[0]
    sd = np.sqrt(scene.cov[0, k, k].clip(1e-300))
    turn = scene.turns[k]
    reach = SPREAD * sd if turn is None else min(SPREAD * sd, turn / 2)
    places = np.linspace(centre - reach, centre + reach, 401)
    height = np.exp(-0.5 * np.square((places - centre) / sd))
    axis.plot(places, height, color=ESTIMATE, lw=1.3)
    band = {"color": ESTIMATE, "alpha": 0.2, "lw": 0, "label": f"{scene.named} band"}
    axis.fill_between(places, 0, height, where=np.abs(places - centre) <= half, **band)
    axis.plot([centre, centre], [0, 1], color=ESTIMATE, lw=1.2, label="mean")
    low = 0.0
    if scene.points is not None and scene.weights is not None:
        at = scene.points[:, k]
        at = at if turn is None else centre + (at - centre + turn / 2) % turn - turn / 2
        near, largest = np.abs(at - centre) <= reach, max(np.abs(scene.weights).max(), 1e-300)
        down, low = -0.5 * scene.weights[near].clip(0) / largest, -0.55
        label = "weights > 0 of training latents"
        axis.vlines(at[near], down, 0, color=OBSERVED, lw=0.8, label=label)
    axis.axhline(0, color="#777777", lw=0.6)
    axis.set(xlim=(places[0], places[-1]), ylim=(low, 1.05), yticks=[])
    axis.set_xlabel(no_math(scene.labels[k]))


def _dots(axis: Any, scene: Scene) -> None:
    """Training latents with weight, areas in proportion."""
    if scene.points is None or scene.weights is None:
        return
    area = 60 * scene.weights.clip(0) / max(np.abs(scene.weights).max(), 1e-300)
    kept = area > 0.6
    label = "weights > 0 of training latents"
    axis.scatter(*scene.points[kept].T, s=area[kept], color=OBSERVED, alpha=0.5, lw=0, label=label)


def _rings(axis: Any, scene: Scene, some: np.ndarray) -> None:
    """Ellipses of the regions at these steps."""
    from matplotlib.patches import Ellipse

    radius = chi2_quantile(scene.level, 2) ** 0.5
    look = {"facecolor": f"{ESTIMATE}14", "edgecolor": f"{ESTIMATE}70", "lw": 0.7}
    axes = ellipse_axes(scene.cov[some], radius)
    for centre, width, height, angle in zip(scene.mean[some], *axes, strict=True):
        axis.add_patch(Ellipse(centre, width, height, angle=angle, **look))


def _plane(axis: Any, scene: Scene, points: Sequence[np.ndarray]) -> None:
    """Names of both axes, and one scale where the latents are alike."""
    axis.set_xlabel(no_math(scene.labels[0]))
    axis.set_ylabel(no_math(scene.labels[1]))
    every = np.concatenate(points)
    if len(every) == 1:  # of a belief, its spread
        sd = np.sqrt(scene.cov[0].diagonal().clip(0))
        every = np.stack([-sd, sd])
    if are_alike(every[np.isfinite(every).all(1)]):
        axis.set_aspect("equal", adjustable="datalim")
    axis.autoscale_view()


def are_alike(z: np.ndarray) -> bool:
    """Whether both coordinates of points [n, 2] can share one scale: their units may differ."""
    spread = np.ptp(z, axis=0)
    return bool(spread.max() <= ALIKE * spread.min())


def ellipse_axes(cov: np.ndarray, radius: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Width, height and angle (degrees) of ellipses of covariances [k, 2, 2]: of 2 sd, or so many.

    Math: z with (z - mu)' C^-1 (z - mu) <= radius^2.
    """
    values, vectors = np.linalg.eigh(cov)
    size = 2 * radius * np.sqrt(values.clip(1e-12))
    angle = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    return size[:, 1], size[:, 0], angle


def array(tensor: Tensor) -> np.ndarray:
    values: np.ndarray = tensor.detach().cpu().numpy()
    return values


def no_math(text: str) -> str:
    """As Matplotlib shows it letter by letter: a dollar sign begins no formula."""
    return text.replace("$", r"\$")


@contextmanager
def _axes(given: Any, count: int, size: tuple[float, float], **layout: Any) -> Iterator[Any]:
    """The axes to draw on: those given, or those of a new figure in our style."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise KbrError("pictures need Matplotlib: pip install matplotlib.") from error
    if given is not None:
        axes = np.atleast_1d(given).ravel()
        if len(axes) != count:
            raise KbrError(f"ax must hold {count} axes here, one a picture; got {len(axes)}.")
        yield axes
        return
    with pyplot.style.context(STYLE):
        figure, grid = pyplot.subplots(
            count, squeeze=False, figsize=size, layout="constrained", **layout
        )
        yield grid[:, 0]
        figure.canvas.draw_idle()
