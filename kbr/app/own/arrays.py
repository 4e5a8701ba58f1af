"""Recordings as arrays: an npz file, or a folder of .npy files, whose images may stay in them."""

import shutil
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kbr.app.own.recording import Recording, as_observations, names_for, tidy
from kbr.core.checkpoint import write_atomically
from kbr.core.errors import KbrError
from kbr.core.file_rows import FileRows

if TYPE_CHECKING:
    from kbr.app.own.read import Source

UNPACKED = 500_000_000  # bytes of x above which it is unpacked to a file of its own


def read_npz(source: "Source", path: Path) -> Recording:
    try:
        archive = np.load(path, allow_pickle=False)
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise KbrError(f"{path} cannot be read as npz. Write it with np.savez.") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise KbrError(f"{path} holds one bare array; expected npz with x and z (np.savez).")
    with archive:
        there = list(archive.files)
        for key in ("x", "z"):
            if key not in there:
                raise KbrError(
                    f"{path} has no array '{key}'; it has {', '.join(there) or 'none'}. Write it "
                    "with np.savez(path, x=..., z=...), x [T, ...] and z [T, dz]."
                )
        wanted = {"x": "x", "z": "z", **_names_of_borders(source, there, path)}
        large = extracted(path, "x")
        arrays = {
            key: _opened(large) if key == "x" and large else _member(archive, name, path)
            for key, name in wanted.items()
        }
    return _from_arrays(source, path, arrays, file=large)


def read_arrays(source: "Source", folder: Path) -> Recording:
    """A folder of x.npy, z.npy and, where there are such, sequence.npy and time.npy."""
    there = [path.stem for path in sorted(folder.glob("*.npy"))]
    wanted = {"x": "x", "z": "z", **_names_of_borders(source, there, folder)}
    arrays = {key: _opened(folder / f"{name}.npy") for key, name in wanted.items()}
    return _from_arrays(source, folder, arrays, file=folder / "x.npy")


def _names_of_borders(source: "Source", there: list[str], path: Path) -> dict[str, str]:
    """Arrays of sequence ids and time stamps, where there are such."""
    found = {}
    for key, given in (("sequence", source.sequence), ("time", source.time)):
        if given is not None and given not in there:
            raise KbrError(
                f"data.{key}={given}: {path} has no such array; it has {', '.join(there)}."
            )
        if (given or key) in there:
            found[key] = given or key
    return found


def _from_arrays(
    source: "Source", path: Path, arrays: dict[str, np.ndarray], file: Path | None
) -> Recording:
    """A recording of arrays; images of `file` stay there."""
    x, z = arrays["x"], np.asarray(arrays["z"])
    extra = {key: arrays.get(key) for key in ("sequence", "time")}
    for name, array in (("x", x), ("z", z)):
        _check_numeric(array, name, path)
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
    given_x = None if seen.ndim == 4 else source.x
    stays = file is not None and seen.ndim == 4
    layout = partial(as_observations, channels=source.channels)
    return tidy(
        Recording(
            kind="npz" if path.is_file() else "npy",
            x=seen if stays else _floating(seen),
            file=FileRows(file, layout=layout) if stays and file is not None else None,
            z=z.astype(np.float64),
            x_names=names_for(given_x, seen.shape[1], "x", "x"),
            z_names=names_for(source.z, z.shape[1], "z", "z"),
            sequence=_sequence_ids(extra["sequence"], len(z), path),
            time=None if extra["time"] is None else _seconds(extra["time"], path),
            dtypes=(str(x.dtype), str(z.dtype)),
        )
    )


def extracted(path: Path, key: str) -> Path | None:
    """One large array of an npz file as an .npy file beside it, unpacked once; None if it is small.

    The file can then be read by blocks, which a packed one cannot.
    """
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{key}.npy")
        if member.file_size <= UNPACKED:
            return None
        beside = path.with_name(f"{path.stem}.{key}.npy")
        fresh = beside.is_file() and beside.stat().st_mtime >= path.stat().st_mtime
        if not (fresh and beside.stat().st_size == member.file_size):
            print(f"  unpacking {key} of {path} once, to {beside}", flush=True)

            def unpack(target: Path) -> None:
                with archive.open(member) as packed, target.open("wb") as plain:
                    shutil.copyfileobj(packed, plain, 2**22)

            write_atomically(beside, unpack)
    return beside


def _opened(path: Path) -> np.ndarray:
    """An .npy file, mapped and not read."""
    try:
        mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise KbrError(
            f"{path} cannot be read: kbr reads plain numbers and never unpickles. Write it with "
            "np.save, as a numeric array of one shape for all rows."
        ) from error
    return mapped


def _member(archive: np.lib.npyio.NpzFile, key: str, path: Path) -> np.ndarray:
    try:
        return np.asarray(archive[key])
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        reason = "an array of Python objects" if "Object arrays" in str(error) else "damaged"
        raise KbrError(
            f"'{key}' in {path} is {reason}; kbr reads numbers only and never unpickles. Save it "
            f"as a plain numeric array, one shape for all rows (np.asarray({key}, dtype=float))."
        ) from error


def _check_numeric(array: np.ndarray, name: str, path: Path) -> None:
    if array.dtype.kind not in "buif":
        raise KbrError(f"{name} in {path} must hold real numbers; got dtype {array.dtype}.")
    if array.ndim == 0 or array.size == 0:
        raise KbrError(f"{name} in {path} must have rows; got shape {list(array.shape)}.")


def _floating(x: np.ndarray) -> np.ndarray:
    """float64 for vectors, float32 for images; what is infinite is missing."""
    made = x.astype(np.float32 if x.ndim == 4 else np.float64)
    if not np.isfinite(made).all():
        made[~np.isfinite(made)] = np.nan
    return made


def _sequence_ids(ids: np.ndarray | None, rows: int, path: Path) -> np.ndarray:
    """Numbers for ids of any plain kind."""
    if ids is None:
        return np.zeros(rows, dtype=np.int64)
    if ids.ndim != 1 or (ids.dtype.kind == "f" and not np.isfinite(ids).all()):
        raise KbrError(f"sequence in {path} must be one id for each row [T]; none may be missing.")
    return np.unique(ids, return_inverse=True)[1].reshape(-1) if ids.dtype.kind in "US" else ids


def _seconds(time: np.ndarray, path: Path) -> np.ndarray:
    if time.ndim != 1 or time.dtype.kind not in "uifM":
        raise KbrError(
            f"time in {path} must be numbers or datetime64 [T]; got {time.dtype} of shape "
            f"{list(time.shape)}."
        )
    if time.dtype.kind == "M":
        since = (time - time[0]) / np.timedelta64(1, "s")
        return np.where(np.isnat(time), np.nan, since)
    return time.astype(np.float64)
