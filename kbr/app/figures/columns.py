"""Plots of a recording before training: its columns, its two parts, its frames."""

import math
import textwrap
from pathlib import Path

import numpy as np

from kbr.app.figures.style import handles_of, picture
from kbr.app.figures.view import spread_out
from kbr.app.recordings.task import OwnData

COLUMNS = 8
FRAMES = 12
BINS = 30
MOST_BORDERS = 50  # that are drawn
LABEL = 26  # characters in a line of a label
TRAIN, TEST, LOST = "#0072B2", "#D55E00", "#CC0000"


def inspect_figures(folder: Path, problem: OwnData) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"columns.png": _columns, "parts.png": _parts}
    if problem.recording.has_images:
        pictures["frames.png"] = _frames
    for name, draw in pictures.items():
        draw(folder / name, problem)
    return [folder / name for name in pictures]


def _labelled_columns(problem: OwnData) -> tuple[list[tuple[str, np.ndarray]], str]:
    """Columns of z and of vector x with their labels, up to a page full; what is left is said."""
    recording = problem.recording
    names = [f"z: {problem.label(name)}" for name in recording.z_names]
    columns = list(recording.z.T)
    names += [f"x: {problem.label(name)}" for name, _ in recording.numbers]
    columns += [values for _, values in recording.numbers]
    labels = [textwrap.fill(name, LABEL) for name in names]
    rest = f"{COLUMNS} of {len(names)} columns" if len(names) > COLUMNS else ""
    return list(zip(labels, columns, strict=True))[:COLUMNS], rest


def _columns(path: Path, problem: OwnData) -> None:
    """Columns over the rows; test rows in another colour, gaps dotted, missing values below."""
    (columns, rest), held_out = _labelled_columns(problem), problem.parts.held_out
    borders = np.flatnonzero(problem.recording.starts(problem.splitting.max_gap))[1:]
    rows = np.arange(len(held_out))
    height = 1.2 * len(columns) + 0.8
    with picture(path, len(columns), figsize=(8, height), sharex=True) as (figure, axes):
        for axis, (label, values) in zip(axes[:, 0], columns, strict=True):
            for colour, part, name in _parts_of(held_out):
                axis.plot(rows[part], values[part], ".", ms=2, color=colour, label=name)
            lost, low = rows[~np.isfinite(values)], axis.get_xaxis_transform()
            if len(lost):
                marks = {"color": LOST, "clip_on": False, "label": "missing"}
                axis.plot(lost, 0 * lost, "|", transform=low, **marks)
            if 0 < len(borders) <= MOST_BORDERS:
                dotted = {"color": "#666666", "lw": 0.6, "ls": ":", "label": "new piece"}
                axis.vlines(borders, 0, 1, transform=low, **dotted)
            axis.set_ylabel(label, rotation=0, ha="right", va="center")
        axes[-1, 0].set_xlabel(f"row ({rest})" if rest else "row")
        handles, names = handles_of(axes)
        figure.legend(handles, names, ncols=len(names), markerscale=2, loc="outside upper right")


def _parts(path: Path, problem: OwnData) -> None:
    """Histograms of training and test rows: where they differ, a filter has to extrapolate."""
    (columns, rest), held_out = _labelled_columns(problem), problem.parts.held_out
    across = min(4, len(columns))
    down = math.ceil(len(columns) / across)
    size = (2.4 * across + 0.6, 2.0 * down + 0.5)
    with picture(path, down, across, figsize=size) as (figure, axes):
        for axis in axes.flat[len(columns) :]:
            axis.set_visible(False)
        for axis, (label, values) in zip(axes.flat, columns, strict=False):
            edges = _edges(values[np.isfinite(values)])
            for colour, part, name in _parts_of(held_out):
                kept = values[part & np.isfinite(values)]
                if len(kept):
                    share = np.full(len(kept), 1 / len(kept))  # of a part, in numbers of any size
                    axis.hist(kept, edges, weights=share, color=colour, alpha=0.5, label=name)
            axis.set_xlabel(label)
            axis.set_yticks([])
        handles, names = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, ncols=2, loc="outside upper right")
        figure.text(0.01, 0.99, rest, va="top")


def _parts_of(held_out: np.ndarray) -> tuple[tuple[str, np.ndarray, str], ...]:
    return (TRAIN, ~held_out, "training"), (TEST, held_out, "test")


def _edges(values: np.ndarray) -> np.ndarray:
    """Borders of bins; where numbers are too close to be told apart, one bin."""
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    wanted = np.linspace(low, high, BINS + 1)
    if not (np.diff(wanted) > 0).all():
        reach = max(abs(low), 1.0) * 1e-3
        return np.array([low - reach, high + reach])
    return wanted


def _frames(path: Path, problem: OwnData) -> None:
    """Frames spread over the recording, with their states."""
    recording = problem.recording
    there = np.flatnonzero(~recording.x_missing)
    rows = there[spread_out(FRAMES, len(there))]
    frames = recording.x[rows].astype(np.float64)
    low, high = np.nanmin(frames), np.nanmax(frames)
    with picture(path, 2, math.ceil(len(rows) / 2), figsize=(9, 4.6)) as (figure, axes):
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, row, pixels in zip(axes.flat, rows, frames, strict=False):
            frame = np.moveaxis((pixels - low) / max(high - low, 1e-12), 0, -1)
            axis.imshow(frame[..., :3] if frame.shape[-1] >= 3 else frame[..., 0], cmap="gray")
            state = ", ".join(f"{value:.3g}" for value in recording.z[row][:3])
            axis.set_title(f"row {row + 1}\n{state}", fontsize=8)
        figure.suptitle("z: " + ", ".join(problem.labels[:3]), fontsize=9)
