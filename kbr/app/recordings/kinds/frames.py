"""A folder of image files as named columns: a CSV of states, with the frames as its column x."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from kbr.app.recordings.columns import Columns
from kbr.app.recordings.kinds.table import read_table
from kbr.app.tasks.pictures import inside, read_picture
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source

PIXEL = 3 * 4  # bytes of a colour pixel, as float32


def read_frames(source: "Source", states: Path) -> Columns:
    """The table `states`, whose column data.file names a frame [c, h, w] for each row."""
    table = read_table(states, source)
    columns = table.z
    if not source.z and source.needs_z:
        taken = [source.file, *(source.column(key, table.names) for key in ("sequence", "time"))]
        taken += source.u or ()
        columns = tuple(name for name in table.names if name not in taken)
        if not columns:
            raise KbrError(f"{states} has no columns of states beside {', '.join(table.names)}.")
    table.check([source.file], "data.file")

    def column(name: str) -> Any:
        return frame_column(source, table, name) if name == source.file else table.get(name)

    return replace(table, kind="frames", get=column, x=source.file, z=columns)


def frame_column(source: "Source", table: Columns, name: str) -> np.ndarray:
    """Frames [T, c, h, w], grey or RGB, that a column names; a row without a name has none."""
    files, folder = table.get(name), table.path.parent
    resize = checked_size(source.resize)
    paths = [inside(folder, file, table.place(k)) if file else None for k, file in enumerate(files)]
    frames: list[np.ndarray | None] = []
    first: np.ndarray | None = None
    for row, path in enumerate(paths):
        frame = None if path is None else _frame(path, resize, source.max_bytes)
        frames.append(frame)
        if frame is None:
            continue
        if first is None:
            first = frame
            check_memory(
                2.0 * len(files) * frame.nbytes,  # one by one, and stacked
                what=f"{len(files):,} frames of {frame.shape[1]} x {frame.shape[2]} pixels",
                advice="Set data.resize=[height,width], or save them as x.npy, read by blocks.",
            )
        if frame.shape != first.shape:
            sizes = " and ".join(f"{h} x {w} x {c}" for c, h, w in (first.shape, frame.shape))
            raise KbrError(
                f"all frames must have one size and colour; found {sizes} ({table.place(row)}). "
                "Set data.resize=[height,width], or convert the files."
            )
    if first is None:
        raise KbrError(f"{folder} names no frames at all: the column of file names is empty.")
    empty = np.full(first.shape, np.nan, dtype=np.float32)
    return np.stack([empty if frame is None else frame for frame in frames])


def checked_size(resize: Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width of data.resize."""
    if resize is None:
        return None
    if len(resize) != 2 or min(resize) < 1:
        raise KbrError(f"data.resize must be [height, width]; got {list(resize)}.")
    return int(resize[0]), int(resize[1])


def _frame(path: Path, resize: tuple[int, int] | None, max_bytes: int) -> np.ndarray:
    opened = read_picture(path, max_pixels=max_bytes // PIXEL, setting="data.max_gb")
    deep = opened.mode[0] in "IF"  # more than 8 bits: "L" would clip them
    image = opened.convert("F" if deep else "L" if opened.mode in ("1", "L") else "RGB")
    if resize is not None:
        image = image.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
