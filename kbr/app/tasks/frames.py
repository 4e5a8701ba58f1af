"""Frame tables from files: captured frames with their headings, checked and resized.

A table is an .npz archive with `images` [N, H, W, 3] uint8 and `yaw` [N] in degrees, or a folder of
images with a table of headings, a .csv file with the columns file and yaw. Nothing is unpickled.
"""

import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import kbr._torchvision  # noqa: F401  (before torchvision)
from kbr.app.tasks.maze_frames import maze_frames
from kbr.app.tasks.pictures import inside, read_picture
from kbr.core.datasets.frame_table import FrameTable
from kbr.core.errors import KbrError
from kbr.core.io.npy import Npz

CHUNK = 64  # frames resized at a time
RADIANS = 6.3  # a turn in radians, rounded up
LAYOUT = "images [N, H, W, 3] uint8 and yaw [N] in degrees"
RECORD = "Record a table with `python -m kbr.app.tasks.capture_dmlab`, or set data.frames=null."


def heading_frames(
    frames: str | None,
    *,
    maze_seed: int,
    n_frames: int,
    height: int,
    width: int,
    cache: str | Path = "data",
) -> FrameTable:
    """The frames of data=dmlab: captured ones from a file or folder, or drawn ones (None)."""
    for name, size in (("data.height", height), ("data.width", width)):
        if size < 1:
            raise KbrError(f"{name} must be at least 1 pixel; got {size}.")
    if frames is None:
        images, yaw = maze_frames(seed=maze_seed, count=n_frames, cache=Path(cache))
    else:
        images, yaw = captured_frames(Path(frames))
    return FrameTable(
        images=resized(images, height=height, width=width), yaw=torch.from_numpy(yaw).double()
    )


def resized(images: np.ndarray, *, height: int, width: int) -> Tensor:
    """Images [N, H, W, 3] uint8 as [N, 3, height, width] in [0, 1], antialiased."""
    from torchvision.transforms.v2 import functional

    small = []
    for part in torch.split(torch.from_numpy(images), CHUNK):
        pixels = part.permute(0, 3, 1, 2).float() / 255
        small.append(functional.resize(pixels, [height, width], antialias=True).clamp(0, 1))
    return torch.cat(small)


def captured_frames(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, H, W, 3] uint8 and headings [N] in degrees, from an archive or a folder."""
    if not path.exists():
        raise KbrError(f"data.frames={path} does not exist. {RECORD}")
    images, yaw = _from_folder(path) if path.is_dir() else _from_archive(path)
    _check_images(images, path)
    _check_yaw(yaw, len(images), path)
    return images, yaw


def _from_archive(path: Path) -> tuple[np.ndarray, np.ndarray]:
    npz = Npz(path)
    names = npz.names()
    if "images" not in names:
        raise KbrError(f"{path} has no array called images. Save {LAYOUT}.")
    if "yaw" not in names:
        raise KbrError(
            f"{path} has frames without headings: no array called yaw. Save {LAYOUT}: the heading "
            "of every frame is what is to be learned."
        )
    advice = "Record fewer or smaller frames."
    return npz.read("images", advice=advice), npz.read("yaw", advice=advice)


def _from_folder(path: Path) -> tuple[np.ndarray, np.ndarray]:
    tables = sorted(path.glob("*.csv"))
    if len(tables) != 1:
        raise KbrError(
            f"{path} has {len(tables)} .csv files; a folder of frames needs one table of headings, "
            "with the columns file and yaw (degrees)."
        )
    try:
        with tables[0].open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except (UnicodeDecodeError, csv.Error) as error:
        raise KbrError(f"{tables[0]} is no table in UTF-8 text: {error}.") from error
    if not rows or not {"file", "yaw"} <= set(rows[0]):
        raise KbrError(
            f"{tables[0]} must have a header line with the columns file and yaw, and a line for "
            f"every frame; got {list(rows[0]) if rows else 'no lines'}."
        )
    try:
        yaw = np.array([float(row["yaw"]) for row in rows])
    except (TypeError, ValueError) as error:
        raise KbrError(f"yaw in {tables[0]} must be numbers, in degrees: {error}.") from error
    images = [
        _image(inside(path, row["file"] or "", f"row {k} of {tables[0]}"))
        for k, row in enumerate(rows, start=1)
    ]
    sizes = sorted({image.shape[:2] for image in images})
    if len(sizes) > 1:
        raise KbrError(
            f"The frames in {path} must all have one size; got (height, width) of {sizes[:3]}. "
            "Resize them to one."
        )
    return np.stack(images), yaw


def _image(path: Path) -> np.ndarray:
    """One picture, which must be RGB: what the channels mean is not for us to guess."""
    image = read_picture(path)
    if image.mode != "RGB":
        kind = {"L": "greyscale", "RGBA": "RGBA"}.get(image.mode, f"of mode {image.mode}")
        raise KbrError(f"{path} must be an RGB image; it is {kind}. Convert it to RGB.")
    return np.asarray(image)


def _check_images(images: np.ndarray, path: Path) -> None:
    shape = images.shape
    if images.ndim != 4 or shape[-1] != 3:
        kind = "no images"
        if images.ndim == 3:
            kind = "a single image" if shape[-1] == 3 else "greyscale"
        elif images.ndim == 4 and shape[1] == 3:
            kind = "channels first"
        elif images.ndim == 4:
            kind = {1: "greyscale", 4: "RGBA"}.get(shape[-1], f"of {shape[-1]} channels")
        raise KbrError(
            f"images in {path} must be RGB, [N, H, W, 3]; got shape {list(shape)}: {kind}. Save "
            f"{LAYOUT}."
        )
    if images.dtype != np.uint8:
        raise KbrError(
            f"images in {path} must be uint8, 0 to 255; got {images.dtype}. Save {LAYOUT}."
        )
    if min(shape[1:3]) < 1:
        raise KbrError(f"images in {path} have no pixels; got shape {list(shape)}. {RECORD}")
    if len(images) < 2:
        raise KbrError(
            f"{path} has {len(images)} frame(s); a heading needs a full turn on the spot, hundreds "
            f"of frames. {RECORD}"
        )


def _check_yaw(yaw: np.ndarray, count: int, path: Path) -> None:
    if yaw.shape != (count,):
        raise KbrError(
            f"{path} must have one yaw for every frame, [{count}]; got shape {list(yaw.shape)}."
        )
    if yaw.dtype.kind not in "fiu":
        raise KbrError(f"yaw in {path} must be numbers, in degrees; got {yaw.dtype}.")
    bad = ~np.isfinite(yaw)
    if bad.any():
        raise KbrError(
            f"yaw in {path} must be finite; {int(bad.sum())} of {count} values are NaN or "
            f"infinite, the first at index {int(bad.argmax())}. Remove those frames."
        )
    if np.abs(yaw).max() <= RADIANS:
        raise KbrError(
            f"yaw in {path} must be in degrees; all values are within ±{RADIANS}, which looks like "
            "radians. Save numpy.degrees(yaw)."
        )
