"""Image files as one array of frames."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from kbr.app.tasks.pictures import inside, read_picture
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory

PIXEL = 3 * 4  # bytes of a colour pixel, as float32


def read_frames(
    folder: Path,
    files: Sequence[str],
    where: Sequence[str],
    *,
    resize: Sequence[int] | None,
    max_bytes: int,
) -> np.ndarray:
    """Frames [T, c, h, w], grey or RGB; a row without a file name is a missing frame.

    `where` names the place of each file name, for errors.
    """
    if resize is not None and (len(resize) != 2 or min(resize) < 1):
        raise KbrError(f"data.resize must be [height, width]; got {list(resize)}.")
    paths = [
        inside(folder, name, place) if name else None
        for name, place in zip(files, where, strict=True)
    ]
    frames: list[np.ndarray | None] = []
    first: np.ndarray | None = None
    for path, place in zip(paths, where, strict=True):
        frame = None if path is None else _frame(path, resize, max_bytes)
        if frame is not None and first is None:
            first = frame
            check_memory(
                2.0 * len(files) * frame.nbytes,  # one by one, and stacked
                what=f"{len(files):,} frames of {frame.shape[1]} x {frame.shape[2]} pixels",
                advice="Set data.resize=[height,width], or save them as x.npy, read by blocks.",
            )
        if frame is not None and first is not None and frame.shape != first.shape:
            sizes = " and ".join(f"{h} x {w} x {c}" for c, h, w in (first.shape, frame.shape))
            raise KbrError(
                f"all frames must have one size and colour; found {sizes} ({place}). Set "
                "data.resize=[height,width], or convert the files."
            )
        frames.append(frame)
    if first is None:
        raise KbrError(f"{folder} names no frames at all: the column of file names is empty.")
    empty = np.full(first.shape, np.nan, dtype=np.float32)
    return np.stack([empty if frame is None else frame for frame in frames])


def _frame(path: Path, resize: Sequence[int] | None, max_bytes: int) -> np.ndarray:
    opened = read_picture(path, max_pixels=max_bytes // PIXEL, setting="data.max_gb")
    deep = opened.mode[0] in "IF"  # more than 8 bits: "L" would clip them
    image = opened.convert("F" if deep else "L" if opened.mode in ("1", "L") else "RGB")
    if resize is not None:
        image = image.resize((int(resize[1]), int(resize[0])), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
