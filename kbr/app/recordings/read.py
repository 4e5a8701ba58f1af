"""From a file to a recording: first its named columns (`READERS`), then what they mean.

Nothing in a file is ever executed: arrays of Python objects are refused. What a file claims is
checked before memory or disk is taken for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from kbr.app.recordings.columns import Columns, real_numbers
from kbr.app.recordings.files import LEAVE_OUT, STATES, Paths, files_of, joined, refusal
from kbr.app.recordings.kinds.arrays import ADVICE, read_arrays, read_npz
from kbr.app.recordings.kinds.beside import parts_of
from kbr.app.recordings.kinds.mat import read_mat
from kbr.app.recordings.kinds.parquet import read_parquet
from kbr.app.recordings.kinds.table import read_csv
from kbr.app.recordings.kinds.video import FORMATS, read_video
from kbr.app.recordings.recording import (
    Recording,
    as_observations,
    check,
    check_time,
    listed,
    names_for,
)
from kbr.core.errors import KbrError
from kbr.core.io.file_rows import FileRows
from kbr.core.io.memory import check_memory
from kbr.core.units.layout import Layout

READING = ("decimal", "rename", "file", "resize", "channels", "u")  # keys that a filter keeps
READERS = {
    ".npz": read_npz,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".txt": read_csv,
    ".parquet": read_parquet,
    ".mat": read_mat,
    **dict.fromkeys(FORMATS, read_video),
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the data are and which columns are what; the keys of data=recording.

    path       a file, a folder, a pattern (logs/*.csv) or a list of them; each file of several is
               a sequence, or has sequences of its own;
    x, z       npz: names for the columns; CSV: the columns to read (z of a folder: null, all);
    u          columns (npz: arrays) of control inputs, of which a row holds what led to it;
    sequence   npz: the key, CSV: the column, of sequence ids; null: `sequence` if it is there;
    time       the same for time stamps;
    decimal    CSV: point or comma;
    rename     tables: other names for columns, {in the file: here};
    file       folder: the column of file names;
    unpack     folder to which a packed x above max_gb is unpacked;
    max_gb     the most that one packed array, or one picture, may take in memory;
    needs_z    False: z may be absent, as in a new recording that is to be filtered only;
    may_lack   which of sequence and time are taken only if they are there;
    parted     whether columns of x may be absent by themselves;
    parts      what the sensors name: columns, also of file names of frames, or arrays of an npz;
    known      of a filter that is to answer: what its x holds beside numbers.
    """

    path: Paths | None
    x: Sequence[str] | None = None
    z: Sequence[str] | None = None
    u: Sequence[str] | None = None
    sequence: str | None = None
    time: str | None = None
    decimal: str = "point"
    rename: Mapping[str, str] | None = None
    file: str = "file"
    resize: Sequence[int] | None = None
    channels: str = "auto"
    unpack: str | None = None
    max_gb: float = 0.5
    needs_z: bool = True
    may_lack: Sequence[str] = ()
    parted: bool = False
    parts: Sequence[str] = ()
    known: Layout | None = None

    def __post_init__(self) -> None:
        for key in ("x", "z"):
            object.__setattr__(self, key, listed(getattr(self, key)))
        object.__setattr__(self, "u", list(listed(self.u) or ()) or None)
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

    def renamed(self, name: str) -> str:
        return (self.rename or {}).get(name, name)

    def read(self) -> Recording:
        if self.path is None:
            raise KbrError(
                "data=recording reads data of your own: set data.path to files (npz, CSV, parquet, "
                "mat, video), or a folder: of such, of x.npy and z.npy, or of frames with a CSV of "
                "states."
            )
        paths = files_of(self.path, READERS)
        parts = []
        for path in paths:
            try:
                parts.append(recording_of(self, self._columns(path)))
            except KbrError as error:
                if len(paths) == 1 or not path.exists():
                    raise
                said = str(error) if str(path) in str(error) else f"{path}: {error}"
                raise KbrError(f"{said} {LEAVE_OUT}") from error
        recording = joined(parts, paths)
        check(recording)
        return recording

    def _columns(self, path: Path) -> Columns:
        """What a file or folder holds by name."""
        if path.is_dir():
            return _read_folder(self, path)
        if not path.is_file():
            raise KbrError(f"data.path={path} is no file or folder (looked in {Path.cwd()}).")
        if path.suffix.lower() not in READERS:
            raise refusal(path, READERS)
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
    if source.parts:
        return read_csv(source, states[0])
    from kbr.app.recordings.kinds.frames import read_frames

    return read_frames(source, states[0])


def recording_of(source: Source, columns: Columns) -> Recording:
    """Columns as observations, states, sequence ids and time stamps.

    Sequences become blocks in order of appearance; what is infinite is missing.
    """
    by, at = (source.column(key, columns.names) for key in ("sequence", "time"))
    ids = None if by is None else columns.ids(by)
    stamps, time, unit = (None, None, "") if at is None else columns.times(at)
    z_columns = listed(columns.z) or ()
    has_truth = source.needs_z or (bool(z_columns) and columns.holds(z_columns))
    x, x_names, x_dtype, file, layout = _observations(source, columns)
    z, z_found, z_dtype = np.full((len(x), len(source.z or ())), np.nan), z_columns, "absent"
    if has_truth:
        z, z_found, z_dtype = columns.numbers(z_columns, "z")
    u, u_names = _controls(source, columns)
    rows = {"x": x, "z": z, "u": u, "sequence": ids, "time": time}
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
    z_names = source.z if isinstance(columns.z, str) else z_found
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
            [
                *(listed(columns.x) or ()),
                *(z_columns if has_truth else ()),
                *(source.u or ()),
                by,
                at,
            ]
        ),
        row=order,
        ids=None if ids is None else ids[order],
        stamps=None if stamps is None else stamps[order],
        u=None if u is None else u[order],
        u_names=u_names,
        parted=source.parted and x.ndim == 2,
        layout=layout,
    )
    if recording.time is not None:
        check_time(recording.time, recording.sequence, recording.row)
    return recording


def _observations(
    source: Source, columns: Columns
) -> tuple[np.ndarray, tuple[str, ...], str, FileRows | None, Layout | None]:
    """x, its names, its dtype in the file, its rows where they are images that stay there, and
    what it holds beside numbers.
    """
    if isinstance(columns.x, tuple):
        if source.parts and (found := parts_of(source, columns)):
            return found[0], found[1].names, found[1].words(), None, found[1]
        x, names, dtype = columns.numbers(columns.x, "x")
        return x, names_for(names, x.shape[1], "x", "x"), dtype, None, None
    array = real_numbers(columns.get(columns.x), "x", columns.path)
    if columns.kind == "frames":
        x, letter, dtype = array, "channel", "image files"
    else:
        x, letter, dtype = as_observations(array, source.channels), "x", str(array.dtype)
    names = names_for(None if x.ndim == 4 else source.x, x.shape[1], letter, "x")
    if isinstance(array, np.memmap) and x.ndim == 4:
        layout = partial(as_observations, channels=source.channels)
        return x, names, dtype, FileRows(Path(str(array.filename)), layout=layout), None
    return _floating(x, columns.path), names, dtype, None, None


def _controls(source: Source, columns: Columns) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Control inputs [T, du] and their names; an array of several columns has numbered ones."""
    parts, names = [], []
    for name in source.u or ():
        part, _, _ = columns.numbers([name], "u")
        count = part.shape[1]
        parts.append(part)
        names += [name] if count == 1 else [f"{name}_{k + 1}" for k in range(count)]
    return (np.concatenate(parts, 1) if parts else None), tuple(names)


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
