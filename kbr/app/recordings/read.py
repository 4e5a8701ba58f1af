"""From a file to a recording: npz, npy, CSV, or a folder of frames with a CSV of states.

Nothing in a file is ever executed: arrays of Python objects are refused. What a file claims is
checked before memory or disk is taken for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbr.app.recordings.arrays import read_arrays, read_npz
from kbr.app.recordings.recording import (
    Recording,
    check_different,
    listed,
    names_for,
    tidy,
)
from kbr.app.recordings.table import Table, read_table
from kbr.core.errors import KbrError

STATES = "states.csv"


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
        if not self.max_gb > 0:
            raise KbrError(f"data.max_gb must be greater than 0; got {self.max_gb}.")

    @property
    def max_bytes(self) -> int:
        return int(min(self.max_gb, 1e9) * 1e9)

    def read(self) -> Recording:
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
        readers = {".npz": read_npz, ".csv": _read_csv, ".tsv": _read_csv, ".txt": _read_csv}
        if path.suffix.lower() not in readers:
            raise KbrError(
                f"data.path={path} must end in .npz or .csv, or be a folder; got "
                f"{path.suffix or 'no ending'}."
            )
        return readers[path.suffix.lower()](self, path)


def _read_csv(source: Source, path: Path) -> Recording:
    table = read_table(path, source.decimal)
    for key, chosen in (("x", source.x), ("z", source.z)):
        if not chosen and (key == "x" or source.needs_z):
            raise KbrError(
                f"say which columns of {path} are {key}: data.{key}=[...]. {table.there()}"
            )
        check_different(chosen or (), key)
    assert source.x is not None
    borders, taken = _borders(source, table)
    z, has_truth = _states(source, table, list(source.z or ()))
    used = [*source.x, *(source.z or () if has_truth else ()), *taken]
    return tidy(
        Recording(
            kind="csv",
            x=table.numbers(source.x, "x"),
            z=z,
            x_names=tuple(source.x),
            z_names=tuple(source.z or ()),
            dtypes=("text", "text"),
            **borders,
            has_truth=has_truth,
            unused=table.others(used),
        )
    )


def _borders(source: Source, table: Table) -> tuple[dict[str, Any], list[str]]:
    """Sequence ids and time stamps as fields of a recording, and the columns they come from."""
    by, at = (_column(source, key, table) for key in ("sequence", "time"))
    fields: dict[str, Any] = {"sequence": np.zeros(len(table), dtype=np.int64)}
    if by is not None:
        fields["ids"] = np.array(table.text(by, "sequence"))
        fields["sequence"] = table.labels(by, "sequence")
    if at is not None:
        fields["time"], fields["time_unit"], fields["stamps"] = table.times(at)
    return fields, [name for name in (by, at) if name is not None]


def _column(source: Source, key: str, table: Table) -> str | None:
    """The column that was named, or the one that is called like this; None if it may be absent."""
    named = getattr(source, key)
    if named is None:
        return key if key in table.names else None
    return None if key in source.may_lack and named not in table.names else named


def _states(source: Source, table: Table, columns: list[str]) -> tuple[np.ndarray, bool]:
    """z [T, dz]; NaN where it may be absent and one of its columns is."""
    there = bool(columns) and all(name in table.names for name in columns)
    if there or source.needs_z:
        return table.numbers(columns, "z"), True
    return np.full((len(table), len(columns)), np.nan), False


def _read_folder(source: Source, folder: Path) -> Recording:
    tables = sorted(folder.glob("*.csv"))
    has_x, has_z = ((folder / f"{key}.npy").is_file() for key in ("x", "z"))
    if has_x and (has_z or not source.needs_z):
        return read_arrays(source, folder)
    if has_x and not tables:
        raise KbrError(f"the folder {folder} has x.npy and no z.npy. Save z [T, dz] as z.npy.")
    named = [path for path in tables if path.name == STATES] or tables
    if len(named) != 1:
        found = ", ".join(path.name for path in tables) or "none"
        raise KbrError(
            f"the folder {folder} needs one CSV of states, {STATES}, with a column '{source.file}' "
            f"of frames; CSV files there: {found}."
        )
    return _read_frames(source, folder, read_table(named[0], source.decimal))


def _read_frames(source: Source, folder: Path, table: Table) -> Recording:
    from kbr.app.recordings.frames import read_frames

    borders, named = _borders(source, table)
    taken = (source.file, *named)
    if source.z or not source.needs_z:
        columns = list(source.z or ())
    else:
        columns = [name for name in table.names if name not in taken]
        if not columns:
            raise KbrError(
                f"{table.path} has no columns of states beside {', '.join(table.names)}."
            )
    check_different(columns, "z")
    z, has_truth = _states(source, table, columns)
    files = table.text(source.file, "file")
    where = [f"line {line} of {table.path}" for line in table.lines]
    x = read_frames(folder, files, where, resize=source.resize, max_bytes=source.max_bytes)
    return tidy(
        Recording(
            kind="frames",
            x=x,
            z=z,
            x_names=names_for(None, x.shape[1], "channel", "x"),
            z_names=tuple(columns),
            dtypes=("image files", "text"),
            **borders,
            has_truth=has_truth,
            unused=table.others((*taken, *(columns if has_truth else ()))),
        )
    )
