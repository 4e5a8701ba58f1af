"""Image files as one array of frames."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from kbr.core.errors import KbrError


def read_frames(
    folder: Path, files: Sequence[str], table: Path, resize: Sequence[int] | None
) -> np.ndarray:
    """Frames [T, c, h, w], grey or RGB; a row without a file name is a missing frame."""
    if resize is not None and (len(resize) != 2 or min(resize) < 1):
        raise KbrError(f"data.resize must be [height, width]; got {list(resize)}.")
    found: list[np.ndarray | None] = []
    for line, name in enumerate(files, start=2):
        found.append(_frame(folder / name, f"line {line} of {table}", resize) if name else None)
    shapes = {frame.shape for frame in found if frame is not None}
    if not shapes:
        raise KbrError(f"{table} names no frames at all.")
    if len(shapes) > 1:
        sizes = ", ".join(sorted(f"{h} x {w} x {c}" for c, h, w in shapes))
        raise KbrError(
            f"all frames must have one size and colour; found {sizes}. Set "
            "data.resize=[height,width], or convert the files."
        )
    empty = np.full(shapes.pop(), np.nan, dtype=np.float32)
    return np.stack([empty if frame is None else frame for frame in found])


def _frame(path: Path, where: str, resize: Sequence[int] | None) -> np.ndarray:
    if not path.is_file():
        raise KbrError(f"{where} names the frame {path}, which is no file.")
    try:
        with Image.open(path) as opened:
            deep = opened.mode[0] in "IF"  # more than 8 bits: "L" would clip them
            image = opened.convert("F" if deep else "L" if opened.mode in ("1", "L") else "RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise KbrError(f"{path} ({where}) cannot be read as an image.") from error
    if resize is not None:
        image = image.resize((int(resize[1]), int(resize[0])), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
