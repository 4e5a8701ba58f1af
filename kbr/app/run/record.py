"""run.json: what was run on which data, and whether the folder still holds what it left."""

import hashlib
import json
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

import kbr
from kbr.app.recordings.files import files_of
from kbr.app.recordings.kinds.video import FORMATS
from kbr.app.recordings.read import READERS
from kbr.app.run.folder import BEST, MANIFEST, METRICS, RESULTS, read_json
from kbr.core.errors import KbrError
from kbr.loading import file_digest

LARGE = 1_000_000  # bytes; the digest of a smaller file takes no time worth keeping it


def fingerprint(config: DictConfig) -> str:
    """A hash of what decides the numbers: settings, the content of data files, kbr's version."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    free = ("resume", "logger", "figure", "trust", "optimized_metric")
    decisive = {k: v for k, v in plain.items() if k not in free}
    read = {str(path): content_digest(path) for path in data_files(config.data)}
    text = json.dumps([decisive, read, kbr.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def data_files(data: DictConfig) -> list[Path]:
    """Files and folders that a data set is read from: own recordings, dSprites, frames."""
    names = [data.get("frames"), None if data.get("source") == "rendered" else data.get("path")]
    if root := data.get("root"):  # of a real recording, in a folder of its own or not
        names += [*map(str, Path(root).glob(f"{data.name}*"))] or [str(root)]
    given = [name if isinstance(name, str) else list(name) for name in names if name is not None]
    try:
        paths = [path for name in given for path in files_of(name, READERS)]
    except KbrError:
        return []  # the run says what is wrong
    paths += [path.with_suffix(".csv") for path in paths if path.suffix.lower() in FORMATS]
    return [path for path in paths if path.exists()]


def content_digest(path: Path) -> str:
    """Of a file, or of all files in a folder with their names; large ones are read once."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file()]
    whole = hashlib.sha256()
    for file in files:
        stat = file.stat()
        whole.update(str(file.relative_to(path)).encode())
        read = _known_digest if stat.st_size > LARGE else _digest
        whole.update(read(file, stat.st_size, stat.st_mtime_ns).encode())
    return whole.hexdigest()


def _digest(file: Path, size: int, changed: int) -> str:
    return file_digest(file)


_known_digest = cache(_digest)  # the size and the time of the last change are part of the key


def manifest(folder: Path, mark: str) -> dict[str, Any]:
    """What was run (its `fingerprint` as `mark`), with which versions, where, and the digests of
    the files it left."""
    return {
        "fingerprint": mark,
        "digests": {name: file_digest(folder / name) for name in _results_of(folder)},
        "kbr": kbr.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "commit": _commit(),
    }


def why_unfinished(folder: Path, mark: str) -> str | None:
    """Why the folder does not hold the whole results of exactly this run; None if it does.

    The empty string is for a run that was never finished.
    """
    if not (folder / MANIFEST).is_file():
        return ""
    done = read_json(folder / MANIFEST)
    if done is None:
        return f"{MANIFEST} is damaged"
    if done.get("fingerprint") != mark:
        return "the settings, the data or kbr's version changed"
    if changed := altered_files(folder, done):
        return f"{changed[0]} is missing, damaged or altered"
    return None


def altered_files(folder: Path, done: dict[str, Any]) -> list[str]:
    """Files of a finished run that are not as it left them, by its `run.json`."""
    known = done.get("digests")
    if not isinstance(known, dict):
        return []  # of a version that kept no digests
    names = sorted({METRICS, RESULTS, *_results_of(folder)})
    return [
        name
        for name in names
        if not (folder / name).is_file() or file_digest(folder / name) != known.get(name)
    ]


def _results_of(folder: Path) -> list[str]:
    """Tables and models that a finished run leaves, by their place in its folder."""
    models = [folder / BEST, *sorted(folder.glob(f"seed_*/{BEST}"))]
    return [METRICS, RESULTS, *(str(at.relative_to(folder)) for at in models if at.is_file())]


def _commit() -> str | None:
    """The commit of the checkout kbr runs from, if it is one."""
    root = Path(kbr.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    asked = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or None
