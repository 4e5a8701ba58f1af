"""Pictures of beliefs: credible ellipses along the path, and weights on the training latents."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.patches import Ellipse
from torch import Tensor

from kbr.app.figures.style import picture
from kbr.app.figures.view import View, Window

if TYPE_CHECKING:
    from kbr.app.figures.run import Track

TRUTH, ESTIMATE, OBSERVED, AGAINST = "#000000", "#0072B2", "#E69F00", "#D55E00"
LAST = 20  # steps with ellipses
PANELS = 3
ALIKE = 5  # ratio of two coordinates' spreads that share one scale
GRID = 80  # points of the density along either axis


def ellipse_axes(cov: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Width, height and angle (degrees) of 2-sd ellipses of covariances [k, 2, 2].

    Math: z with (z - mu)' C^-1 (z - mu) <= 4; 86 % of a Gaussian's mass.
    """
    values, vectors = np.linalg.eigh(cov)
    size = 4 * np.sqrt(values.clip(1e-12))
    angle = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    return size[:, 1], size[:, 0], angle


def coverage(mean: np.ndarray, truth: np.ndarray, cov: np.ndarray) -> float:
    """Share of the steps whose truth lies in the 2-sd ellipse."""
    values, vectors = np.linalg.eigh(cov)
    along = np.einsum("tik,ti->tk", vectors, truth - mean)
    distance = (np.square(along) / values.clip(1e-12)).sum(-1)
    return float((distance <= 4).mean())


def ellipses(path: Path, track: "Track", window: Window | None) -> Path:
    """The last steps in the plane of the latent; a thin line joins each mean to its truth."""
    inside = coverage(track.mean, track.truth, track.cov)
    mean, truth, lost = track.mean[-LAST:], track.truth[-LAST:], ~track.evidence[-LAST:]
    with picture(path, figsize=(4.4, 4.6)) as (_, axes):
        axis = axes[0, 0]
        width, height, angle = ellipse_axes(track.cov[-LAST:])
        for k in range(len(mean)):
            ellipse = Ellipse(mean[k], width[k], height[k], angle=angle[k], lw=0.7)
            axis.add_patch(ellipse)
            ellipse.set(facecolor=f"{ESTIMATE}0c", edgecolor=f"{ESTIMATE}80")
        axis.plot(*np.stack([mean, truth], 1).transpose(2, 1, 0), color="#777777", lw=0.6)
        axis.plot(*truth.T, color=TRUTH, lw=1, ls="--", marker=".", ms=4, label="truth")
        axis.plot(*mean.T, "o", color=ESTIMATE, ms=4, label=f"filter mean, {track.spread}")
        if lost.any():
            axis.plot(*mean[lost].T, "x", color=AGAINST, ms=7, label="no evidence")
        if are_alike(np.concatenate([mean, truth])):
            axis.set_aspect("equal", adjustable="datalim")
        name_axes(axis, track.names, window)
        caption = f"last {len(mean)} steps; within 2 sd at {inside:.0%} of all (Gaussian: 86%)"
        axis.set_title(caption, fontsize=8, pad=24)
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, columnspacing=1)
    return path


def weights_figure(path: Path, mean: Tensor, truth: Tensor, view: View) -> Path:
    """The belief at a few steps: its density, and below it the weights on the training latents."""
    assert view.weights is not None
    steps = telling_steps(view.weights)
    z = view.z_train.double().numpy()
    above, below = (_curve, _stems) if z.shape[1] == 1 else (_shade, _dots)
    layout: dict[str, Any] = {
        "figsize": (2.4 * len(steps) + 0.6, 5.2),
        "sharex": True,
        "sharey": "row",
    }
    with picture(path, 2, len(steps), rect=(0, 0, 1, 0.95), **layout) as (figure, axes):
        for k, t in enumerate(steps):
            w = view.weights[t].double().numpy()
            for axis, draw in zip(axes[:, k], (above, below), strict=True):
                draw(axis, z, w)
                place(axis, mean[t].double().numpy(), truth[t].double().numpy())
                name_axes(axis, view.names, view.window)
                axis.label_outer()
            axes[0, k].set_title(f"step {t + 1}", fontsize=9)
        for axis, name in zip(axes[:, 0], ("density", "weights"), strict=True):
            axis.text(0.04, 0.94, name, transform=axis.transAxes, va="top", fontsize=9)
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, ncols=len(labels), loc="upper center", columnspacing=1)
    return path


def telling_steps(weights: Tensor) -> list[int]:
    """The first step, the one with the widest spread of weights after it, and the last."""
    last = len(weights) - 1
    if last < PANELS - 1:
        return list(range(last + 1))
    proper = weights.clamp_min(0)
    share = proper / proper.sum(-1, keepdim=True).clamp_min(torch.finfo(proper.dtype).tiny)
    widest = 1 + int(share.square().sum(-1)[1:last].argmin())
    return [0, widest, last]


def density(z: np.ndarray, w: np.ndarray, *ticks: np.ndarray) -> np.ndarray:
    """Weighted kernel density estimate on the grid of the ticks, one array for each coordinate.

    Math: p(a) ~ sum_i max(w_i, 0) prod_k exp(-(a_k - z_ik)^2 / 2 h_k^2),
          h_k = s_k n^(-1/(d + 4)) / 2,  s_k the standard deviation of the latents' coordinate k.
    Ref:  Scott 1992 (the bandwidth; halved, as a belief is narrower than all latents together).
    """
    n, d = len(z), len(ticks)
    h = z[:, :d].std(0) * n ** (-1 / (d + 4)) / 2 + 1e-12
    bumps = [np.exp(-np.square((t[:, None] - z[:, k]) / h[k]) / 2) for k, t in enumerate(ticks)]
    letters = "abc"[:d]
    terms = ",".join(f"{letter}n" for letter in letters)
    value: np.ndarray = np.einsum(f"{terms},n->{letters}", *bumps, w.clip(0), optimize=True)
    return value


def place(axis: Any, mean: np.ndarray, truth: np.ndarray) -> None:
    """Mean and truth, as points of a plane or as places on a line."""
    if len(mean) == 1:
        axis.axvline(mean[0], color=ESTIMATE, lw=1.2, label="mean")
        axis.axvline(truth[0], color=TRUTH, lw=1.2, ls="--", label="truth")
        return
    axis.plot(truth[0], truth[1], "*", color="white", mec=TRUTH, ms=10, label="truth", ls="none")
    axis.plot(mean[0], mean[1], "P", color="#F0E442", mec=TRUTH, ms=7, label="mean", ls="none")


def _shade(axis: Any, z: np.ndarray, w: np.ndarray) -> None:
    low, high = z[:, :2].min(0), z[:, :2].max(0)
    margin = 0.1 * (high - low) + 1e-9
    across, up = (np.linspace(low[k] - margin[k], high[k] + margin[k], GRID) for k in (0, 1))
    shade = density(z, w, across, up).T
    extent = (across[0], across[-1], up[0], up[-1])
    axis.imshow(shade, origin="lower", extent=extent, cmap="Blues", aspect="auto")
    axis.grid(False)


def _dots(axis: Any, z: np.ndarray, w: np.ndarray) -> None:
    """Areas in proportion to the weights; below a hundredth of the largest a point is a speck."""
    area = 40 * np.abs(w) / max(np.abs(w).max(), 1e-300)
    axis.plot(z[:, 0], z[:, 1], ".", color="#bbbbbb", ms=2, label="weight near 0")
    for sign, colour, name in ((1, ESTIMATE, "weight > 0"), (-1, AGAINST, "weight < 0")):
        kept = (sign * w > 0) & (area > 0.4)
        face = f"{colour}60" if sign > 0 else "none"
        axis.scatter(
            z[kept, 0], z[kept, 1], s=area[kept], facecolor=face, edgecolor=colour, lw=0.6,
            label=name,
        )  # fmt: skip


def _curve(axis: Any, z: np.ndarray, w: np.ndarray) -> None:
    ticks = np.linspace(z.min(), z.max(), 4 * GRID)
    shade = density(z, w, ticks)
    axis.fill_between(ticks, shade / max(shade.max(), 1e-300), color=ESTIMATE, alpha=0.3, lw=0)


def _stems(axis: Any, z: np.ndarray, w: np.ndarray) -> None:
    scaled = w / max(np.abs(w).max(), 1e-300)
    axis.vlines(z[:, 0], 0, scaled, color=ESTIMATE, lw=0.8, label="weights")


def are_alike(z: np.ndarray) -> bool:
    """Whether points [n, 2] fit a picture with one scale: columns may have other units."""
    spread = np.ptp(z, axis=0)
    return bool(spread.max() <= ALIKE * spread.min())


def name_axes(axis: Any, names: list[str], window: Window | None) -> None:
    units = " (latent units)" if names[0].startswith("$z_") else ""
    axis.set_xlabel(names[0] + units)
    axis.set_ylabel(names[1] + units if len(names) > 1 else "relative to the largest")
    if window is not None:  # as frames are seen
        axis.yaxis.set_inverted(window[2] > window[3])
