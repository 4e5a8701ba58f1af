"""From a file to a recording: first its named columns (`READERS`), then what they mean.

Nothing in a file is ever executed: arrays of Python objects are refused. What a file claims is
checked before memory or disk is taken for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from kbr.app.recordings.arrays import ADVICE, read_arrays, read_npz
from kbr.app.recordings.columns import Columns, real_numbers
from kbr.app.recordings.recording import (
    Recording,
    as_observations,
    check,
    listed,
    names_for,
)
from kbr.app.recordings.table import read_csv
from kbr.core.errors import KbrError
from kbr.core.io.file_rows import FileRows
from kbr.core.io.memory import check_memory

STATES = "states.csv"
READING = ("decimal", "file", "resize", "channels")  # keys that a filter keeps of its training
READERS = {".npz": read_npz, ".csv": read_csv, ".tsv": read_csv, ".txt": read_csv}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the data are and which columns are what; the keys of data=recording.

    x, z       npz: names for the columns; CSV: the columns to read (z of a folder: null, all);
    sequence   npz: the key, CSV: the column, of sequence ids; null: `sequence` if it is there;
    time       the same for time stamps;
    decimal    CSV: point or comma;
    file       folder: the column of file names;
    unpack     folder to which a packed x above max_gb is unpacked;
    max_gb     the most that one packed array, or one picture, may take in memory;
    needs_z    False: z may be absent, as in a new recording that is to be filtered only;
    may_lack   which of sequence and time are taken only if they are there.
    """

    path: str | None
    x: Sequence[str] | None = None
    z: Sequence[str] | None = None
    sequence: str | None = None
    time: str | None = None
    decimal: str = "point"
    file: str = "file"
    resize: Sequence[int] | None = None
    channels: str = "auto"
    unpack: str | None = None
    max_gb: float = 0.5
    needs_z: bool = True
    may_lack: Sequence[str] = ()

    def __post_init__(self) -> None:
        for key in ("x", "z"):
            object.__setattr__(self, key, listed(getattr(self, key)))
        if self.resize is not None:
            object.__setattr__(self, "resize", list(self.resize))
        if not self.max_gb > 0:
            raise KbrError(f"data.max_gb must be greater than 0; got {self.max_gb}.")

    @property
    def max_bytes(self) -> int:
        return int(min(self.max_gb, 1e9) * 1e9)

    def column(self, key: str, names: Sequence[str]) -> str | None:
        """The column of the sequence or the time; None where it may be absent and is."""
        name = getattr(self, key) or key
        if getattr(self, key) is None or key in self.may_lack:
            return name if name in names else None
        return str(name)

    def read(self) -> Recording:
        return recording_of(self, self.columns())

    def columns(self) -> Columns:
        """What the file or folder holds by name."""
        if self.path is None:
            raise KbrError(
                "data=recording reads data of your own: set data.path to an npz file, a CSV file, "
                "or a folder: of x.npy and z.npy, or of frames with a CSV of states."
            )
        if not isinstance(self.path, str | Path):
            raise KbrError(
                f"data.path must name one file or folder; got {self.path!r}. Join several files "
                "into one, with a column of sequence ids (data.sequence)."
            )
        path = Path(self.path)
        if path.is_dir():
            return _read_folder(self, path)
        if not path.is_file():
            raise KbrError(f"data.path={path} is no file or folder (looked in {Path.cwd()}).")
        if path.suffix.lower() not in READERS:
            raise KbrError(
                f"data.path={path} must end in .npz or .csv, or be a folder; got "
                f"{path.suffix or 'no ending'}."
            )
        return READERS[path.suffix.lower()](self, path)


def _read_folder(source: Source, folder: Path) -> Columns:
    tables = sorted(folder.glob("*.csv"))
    has_x, has_z = ((folder / f"{key}.npy").is_file() for key in ("x", "z"))
    if has_x and (has_z or not source.needs_z):
        return read_arrays(source, folder)
    if has_x and not tables:
        raise KbrError(f"the folder {folder} has x.npy and no z.npy. Save z [T, dz] as z.npy.")
    states = [path for path in tables if path.name == STATES] or tables
    if len(states) != 1:
        there = ", ".join(path.name for path in tables) or "none"
        raise KbrError(
            f"the folder {folder} needs one CSV of states, {STATES}, with a column '{source.file}' "
            f"of frames; CSV files there: {there}."
        )
    from kbr.app.recordings.frames import read_frames

    return read_frames(source, states[0])


def recording_of(source: Source, columns: Columns) -> Recording:
    """Columns as observations, states, sequence ids and time stamps.

    Sequences become blocks in order of appearance; what is infinite is missing.
    """
    by, at = (source.column(key, columns.names) for key in ("sequence", "time"))
    ids = None if by is None else columns.ids(by)
    stamps, time, unit = (None, None, "") if at is None else columns.times(at)
    z_columns = listed(columns.z) or ()
    has_truth = source.needs_z or (bool(z_columns) and set(z_columns) <= set(columns.names))
    x, x_names, x_dtype, file = _observations(source, columns)
    z, z_dtype = np.full((len(x), len(source.z or ())), np.nan), "absent"
    if has_truth:
        z, z_dtype = columns.numbers(z_columns, "z")
    rows = {"x": x, "z": z, "sequence": ids, "time": time}
    lengths = {key: len(values) for key, values in rows.items() if values is not None}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} {count}" for key, count in lengths.items())
        raise KbrError(
            f"arrays in {columns.path} must have one row for each step; got rows: {counts}."
        )
    sequence, order = _blocks(np.zeros(len(z)) if ids is None else ids)
    if file is not None and (np.diff(order) != 1).any():
        raise KbrError(
            "the rows of a sequence must follow each other in an .npy file of frames, which is "
            "read in order. Sort its rows by sequence."
        )
    z_names = source.z if isinstance(columns.z, str) else columns.z
    recording = Recording(
        kind=columns.kind,
        x=x[order] if file is None else x,
        z=z[order],
        x_names=x_names,
        z_names=names_for(z_names, z.shape[1], "z", "z"),
        sequence=sequence,
        time=None if time is None else time[order],
        time_unit=unit,
        dtypes=(x_dtype, z_dtype),
        file=file,
        has_truth=has_truth,
        unused=columns.others(
            [*(listed(columns.x) or ()), *(z_columns if has_truth else ()), by, at]
        ),
        row=order,
        ids=None if ids is None else ids[order],
        stamps=None if stamps is None else stamps[order],
    )
    check(recording)
    return recording


def _observations(
    source: Source, columns: Columns
) -> tuple[np.ndarray, tuple[str, ...], str, FileRows | None]:
    """x, its names, its dtype in the file, and its rows where they are images that stay there."""
    if isinstance(columns.x, tuple):
        x, dtype = columns.numbers(columns.x, "x")
        return x, names_for(columns.x, x.shape[1], "x", "x"), dtype, None
    array = real_numbers(columns.get(columns.x), "x", columns.path)
    if columns.kind == "frames":
        x, letter, dtype = array, "channel", "image files"
    else:
        x, letter, dtype = as_observations(array, source.channels), "x", str(array.dtype)
    names = names_for(None if x.ndim == 4 else source.x, x.shape[1], letter, "x")
    if isinstance(array, np.memmap) and x.ndim == 4:
        layout = partial(as_observations, channels=source.channels)
        return x, names, dtype, FileRows(Path(str(array.filename)), layout=layout)
    return _floating(x, columns.path), names, dtype, None


def _blocks(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sequences numbered in order of appearance, and the rows [T] in that order."""
    _, first, index = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    sequence = rank[index.reshape(-1)]
    order = np.argsort(sequence, kind="stable")
    return sequence[order], order


def _floating(x: np.ndarray, path: Path) -> np.ndarray:
    """float64 for vectors, float32 for images; what is infinite is missing."""
    kind = np.dtype(np.float32 if x.ndim == 4 else np.float64)
    if x.dtype != kind:
        check_memory(float(x.size * kind.itemsize), what=f"x in {path}", advice=ADVICE)
    with np.errstate(over="ignore"):
        values = x.astype(kind, copy=False)
    if (np.isinf(values) & np.isfinite(x)).any():
        raise KbrError(f"x in {path} holds numbers too large for {values.dtype}. Scale it down.")
    return values if np.isfinite(values).all() else np.where(np.isfinite(values), values, np.nan)
