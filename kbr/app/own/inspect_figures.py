"""Plots of a recording before training: its columns, its two parts, its frames."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from kbr.app.own.problem import OwnData
from kbr.app.style import STYLE, save

SHOWN_COLUMNS = 8
SHOWN_FRAMES = 12
TRAIN, TEST = "#0072B2", "#D55E00"


def inspect_figures(folder: Path, problem: OwnData) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = [_columns(folder / "columns", problem), _parts(folder / "parts", problem)]
    if problem.recording.has_images:
        written.append(_frames(folder / "frames", problem))
    return written


def _shown(problem: OwnData) -> list[tuple[str, np.ndarray]]:
    """Columns of z and of vector x, with their labels, up to a page full."""
    recording = problem.recording
    labels = [f"z: {problem.label(name)}" for name in recording.z_names]
    columns = list(recording.z.T)
    if not recording.has_images:
        labels += [f"x: {problem.label(name)}" for name in recording.x_names]
        columns += list(recording.x.T)
    return list(zip(labels, columns, strict=True))[:SHOWN_COLUMNS]


def _columns(path: Path, problem: OwnData) -> Path:
    """Every column over the rows; test rows in another colour, borders of sequences dotted."""
    columns, held_out = _shown(problem), problem.parts.held_out
    borders = np.flatnonzero(problem.recording.starts(problem.splitting.max_gap))[1:]
    rows = np.arange(len(held_out))
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(
            len(columns), 1, figsize=(8, 1.2 * len(columns) + 0.8), sharex=True, squeeze=False
        )
        for axis, (label, values) in zip(axes[:, 0], columns, strict=True):
            for colour, part, name in ((TRAIN, ~held_out, "training"), (TEST, held_out, "test")):
                axis.plot(rows[part], values[part], ".", ms=2, color=colour, label=name)
            if len(borders) <= 50:
                for border in borders:
                    axis.axvline(border, color="#666666", lw=0.6, ls=":")
            axis.set_ylabel(label, rotation=0, ha="right", va="center")
        axes[-1, 0].set_xlabel("row")
        axes[0, 0].legend(ncols=2, markerscale=5, loc="lower right", bbox_to_anchor=(1, 1))
        figure.align_ylabels()
        figure.tight_layout()
        return save(figure, path, ("png",))[0]


def _parts(path: Path, problem: OwnData) -> Path:
    """Histograms of training and test rows: where they differ, a filter has to extrapolate."""
    columns, held_out = _shown(problem), problem.parts.held_out
    across = min(4, len(columns))
    down = -(-len(columns) // across)
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(
            down, across, figsize=(2.4 * across + 0.6, 2.0 * down + 0.5), squeeze=False
        )
        for axis in axes.flat[len(columns) :]:
            axis.set_visible(False)
        for axis, (label, values) in zip(axes.flat, columns, strict=False):
            there = values[np.isfinite(values)]
            edges = np.histogram_bin_edges(there, 30)
            for colour, part, name in ((TRAIN, ~held_out, "training"), (TEST, held_out, "test")):
                kept = values[part & np.isfinite(values)]
                if len(kept):
                    axis.hist(kept, edges, density=True, color=colour, alpha=0.5, label=name)
            axis.set_xlabel(label)
            axis.set_yticks([])
        handles, names = axes.flat[0].get_legend_handles_labels()
        figure.tight_layout(rect=(0, 0, 1, 0.92))
        figure.legend(handles, names, ncols=2, loc="upper right")
        return save(figure, path, ("png",))[0]


def _frames(path: Path, problem: OwnData) -> Path:
    """Frames spread over the recording, with their states."""
    recording = problem.recording
    there = np.flatnonzero(~recording.x_missing)
    rows = there[np.linspace(0, len(there) - 1, min(SHOWN_FRAMES, len(there))).astype(int)]
    low, high = np.nanmin(recording.x), np.nanmax(recording.x)
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(2, -(-len(rows) // 2), figsize=(9, 4.6), squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, row in zip(axes.flat, rows, strict=False):
            frame = np.moveaxis((recording.x[row] - low) / max(high - low, 1e-12), 0, -1)
            axis.imshow(frame[..., :3] if frame.shape[-1] >= 3 else frame[..., 0], cmap="gray")
            state = ", ".join(f"{value:.3g}" for value in recording.z[row][:3])
            axis.set_title(f"row {row + 1}\n{state}", fontsize=8)
        figure.suptitle("z: " + ", ".join(problem.labels[:3]), fontsize=9)
        figure.tight_layout()
        return save(figure, path, ("png",))[0]
