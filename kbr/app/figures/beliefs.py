"""Pictures of beliefs: credible ellipses along the path, and weights on the training latents."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.patches import Ellipse
from torch import Tensor

from kbr.app.figures.style import picture
from kbr.app.figures.view import View, Window, first_trial
from kbr.app.models.kernel import Outcome
from kbr.core.showing.plotting import AGAINST, ESTIMATE, TRUTH, are_alike, ellipse_axes
from kbr.core.uncertainty.regions import coverage

LAST = 20  # steps with ellipses
WITHIN_2_SD = 1 - math.exp(-2)  # of a Gaussian in the plane
GRID = 80  # points of the density along either axis


def ellipses(path: Path, outcome: Outcome, names: list[str], window: Window | None) -> Path:
    """The last steps in the plane of the latent; a thin line joins each mean to its truth."""
    assert outcome.cov is not None
    moments = [values[0].double() for values in (outcome.mean, outcome.cov, outcome.truth)]
    inside = float(coverage(moments[0], moments[1], moments[2], level=WITHIN_2_SD))
    mean, cov, truth = (values[-LAST:].numpy() for values in moments)
    lost = first_trial(outcome.evidence)[-LAST:] == 0
    colours = {"facecolor": f"{ESTIMATE}0c", "edgecolor": f"{ESTIMATE}80"}
    with picture(path, figsize=(4.4, 4.6)) as (_, [[axis]]):
        for centre, width, height, angle in zip(mean, *ellipse_axes(cov), strict=True):
            axis.add_patch(Ellipse(centre, width, height, angle=angle, lw=0.7, **colours))
        axis.plot(*np.stack([mean, truth], 1).transpose(2, 1, 0), color="#777777", lw=0.6)
        axis.plot(*truth.T, color=TRUTH, lw=1, ls="--", marker=".", ms=4, label="truth")
        axis.plot(*mean.T, "o", color=ESTIMATE, ms=4, label=f"filter mean, {outcome.shown_spread}")
        if lost.any():
            axis.plot(*mean[lost].T, "x", color=AGAINST, ms=7, label="no evidence")
        if are_alike(np.concatenate([mean, truth])):
            axis.set_aspect("equal", adjustable="datalim")
        name_axes(axis, names, window)
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
    size = (2.4 * len(steps) + 0.6, 5.2)
    with picture(path, 2, len(steps), figsize=size, sharex=True, sharey="row") as (figure, axes):
        for k, t in enumerate(steps):
            w = view.weights[t].double().numpy()
            for axis, draw in zip(axes[:, k], (above, below), strict=True):
                draw(axis, z, w)
                _mark(axis, mean[t].double().numpy(), truth[t].double().numpy())
                name_axes(axis, view.names, view.window)
                axis.label_outer()
            axes[0, k].set_title(f"step {t + 1}", fontsize=9)
        for axis, name in zip(axes[:, 0], ("density", "weights"), strict=True):
            axis.text(0.04, 0.94, name, transform=axis.transAxes, va="top", fontsize=9)
        legend = axes[1, 0].get_legend_handles_labels()
        figure.legend(*legend, ncols=5, loc="outside upper center", columnspacing=1)
    return path


def telling_steps(weights: Tensor) -> list[int]:
    """The first step, the one with the widest spread of weights after it, and the last."""
    last = len(weights) - 1
    if last < 2:
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


def _mark(axis: Any, mean: np.ndarray, truth: np.ndarray) -> None:
    """Mean and truth, as points of a plane or as places on a line."""
    if len(mean) == 1:
        axis.axvline(mean[0], color=ESTIMATE, lw=1.2, label="mean")
        axis.axvline(truth[0], color=TRUTH, lw=1.2, ls="--", label="truth")
        return
    axis.plot(*truth[:2], "*", color="white", mec=TRUTH, ms=10, label="truth", ls="none")
    axis.plot(*mean[:2], "P", color="#F0E442", mec=TRUTH, ms=7, label="mean", ls="none")


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
    positive = {"facecolor": f"{ESTIMATE}60", "edgecolor": ESTIMATE, "label": "weight > 0"}
    negative = {"facecolor": "none", "edgecolor": AGAINST, "label": "weight < 0"}
    for side, style in ((w > 0, positive), (w < 0, negative)):
        kept = side & (area > 0.4)
        axis.scatter(*z[kept, :2].T, s=area[kept], lw=0.6, **style)


def _curve(axis: Any, z: np.ndarray, w: np.ndarray) -> None:
    ticks = np.linspace(z.min(), z.max(), 4 * GRID)
    shade = density(z, w, ticks)
    axis.fill_between(ticks, shade / max(shade.max(), 1e-300), color=ESTIMATE, alpha=0.3, lw=0)


def _stems(axis: Any, z: np.ndarray, w: np.ndarray) -> None:
    scaled = w / max(np.abs(w).max(), 1e-300)
    axis.vlines(z[:, 0], 0, scaled, color=ESTIMATE, lw=0.8, label="weights")


def name_axes(axis: Any, names: list[str], window: Window | None) -> None:
    units = " (latent units)" if names[0].startswith("$z_") else ""
    axis.set_xlabel(names[0] + units)
    axis.set_ylabel(names[1] + units if len(names) > 1 else "relative to the largest")
    if window is not None:  # as frames are seen
        axis.yaxis.set_inverted(window[2] > window[3])
