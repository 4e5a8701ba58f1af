"""Frames beside numbers: what a file holds of each part of x, as flat rows with their layout."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kbr.app.recordings.columns import MISSING, Columns, real_numbers
from kbr.app.recordings.files import PICTURES
from kbr.app.recordings.recording import as_observations
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory
from kbr.core.units.layout import Layout, Shape

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source


def parts_of(source: "Source", columns: Columns) -> tuple[np.ndarray, Layout] | None:
    """x [T, d] and what it holds, of columns that name pictures, of numbers, and of arrays.

    None where there are numbers alone, in columns of their own.
    """
    names = tuple(columns.x)
    known = dict(zip(source.known.names, source.known.shapes, strict=True)) if source.known else {}
    are_text = [isinstance(_cells(columns, name), list) for name in names]
    pictures = [
        is_text and _names_pictures(columns, n) for n, is_text in zip(names, are_text, strict=True)
    ]
    if not known and all(are_text) and not any(pictures):
        return None
    parts, shapes = [], []
    for name, is_picture in zip(names, pictures, strict=True):
        values = _part(source, columns, name, known.get(name), is_picture=is_picture)
        shape = values.shape[1:]
        if name in known and shape != known[name]:
            raise KbrError(
                f"{name} in {columns.path} has shape {list(shape)} in each row; the filter was "
                f"trained on {list(known[name])}."
            )
        parts.append(values)
        shapes.append(shape)
    if not any(shapes):
        return None
    layout = Layout(names, tuple(shapes))
    rows = len(parts[0])
    check_memory(
        16.0 * rows * layout.width,  # one by one, and joined
        what=f"{rows:,} rows of {layout.words()}",
        advice="Set data.resize=[height,width].",
    )
    return layout.flat([values.astype(np.float64) for values in parts]), layout


def _cells(columns: Columns, name: str) -> Any:
    return columns.get(name) if name in columns.names else None


def _names_pictures(columns: Columns, name: str) -> bool:
    """Whether the first cell that is not empty does."""
    first = next((cell for cell in columns.get(name) if cell.lower() not in MISSING), "")
    return Path(first).suffix.lower() in PICTURES


def _part(
    source: "Source", columns: Columns, name: str, known: Shape | None, *, is_picture: bool
) -> np.ndarray:
    """Numbers [T], vectors [T, d] or frames [T, c, h, w], NaN where they are absent."""
    cells = _cells(columns, name)
    if is_picture:
        from kbr.app.recordings.kinds.frames import frame_column

        return frame_column(source, columns, name)
    if isinstance(cells, list) and known is not None and len(known) == 3:
        if any(cell.lower() not in MISSING for cell in cells):
            raise KbrError(f"{name} of {columns.path} must name pictures, as in training.")
        return np.full((len(cells), *known), np.nan, dtype=np.float32)
    if isinstance(cells, np.ndarray) and cells.ndim > 2:
        frames = as_observations(real_numbers(cells, name, columns.path), source.channels)
        return frames[:, None] if frames.ndim == 3 else frames
    values, _, _ = columns.numbers([name], "x")
    return values if values.shape[1] > 1 else values[:, 0]
