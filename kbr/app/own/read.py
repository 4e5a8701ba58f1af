"""From a file to a recording: npz, npy, CSV, or a folder of frames with a CSV of states.

Nothing in a file is ever executed: arrays of Python objects are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbr.app.own.arrays import read_arrays, read_npz
from kbr.app.own.recording import (
    Recording,
    check_different,
    listed,
    names_for,
    tidy,
)
from kbr.app.own.table import Table, read_table
from kbr.core.errors import KbrError

STATES = "states.csv"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the data are and which columns are what; the keys of data=npz.

    x, z       npz: names for the columns; CSV: the columns to read (z of a folder: null, all);
    sequence   npz: the key, CSV: the column, of sequence ids; null: `sequence` if it is there;
    time       the same for time stamps;
    file       folder: the column of file names.
    """

    path: str | None
    x: Sequence[str] | None = None
    z: Sequence[str] | None = None
    sequence: str | None = None
    time: str | None = None
    file: str = "file"
    resize: Sequence[int] | None = None
    channels: str = "auto"

    def __post_init__(self) -> None:
        for key in ("x", "z"):
            object.__setattr__(self, key, listed(getattr(self, key)))

    def read(self) -> Recording:
        if self.path is None:
            raise KbrError(
                "data=npz reads data of your own: set data.path to an npz file, a CSV file, or a "
                "folder: of x.npy and z.npy, or of frames with a CSV of states."
            )
        path = Path(self.path)
        if path.is_dir():
            pair = all((path / f"{key}.npy").is_file() for key in ("x", "z"))
            return read_arrays(self, path) if pair else _read_folder(self, path)
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
    table = read_table(path)
    for key, chosen in (("x", source.x), ("z", source.z)):
        if not chosen:
            raise KbrError(
                f"say which columns of {path} are {key}: data.{key}=[...]. There are: "
                f"{', '.join(table.names)}."
            )
        check_different(chosen, key)
    assert source.x is not None
    assert source.z is not None
    sequence, time = _borders(source, table)
    return tidy(
        Recording(
            kind="csv",
            x=table.numbers(source.x, "x"),
            z=table.numbers(source.z, "z"),
            x_names=tuple(source.x),
            z_names=tuple(source.z),
            dtypes=("text", "text"),
            sequence=sequence,
            time=time,
        )
    )


def _borders(source: Source, table: Table) -> tuple[np.ndarray, np.ndarray | None]:
    """Sequence ids and time stamps."""
    sequence = source.sequence or ("sequence" if "sequence" in table.names else None)
    time = source.time or ("time" if "time" in table.names else None)
    ids = np.zeros(len(table), dtype=np.int64)
    return (
        ids if sequence is None else table.labels(sequence, "sequence"),
        None if time is None else table.times(time),
    )


def _read_folder(source: Source, folder: Path) -> Recording:
    tables = sorted(folder.glob("*.csv"))
    named = [path for path in tables if path.name == STATES] or tables
    if len(named) != 1:
        found = ", ".join(path.name for path in tables) or "none"
        raise KbrError(
            f"the folder {folder} needs one CSV of states, {STATES}, with a column '{source.file}' "
            f"of frames; CSV files there: {found}."
        )
    chosen = named[0]
    table = read_table(chosen)
    sequence, time = _borders(source, table)
    taken = {source.file, source.sequence or "sequence", source.time or "time"}
    columns = list(source.z) if source.z else [name for name in table.names if name not in taken]
    if not columns:
        raise KbrError(f"{chosen} has no columns of states beside {', '.join(table.names)}.")
    check_different(columns, "z")
    from kbr.app.own.frames import read_frames

    x = read_frames(folder, table.text(source.file, "file"), chosen, source.resize)
    return tidy(
        Recording(
            kind="frames",
            x=x,
            z=table.numbers(columns, "z"),
            x_names=names_for(None, x.shape[1], "channel", "x"),
            z_names=tuple(columns),
            dtypes=("image files", "text"),
            sequence=sequence,
            time=time,
        )
    )
