"""The filter at work, as an animated GIF of the first steps of the test sequence."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Ellipse
from PIL import Image
from torch import Tensor

from kbr.app.figures.beliefs import name_axes
from kbr.app.figures.frames import MARKS
from kbr.app.figures.style import STYLE
from kbr.app.figures.view import BELIEFS, View, as_pictures
from kbr.app.models.kernel import Outcome
from kbr.app.run.folder import write_bytes
from kbr.app.tasks.heading import ANGLES, density_of_moments, density_of_weights
from kbr.core.showing.plotting import ESTIMATE, OBSERVED, TRUTH, are_alike, ellipse_axes
from kbr.core.uncertainty.regions import chi2_quantile

TRAIL = 12  # steps of the path that stay visible
MILLISECONDS = 250  # of a step
LEVEL = 0.9  # of the ellipses
COLOURS = 128  # of the frames; those of the marks come on top
KEPT = (TRUTH, ESTIMATE, OBSERVED, MARKS["truth"]["mec"], MARKS["filter mean"]["mfc"], "#ffffff")

Draw = Callable[[int], object]  # of a step


def animate(path: Path, outcome: Outcome) -> Path | None:
    """Writes the GIF; None where there is nothing that moves in a plane."""
    if outcome.view is None or outcome.cov is None or outcome.mean.shape[-1] < 2:
        return None
    view = outcome.view()
    moments = (outcome.mean, outcome.truth, outcome.cov)
    mean, truth, cov = (values[0, :BELIEFS].double() for values in moments)
    with plt.style.context(STYLE), plt.rc_context({"figure.dpi": 100, "font.size": 8}):
        size = (5.4, 3.2) if view.has_images else (3.4, 3.8)
        figure = plt.figure(figsize=size, layout="constrained")
        columns, parts = 1 + view.has_images, []
        if view.has_images:
            parts.append(_frames(figure.add_subplot(1, columns, 1), mean, truth, cov, view))
        projection = "polar" if view.circular else "rectilinear"
        axis = figure.add_subplot(1, columns, columns, projection=projection)
        if view.circular:
            parts.append(_compass(axis, mean, truth, cov, view))
        else:
            parts.append(_plane(axis, mean, truth, cov, view))
        legend = axis.get_legend_handles_labels()
        figure.legend(*legend, loc="outside lower center", ncols=1 + columns, fontsize=8)
        title, frames = figure.suptitle("step 1", fontsize=9), []
        figure.canvas.draw()
        figure.set_layout_engine("none")  # the layout stays as it is
        for t in range(len(mean)):
            title.set_text(f"step {t + 1}")
            for draw in parts:
                draw(t)
            figure.canvas.draw()
            frames.append(np.asarray(figure.canvas.buffer_rgba())[..., :3].copy())  # type: ignore[attr-defined]
        plt.close(figure)
    write_bytes(path, _gif(frames))
    return path


def _gif(frames: list[np.ndarray]) -> bytes:
    """All frames on one palette, so that nothing flickers; small marks keep their colours."""
    some = np.concatenate(frames[:: max(1, len(frames) // 6)])
    common = Image.fromarray(some).quantize(COLOURS).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*common, *(round(255 * v) for c in KEPT for v in to_rgb(c))])
    first, *others = (
        Image.fromarray(each).quantize(palette=palette, dither=Image.Dither.NONE) for each in frames
    )
    buffer = io.BytesIO()
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=MILLISECONDS, loop=0)
    return buffer.getvalue()


def _frames(axis: Any, mean: Tensor, truth: Tensor, cov: Tensor, view: View) -> Draw:
    """The observation; where the latent is a position in it, truth and belief on top."""
    frames = as_pictures(view.x_test[:BELIEFS])
    image = axis.imshow(frames[0], extent=view.window, interpolation="nearest")
    axis.set_axis_off()
    title = axis.set_title("observation", fontsize=8)
    lost = view.x_test[:BELIEFS].isnan().flatten(1).all(1)

    def show(t: int) -> None:
        image.set_data(frames[t])
        title.set_text("no observation" if lost[t] else "observation")

    if view.window is None:
        return show
    marks = {kind: axis.plot([], [], ls="none", **style)[0] for kind, style in MARKS.items()}
    ring = _ring(axis, mean, cov, "#56B4E9")

    def draw(t: int) -> None:
        show(t)
        marks["truth"].set_data(*truth[t : t + 1, :2].T.numpy())
        marks["filter mean"].set_data(*mean[t : t + 1, :2].T.numpy())
        ring(t)

    return draw


def _plane(axis: Any, mean: Tensor, truth: Tensor, cov: Tensor, view: View) -> Draw:
    """Paths of the last steps in the plane of the latent (its first two coordinates)."""
    z = view.z_train.double().numpy()
    axis.plot(z[:, 0], z[:, 1], ".", color="#cccccc", ms=2, label="training latents")
    if view.shows_x_as_z:
        seen = axis.plot([], [], "x", color=OBSERVED, ms=8, mew=2, label="observation")[0]
    path = axis.plot([], [], color=TRUTH, lw=1, ls="--", label="truth", **MARKS["truth"])[0]
    named = {"label": f"filter mean, {LEVEL:.0%} region", **MARKS["filter mean"]}
    guess = axis.plot([], [], color=ESTIMATE, lw=1.2, **named)[0]
    ring = _ring(axis, mean, cov, ESTIMATE)
    everything = np.concatenate([z[:, :2], mean[:, :2].numpy(), truth[:, :2].numpy()])
    centre = (everything.min(0) + everything.max(0)) / 2
    reach = 1.08 * np.ptp(everything, axis=0) / 2 + 1e-9
    if are_alike(everything):
        reach[:] = reach.max()
    xlim, ylim = np.stack([centre - reach, centre + reach], -1)
    axis.set(xlim=xlim, ylim=ylim, box_aspect=1)
    name_axes(axis, view.names, view.window)

    def draw(t: int) -> None:
        start = max(0, t + 1 - TRAIL)
        for line, values in ((path, truth), (guess, mean)):
            line.set_data(*values[start : t + 1, :2].T.numpy())
            line.set_markevery([t - start])
        if view.shows_x_as_z:
            seen.set_data(*view.x_test[t : t + 1, :2].T.numpy())
        ring(t)

    return draw


def _ring(axis: Any, mean: Tensor, cov: Tensor, colour: str) -> Draw:
    """An ellipse that moves."""
    radius = chi2_quantile(LEVEL, 2) ** 0.5
    width, height, angle = ellipse_axes(cov[:, :2, :2].numpy(), radius)
    ring = axis.add_patch(Ellipse((0, 0), 0, 0, fill=False, ec=colour, lw=1.2))
    return lambda t: ring.set(
        center=mean[t, :2].tolist(), width=width[t], height=height[t], angle=angle[t]
    )


def _compass(axis: Any, mean: Tensor, truth: Tensor, cov: Tensor, view: View) -> Draw:
    """A rose of the posterior over the heading; degrees run counter-clockwise from the top."""
    axis.set_theta_zero_location("N")
    axis.set(ylim=(0, 1.05), yticks=[])
    axis.set_thetagrids(range(0, 360, 45), [f"{a}°" for a in range(0, 360, 45)])
    nothing = np.zeros_like(ANGLES)
    petal = axis.fill(ANGLES, nothing, color=ESTIMATE, alpha=0.4, label="posterior")[0]
    north = axis.plot([0, 0], [0, 1], color=TRUTH, lw=1.5, ls="--", label="true heading")[0]
    guess = axis.plot([0, 0], [0, 1], color=ESTIMATE, lw=1.5, label="filter mean")[0]
    heading, estimate = (torch.atan2(z[:, 1], z[:, 0]).numpy() for z in (truth, mean))

    def draw(t: int) -> None:
        if view.weights is not None:
            value = density_of_weights(view.z_train.double(), view.weights[t].double())
        else:
            value = density_of_moments(mean[t], cov[t])
        petal.set_xy(np.stack([ANGLES, value / max(value.max(), 1e-300)], -1))
        north.set_xdata([heading[t]] * 2)
        guess.set_xdata([estimate[t]] * 2)

    return draw
