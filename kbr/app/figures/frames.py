"""Pictures of frames: what was observed, the training frames, and what the encoder looks at."""

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import PowerNorm
from torch import Tensor

from kbr.app.figures.style import STYLE, picture
from kbr.app.figures.view import View, as_pictures, spread_out
from kbr.app.tasks.heading import degrees_text

FRAMES = 10
COLUMNS = 8  # of a contact sheet
STRIP, GAP = 14, 3  # pixels over a frame of it for the title, and between two
MARKS: dict[str, dict[str, Any]] = {  # told apart by shape; both show on dark and light frames
    "truth": {"marker": "o", "mfc": "none", "mec": "#E05A00", "ms": 12, "mew": 1.4},
    "filter mean": {"marker": "P", "mfc": "#56B4E9", "mec": "black", "ms": 6, "mew": 0.8},
}


def observations(path: Path, mean: Tensor, truth: Tensor, view: View) -> Path:
    """Test frames, with truth and posterior mean where the latent says something about them."""
    steps = spread_out(FRAMES, len(view.x_test))
    frames = as_pictures(view.x_test[steps])
    rows = 1 if len(steps) <= FRAMES // 2 else 2
    columns = -(-len(steps) // rows)
    legend, shape = 0.3 if view.window else 0.0, frames.shape[1] / frames.shape[2]
    size = (1.45 * columns, (1.45 * shape + 0.2) * rows + legend)
    with picture(path, rows, columns, figsize=size) as (figure, axes):
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, t, frame in zip(axes.flat, steps, frames, strict=False):
            axis.imshow(frame, extent=view.window, interpolation="nearest")
            title = f"step {t + 1}"
            if view.circular:
                title += f": {degrees_text(truth[t])}, est. {degrees_text(mean[t])}"
            axis.set_title(title, fontsize=7, pad=3)
            if view.window is not None:
                for kind, z in (("truth", truth), ("filter mean", mean)):
                    axis.plot(*z[t, :2].numpy(), ls="none", label=kind, **MARKS[kind])
        if view.window is not None:
            legend = axes[0, 0].get_legend_handles_labels()
            figure.legend(*legend, ncols=2, loc="outside lower center", fontsize=8)
    return path


def contact_sheet(images: Tensor, titles: list[str]) -> Any:
    """Frames [k, c, h, w] in a grid, each under its title; a figure for `save` or TensorBoard."""
    scale = max(1, 96 // images.shape[-1])
    pictures = as_pictures(images).repeat(scale, 1).repeat(scale, 2)
    count, tall, wide, _ = pictures.shape
    down, across = STRIP + tall + GAP, wide + GAP
    rows, columns = math.ceil(count / COLUMNS), min(count, COLUMNS)
    sheet = np.ones((rows * down + GAP, columns * across + GAP, 3))
    with plt.style.context(STYLE):
        figure = plt.figure(figsize=(sheet.shape[1] / 100, sheet.shape[0] / 100))
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set_axis_off()
        for k, (frame, title) in enumerate(zip(pictures, titles, strict=True)):
            top, left = GAP + (k // COLUMNS) * down + STRIP, GAP + (k % COLUMNS) * across
            sheet[top : top + tall, left : left + wide] = frame
            axis.text(left + wide / 2, top - 4, title, ha="center", va="baseline", fontsize=7)
        axis.imshow(sheet, aspect="auto", interpolation="nearest")
    return figure


def encoder_figure(frames: Tensor, maps: Tensor, places: Tensor) -> Any:
    """Frames with the places [b, k, 2] the encoder answers with, above the mean of its heat maps.

    Places are in [-1, 1], from the first to the last cell of the heat maps [b, k, i, j].
    """
    pictures, cells = as_pictures(frames), maps.shape[-2:]
    tall, wide = pictures.shape[1:3]
    stride = round(tall / cells[0])
    frame = _borders(tall, cells[0], stride), _borders(wide, cells[1], stride)
    grid = _borders(cells[0], cells[0], 1), _borders(cells[1], cells[1], 1)
    with plt.style.context(STYLE):
        size = (1.6 * len(pictures) + 0.3, 2 * 1.6 * tall / wide + 0.2)
        figure, axes = plt.subplots(2, len(pictures), figsize=size, squeeze=False)
        for b, (above, below) in enumerate(axes.T):
            above.imshow(pictures[b], extent=(*frame[1], *frame[0][::-1]))
            above.plot(*places[b].numpy().T, "o", color="#F0E442", mec="black", mew=0.6, ms=4)
            norm = PowerNorm(0.3)  # a map that knows its place is far brighter than the others
            extent = (*grid[1], *grid[0][::-1])
            below.imshow(maps[b].mean(0).numpy(), extent=extent, cmap="magma", norm=norm)
            for axis in (above, below):
                axis.set(xlim=frame[1], ylim=frame[0][::-1], xticks=[], yticks=[], aspect="auto")
                axis.grid(False)
                axis.spines[:].set_visible(False)
        axes[0, 0].set_ylabel("frame and places", fontsize=8)
        axes[1, 0].set_ylabel("mean heat map", fontsize=8)
        figure.tight_layout(pad=0.5)
    return figure


def _borders(pixels: int, cells: int, stride: int) -> tuple[float, float]:
    """Outer borders of a row of pixels, in the places' coordinates."""
    reach = stride * max(cells - 1, 1)
    return -1 - 1 / reach, 2 * (pixels - 0.5) / reach - 1
