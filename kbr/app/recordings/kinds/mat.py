"""MATLAB's .mat files (up to v7) as named columns, by scipy."""

import struct
import zlib
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kbr.app.recordings.columns import Columns
from kbr.app.recordings.kinds.arrays import array_columns
from kbr.core.errors import KbrError

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source

HDF5 = b"\x89HDF\r\n\x1a\n"
PACKED = 15  # the type of a compressed element
BLOCK = 2**20  # bytes unpacked at a time
PLAIN = {"double", "single", "logical", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))}
DAMAGE = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, OverflowError, MemoryError),
    *(NotImplementedError, AttributeError, ArithmeticError, UnboundLocalError, zlib.error),
)


def read_mat(source: "Source", path: Path) -> Columns:
    """The arrays x and z as in an npz file, or those that data.x and data.z name, a column each."""
    sizes = variables(path, source.max_bytes)

    def array(name: str) -> np.ndarray:
        found = variable(path, name, source.max_bytes)
        return found if name in ("x", "z") and not by_name else _flat(found)

    by_name = "x" not in sizes and bool(source.x)
    if not by_name:
        return array_columns(source, "mat", path, list(sizes), array)
    return Columns(
        kind="mat",
        path=path,
        names=tuple(sizes),
        get=array,
        x=tuple(source.x or ()),
        z=tuple(source.z or ()),
        lines=range(1, 1 + max(map(prod, sizes.values()), default=0)),
    )


def variables(path: Path, max_bytes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the arrays of numbers in a file, by what it says of itself."""
    from scipy.io import whosmat
    from scipy.io.matlab import MatReadError

    try:
        with path.open("rb") as file:
            start = file.read(520)
    except OSError as error:
        raise KbrError(f"{path} cannot be read: {error.strerror}.") from error
    if HDF5 in (start[:8], start[512:]):
        raise KbrError(
            f"{path} is a .mat file of version 7.3, which is not read. In MATLAB: save('new.mat', "
            "'x', 'z', '-v7')."
        )
    try:
        if _largest(path, max_bytes) > max_bytes:
            raise _too_large(f"an array in {path}", max_bytes)
        found = whosmat(path)
    except (*DAMAGE, MatReadError) as error:
        raise error if isinstance(error, KbrError) else _failed(path, error) from error
    return {str(name): tuple(shape) for name, shape, kind in found if kind in PLAIN}


def variable(path: Path, name: str, max_bytes: int) -> np.ndarray:
    """One array of numbers, once its claimed size is known to be small enough."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if 8 * prod(variables(path, max_bytes)[name]) > max_bytes:
        raise _too_large(f"'{name}' in {path}", max_bytes)
    try:
        return np.asarray(loadmat(path, variable_names=[name])[name])
    except (*DAMAGE, MatReadError) as error:
        raise _failed(path, error) from error


def _largest(path: Path, enough: int) -> int:
    """Bytes of the largest packed element, counted up to `enough`; 0 in files without any."""
    largest, there = 0, path.stat().st_size
    with path.open("rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
        while order is not None and len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            if kind != PACKED:
                file.seek(size, 1)
                continue
            block, unpacker, count = file.read(min(size, there)), zlib.decompressobj(), 0
            while block and count <= enough:
                count += len(unpacker.decompress(block, BLOCK))
                block = unpacker.unconsumed_tail
            largest = max(largest, count)
    return largest


def _too_large(what: str, max_bytes: int) -> KbrError:
    return KbrError(
        f"{what} takes more than data.max_gb={max_bytes / 1e9:g} in memory. Set data.max_gb higher."
    )


def _failed(path: Path, error: BaseException) -> KbrError:
    said = " ".join(str(error).split())[:120]
    return KbrError(f"{path} is damaged or no .mat file: {type(error).__name__}: {said}.")


def _flat(array: np.ndarray) -> np.ndarray:
    """MATLAB's vectors, [T, 1] or [1, T], as [T]."""
    return array.reshape(-1) if 1 in array.shape and array.ndim == 2 else array
