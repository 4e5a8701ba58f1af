"""Arrays as named columns: an npz file, or a folder of .npy files, whose images may stay there."""

import shutil
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kbr.app.recordings.columns import Columns
from kbr.core.errors import KbrError
from kbr.core.io.checkpoint import write_atomically
from kbr.core.io.memory import gigabytes
from kbr.core.io.npy import BLOCK, Npz, map_file

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source

ADVICE = "Save x as x.npy and z as z.npy in a folder of their own: images there are read by blocks."


def read_npz(source: "Source", path: Path) -> Columns:
    """The arrays x and z, and those of sequence ids and time stamps where there are such."""
    npz = Npz(path)

    def array(name: str) -> np.ndarray:
        size, is_x = float(npz.header(name).nbytes), name == columns.x
        if size <= source.max_bytes:
            return npz.read(name, advice=ADVICE)
        if is_x and source.unpack is not None:
            return map_file(_unpacked(npz, name, Path(source.unpack)))
        unpack = f"data.unpack=<folder> to unpack it there once ({gigabytes(size)}), or "
        raise KbrError(
            f"'{name}' in {path} takes {gigabytes(size)} unpacked; at most "
            f"data.max_gb={source.max_gb:g} is read into memory. Set "
            f"{unpack if is_x else ''}data.max_gb higher."
        )

    columns = array_columns(source, "npz", path, npz.names(), array)
    return columns


def read_arrays(source: "Source", folder: Path) -> Columns:
    """The same from x.npy, z.npy and, where there are such, sequence.npy and time.npy."""
    names = [path.stem for path in sorted(folder.glob("*.npy"))]
    return array_columns(
        source, "npy", folder, names, lambda name: map_file(folder / f"{name}.npy")
    )


def array_columns(
    source: "Source", kind: str, path: Path, names: list[str], get: Callable[[str], np.ndarray]
) -> Columns:
    if source.parts and all(name in names for name in source.parts):  # each an array of its own
        if source.needs_z and "z" not in names:
            raise KbrError(f"{path} has no array 'z'; it has {', '.join(names)}. Add z [T, dz].")
        return Columns(
            kind=kind, path=path, names=tuple(names), get=get, x=tuple(source.parts), z="z"
        )
    alone = not source.needs_z and len(names) == 1  # a new recording: no doubt what it holds
    x = names[0] if alone else "x"
    for key in (x, "z") if source.needs_z else (x,):
        if key not in names:
            raise KbrError(
                f"{path} has no array '{key}'; it has {', '.join(names) or 'none'}. Write it "
                "with np.savez(path, x=..., z=...), x [T, ...] and z [T, dz]."
            )
    return Columns(kind=kind, path=path, names=tuple(names), get=get, x=x, z="z")


def _unpacked(npz: Npz, name: str, folder: Path) -> Path:
    """A large x as an .npy file in the folder data.unpack, made once.

    The file can then be read by blocks, which a packed one cannot. Its name holds the checksum of
    its content in the archive, and its content is compared with that before it is trusted.
    """
    checksum, size = npz.checksum(name), float(npz.header(name).nbytes)
    target = folder / f"{npz.path.stem}.{checksum:08x}.x.npy"
    if target.is_file() and _crc(target) == checksum:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    free = float(shutil.disk_usage(folder).free)
    if size > free:
        raise KbrError(
            f"x of {npz.path} takes {gigabytes(size)} unpacked, and {gigabytes(free)} are free in "
            f"data.unpack={folder}. Make room, or name another folder."
        )
    print(f"  unpacking x of {npz.path} once, {gigabytes(size)}, to {target}", flush=True)
    write_atomically(target, partial(npz.unpack, name))
    return target


def _crc(path: Path) -> int:
    checksum = 0
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum
