"""Recordings as arrays: an npz file, or a folder of .npy files, whose images may stay in them."""

import shutil
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kbr.app.recordings.recording import Recording, as_observations, names_for, tidy
from kbr.app.recordings.stamps import from_integers
from kbr.core.errors import KbrError
from kbr.core.io.checkpoint import write_atomically
from kbr.core.io.file_rows import FileRows
from kbr.core.io.memory import check_memory, gigabytes
from kbr.core.io.npy import BLOCK, Npz, map_file

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source

ADVICE = "Save x as x.npy and z as z.npy in a folder of their own: images there are read by blocks."


def read_npz(source: "Source", path: Path) -> Recording:
    npz = Npz(path)
    wanted = _wanted(source, npz.names(), path)
    for name in wanted.values():
        _check_size(source, npz, name)
    file = _unpacked(source, npz, wanted["x"])
    arrays = {
        key: map_file(file) if key == "x" and file else npz.read(name, advice=ADVICE)
        for key, name in wanted.items()
    }
    unused = tuple(name for name in npz.names() if name not in wanted.values())
    return _from_arrays(source, path, arrays, file=file, unused=unused)


def read_arrays(source: "Source", folder: Path) -> Recording:
    """A folder of x.npy, z.npy and, where there are such, sequence.npy and time.npy."""
    there = [path.stem for path in sorted(folder.glob("*.npy"))]
    wanted = _wanted(source, there, folder)
    arrays = {key: map_file(folder / f"{name}.npy") for key, name in wanted.items()}
    unused = tuple(name for name in there if name not in wanted.values())
    return _from_arrays(source, folder, arrays, file=folder / f"{wanted['x']}.npy", unused=unused)


def _wanted(source: "Source", there: list[str], path: Path) -> dict[str, str]:
    """The arrays to read; of sequence ids and time stamps where there are such."""
    if not source.needs_z and len(there) == 1:  # a new recording: no doubt what it holds
        return {"x": there[0]}
    for key in ("x", "z"):
        if key not in there and (key == "x" or source.needs_z):
            raise KbrError(
                f"{path} has no array '{key}'; it has {', '.join(there) or 'none'}. Write it "
                "with np.savez(path, x=..., z=...), x [T, ...] and z [T, dz]."
            )
    wanted: dict[str, str] = {key: key for key in ("x", "z") if key in there}
    for key, named in (("sequence", source.sequence), ("time", source.time)):
        if named is not None and named not in there:
            if key in source.may_lack:
                continue
            raise KbrError(
                f"data.{key}={named}: {path} has no such array; it has {', '.join(there)}."
            )
        if (named or key) in there:
            wanted[key] = named or key
    return wanted


def _from_arrays(
    source: "Source",
    path: Path,
    arrays: dict[str, np.ndarray],
    *,
    file: Path | None,
    unused: tuple[str, ...],
) -> Recording:
    """A recording of arrays; images of `file` stay there."""
    extra = {key: arrays.get(key) for key in ("sequence", "time")}
    for name in ("x", "z"):
        if name in arrays:
            _check_numeric(arrays[name], name, path)
    x = arrays["x"]
    z = arrays.get("z", np.full((len(x), len(source.z or ())), np.nan))
    z = z.reshape(-1, 1) if z.ndim == 1 else z
    if z.ndim != 2:
        raise KbrError(f"z in {path} must be [T, dz] or [T]; got shape {list(z.shape)}.")
    lengths = {
        "x": len(x),
        "z": len(z),
        **{k: len(np.atleast_1d(a)) for k, a in extra.items() if a is not None},
    }
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} {count}" for key, count in lengths.items())
        raise KbrError(f"arrays in {path} must have one row for each step; got rows: {shown}.")
    seen = as_observations(x, source.channels)
    x_names = None if seen.ndim == 4 else source.x
    stays = file is not None and seen.ndim == 4
    layout = partial(as_observations, channels=source.channels)
    time, unit = (None, "") if extra["time"] is None else _times(extra["time"], path)
    return tidy(
        Recording(
            kind="npz" if path.is_file() else "npy",
            x=seen if stays else _floating(seen, path),
            file=FileRows(file, layout=layout) if stays and file is not None else None,
            z=z.astype(np.float64),
            x_names=names_for(x_names, seen.shape[1], "x", "x"),
            z_names=names_for(source.z, z.shape[1], "z", "z"),
            sequence=_sequence_ids(extra["sequence"], len(z), path),
            ids=extra["sequence"],
            stamps=extra["time"],
            time=time,
            time_unit=unit,
            dtypes=(str(x.dtype), str(z.dtype) if "z" in arrays else "absent"),
            has_truth="z" in arrays,
            unused=unused,
        )
    )


def _check_size(source: "Source", npz: Npz, name: str) -> None:
    """An error where a packed array is larger than the limit, and not to be unpacked to a file."""
    size, can_unpack = float(npz.header(name).nbytes), name == "x"
    if size > source.max_bytes and not (can_unpack and source.unpack):
        unpack = f"data.unpack=<folder> to unpack it there once ({gigabytes(size)}), or "
        raise KbrError(
            f"'{name}' in {npz.path} takes {gigabytes(size)} unpacked; at most "
            f"data.max_gb={source.max_gb:g} is read into memory. Set "
            f"{unpack if can_unpack else ''}data.max_gb higher."
        )


def _unpacked(source: "Source", npz: Npz, name: str) -> Path | None:
    """A large x as an .npy file in the folder data.unpack, made once; None if it is small.

    The file can then be read by blocks, which a packed one cannot. Its name holds the checksum of
    its content in the archive, and its content is compared with that before it is trusted.
    """
    size = float(npz.header(name).nbytes)
    if source.unpack is None or size <= source.max_bytes:
        return None
    checksum = npz.checksum(name)
    target = Path(source.unpack) / f"{npz.path.stem}.{checksum:08x}.x.npy"
    if target.is_file() and _crc(target) == checksum:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    free = float(shutil.disk_usage(target.parent).free)
    if size > free:
        raise KbrError(
            f"x of {npz.path} takes {gigabytes(size)} unpacked, and {gigabytes(free)} are free in "
            f"data.unpack={source.unpack}. Make room, or name another folder."
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


def _check_numeric(array: np.ndarray, name: str, path: Path) -> None:
    if array.dtype.kind not in "buif":
        raise KbrError(f"{name} in {path} must hold real numbers; got dtype {array.dtype}.")
    if array.ndim == 0 or array.size == 0:
        raise KbrError(f"{name} in {path} must have rows; got shape {list(array.shape)}.")


def _floating(x: np.ndarray, path: Path) -> np.ndarray:
    """float64 for vectors, float32 for images; what is infinite is missing."""
    kind = np.float32 if x.ndim == 4 else np.float64
    check_memory(float(x.size * np.dtype(kind).itemsize), what=f"x in {path}", advice=ADVICE)
    with np.errstate(over="ignore"):
        values = x.astype(kind)
    if (np.isinf(values) & np.isfinite(x)).any():
        raise KbrError(f"x in {path} holds numbers too large for {values.dtype}. Scale it down.")
    if not np.isfinite(values).all():
        values[~np.isfinite(values)] = np.nan
    return values


def _sequence_ids(ids: np.ndarray | None, rows: int, path: Path) -> np.ndarray:
    """Numbers for ids of any plain kind."""
    if ids is None:
        return np.zeros(rows, dtype=np.int64)
    kind = ids.dtype.kind
    if ids.ndim != 1 or kind not in "buifUS" or (kind == "f" and not np.isfinite(ids).all()):
        raise KbrError(f"sequence in {path} must be one id for each row [T]; none may be missing.")
    return np.unique(ids, return_inverse=True)[1].reshape(-1) if kind in "US" else ids


def _times(time: np.ndarray, path: Path) -> tuple[np.ndarray, str]:
    """Time stamps [T] and their unit where the file knows it."""
    if time.ndim != 1 or time.dtype.kind not in "uifMm":
        raise KbrError(
            f"time in {path} must be numbers or datetime64 [T]; got {time.dtype} of shape "
            f"{list(time.shape)}."
        )
    if time.dtype.kind in "Mm":
        since = (time - time[0]) / np.timedelta64(1, "s")
        return np.where(np.isnat(time), np.nan, since), "s"
    if time.dtype.kind in "ui":
        return from_integers(time.tolist()), ""
    return time.astype(np.float64), ""
