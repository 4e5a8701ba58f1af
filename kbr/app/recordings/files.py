"""Which files data.path names, and several recordings as one: each file its own sequences."""

import os
import re
from collections.abc import Collection, Sequence
from glob import glob, has_magic
from pathlib import Path

import numpy as np

from kbr.app.recordings.recording import Recording
from kbr.core.errors import KbrError
from kbr.core.units.layout import Layout

Paths = str | Path | Sequence[str | Path]

STATES = "states.csv"  # of a folder of frames
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".gif"}
LEAVE_OUT = "To leave a file out, list the others (data.path=[a,b]) or name them by a pattern (*)."
ADVICE = {  # what to do with files that are not read, by their endings
    "Save the sheet as CSV.": (".xlsx", ".xls", ".ods"),
    "Save its arrays with np.savez(path, x=..., z=...).": (".h5", ".hdf5", ".nc", ".zarr"),
    "It is never unpickled: save its arrays with np.savez.": (".pkl", ".pickle", ".pt", ".pth"),
    "Write it as .parquet.": (".feather", ".arrow", ".orc"),
    "Export its topics as one CSV file, a row for each step.": (".bag", ".db3", ".mcap"),
    "Write its rows as CSV; kbr-filter alone reads .jsonl.": (".json", ".jsonl"),
    "Unpack it.": (".gz", ".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z"),
    "Save its samples, or features of them, with np.savez.": (".wav", ".mp3", ".flac"),
    "Put x.npy and z.npy into a folder, and name the folder.": (".npy",),
}


def files_of(path: Paths, endings: Collection[str]) -> list[Path]:
    """The files and folders that one path, a pattern or a list of them names, each a recording.

    A folder is one recording where it holds x.npy, states.csv, or pictures and one CSV file; else
    each of its files with one of these endings is.
    """
    entries = [path] if isinstance(path, str | Path) else list(path)
    found = [file for entry in entries for file in _named(Path(entry), endings)]
    if twice := sorted({str(file) for file in found if found.count(file) > 1}):
        raise KbrError(f"data.path names {twice[0]} twice. Name every file once.")
    return found


def is_one(folder: Path) -> bool:
    """Whether a folder is a recording: of arrays, or of frames with their states."""
    if (folder / "x.npy").is_file() or (folder / STATES).is_file():
        return True
    pictures = (file for file in folder.rglob("*") if file.suffix.lower() in PICTURES)
    return len([*folder.glob("*.csv")]) < 2 and next(pictures, None) is not None


def refusal(path: Path, endings: Collection[str]) -> KbrError:
    """Why a file of this ending is not read, and what to do."""
    ending = path.suffix.lower()
    advice = next((words for words, kinds in ADVICE.items() if ending in kinds), "Save it as CSV.")
    return KbrError(
        f"data.path={path} must be a folder or end in {', '.join(sorted(endings))}; got "
        f"{path.suffix or 'no ending'}. {advice}"
    )


def title_of(path: Paths) -> str:
    """A name for what was read, as a folder of results may have it."""
    parts = (Path(path) if isinstance(path, str | Path) else Path(path[0]).parent).parts
    plain = [part for part in parts if not has_magic(part)]
    return Path(plain[-1]).stem if plain else "recordings"


def joined(parts: Sequence[Recording], paths: Sequence[Path]) -> Recording:
    """Several recordings one after the other; ids are the names of their files."""
    first = parts[0]
    if len(parts) == 1:
        return first
    top = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    for part, path in zip(parts, paths, strict=True):
        if part.file is not None:
            raise KbrError(
                f"{path} has frames that are read by blocks, which only one x.npy can be. Join "
                "the arrays into one folder, with a sequence.npy of ids."
            )
        for name in ("layout", "x_names", "z_names", "u_names", "time_unit", "has_truth"):
            if (theirs := getattr(part, name)) != (own := getattr(first, name)):
                raise _differs(name, (paths[0], own), (path, theirs))
        if part.x.shape[1:] != first.x.shape[1:]:
            shapes = (list(one.x.shape[1:]) for one in (first, part))
            raise _differs("shape of x", *zip((paths[0], path), shapes, strict=True))
        for name, there in (("time", part.time), ("sequence", part.ids)):
            own = first.time if name == "time" else first.ids
            if (there is None) != (own is None):
                has, lacks = (paths[0], path) if there is None else (path, paths[0])
                raise KbrError(
                    f"{has} has a column of {name} (data.{name}), and {lacks} has none. All files "
                    "must have it, or none."
                )
    names = [path.absolute().relative_to(top).as_posix() for path in paths]
    ids = [
        np.array([name] * len(part) if part.ids is None else [f"{name}:{i}" for i in part.ids])
        for part, name in zip(parts, names, strict=True)
    ]
    counts = [int(part.sequence[-1]) + 1 for part in parts]
    lengths = [len(part) for part in parts]
    timed = first.time is not None
    return Recording(
        kind=first.kind,
        x=np.concatenate([part.x for part in parts]),
        z=np.concatenate([part.z for part in parts]),
        x_names=first.x_names,
        layout=first.layout,
        z_names=first.z_names,
        sequence=np.concatenate(_shifted([part.sequence for part in parts], counts)),
        row=np.concatenate(_shifted([part.row for part in parts], lengths)),
        time=np.concatenate([part.time for part in parts]) if timed else None,
        u=None if first.u is None else np.concatenate([part.u for part in parts]),
        u_names=first.u_names,
        time_unit=first.time_unit,
        dtypes=first.dtypes,
        has_truth=first.has_truth,
        unused=tuple(dict.fromkeys(name for part in parts for name in part.unused)),
        ids=np.concatenate(ids),
        stamps=np.concatenate([part.stamps for part in parts]) if timed else None,
        files=tuple(names),
        notes=(
            f"{len(parts)} files, in the order {names[0]}, {names[1]} ...: {sum(counts)} sequences",
        ),
    )


def _named(entry: Path, endings: Collection[str]) -> list[Path]:
    if entry.is_dir() and not is_one(entry):
        inside = [file for file in entry.iterdir() if file.suffix.lower() in endings]
        return sorted(inside, key=_natural) or [entry]
    if not entry.exists() and has_magic(str(entry)):
        matching = sorted(map(Path, glob(str(entry), recursive=True)), key=_natural)
        if not matching:
            raise KbrError(f"no file matches data.path={entry} (looked in {Path.cwd()}).")
        return [file for match in matching for file in _named(match, endings)]
    return [entry]


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """walk_2 before walk_10."""
    words = re.split(r"(\d+)", path.as_posix())
    return [(word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]


def _shifted(parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
    """Numbers of each part, counted on from those of the parts before."""
    before = np.cumsum([0, *sizes[:-1]])
    return [part + at for part, at in zip(parts, before, strict=True)]


def _differs(what: str, *sides: tuple[Path, object]) -> KbrError:
    said = " and ".join(f"{path} has {_words(value)}" for path, value in sides)
    name = {"time_unit": "time", "has_truth": "columns of z", "layout": "parts of x"}.get(
        what, what
    )
    return KbrError(f"all files must agree in {name.replace('_', ' ')}; {said}. {LEAVE_OUT}")


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, Layout):
        return value.words()
    words = {"s": "dates", "": "numbers", True: "them", False: "none"}
    return words[value] if isinstance(value, str | bool) else str(value)
