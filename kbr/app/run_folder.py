"""A run folder: what is written, in which form, and never half."""

import csv
import hashlib
import io
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

import kbr
from kbr.app.sweep_progress import SweepProgress
from kbr.core.checkpoint import write_atomically

METRICS = "metrics.json"
RESULTS = "results.csv"
MANIFEST = "run.json"
DATA = "data.json"  # of runs on own data: columns, units, scaling
FAILURE = "failure.txt"
LOCK = ".lock"  # held by the process that writes
BEST = Path("checkpoints") / "best.ckpt"


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where a run writes and what it may use."""

    folder: Path
    trainer: dict[str, Any]
    logger: DictConfig
    resume: Path | None = None
    quiet: bool = False  # a sweep has lines of its own
    sweep: SweepProgress | None = None  # that this run is a cell of, if any
    is_first: bool = True  # of several workers: the one that writes


def write_bytes(path: Path, content: bytes) -> None:
    """Whole or absent: a reader sees the old file or the new one."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def write_json(path: Path, values: dict[str, Any]) -> None:
    write_bytes(path, (json.dumps(values, indent=2) + "\n").encode())


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """CSV with the union of all columns, in order of first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())


def fingerprint(config: DictConfig) -> str:
    """A hash of what decides the numbers: settings, the content of data files, kbr's version."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    free = ("resume", "logger", "figure", "trust")
    decisive = {k: v for k, v in plain.items() if k not in free}
    read = {str(path): content_digest(path) for path in data_files(config.data)}
    text = json.dumps([decisive, read, kbr.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def data_files(data: DictConfig) -> list[Path]:
    """Files and folders that a data set is read from: own recordings, dSprites, frames."""
    names = [data.get("frames"), None if data.get("source") == "rendered" else data.get("path")]
    paths = [Path(name) for name in names if isinstance(name, str)]
    return [path for path in paths if path.exists()]


def content_digest(path: Path) -> str:
    """Of a file, or of all files in a folder with their names; read once while they stay alike."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file()]
    whole = hashlib.sha256()
    for file in files:
        stat = file.stat()
        whole.update(str(file.relative_to(path)).encode())
        whole.update(_file_digest(file, stat.st_size, stat.st_mtime_ns))
    return whole.hexdigest()


@cache
def _file_digest(file: Path, size: int, changed: int) -> bytes:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def manifest(folder: Path, mark: str) -> dict[str, Any]:
    """What was run (its `fingerprint` as `mark`), with which versions, where, and the digests of
    the files it left."""
    return {
        "fingerprint": mark,
        "files": {name: content_digest(folder / name) for name in (METRICS, RESULTS)},
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
    done = _read_json(folder / MANIFEST)
    if done is None:
        return f"{MANIFEST} is damaged"
    if done.get("fingerprint") != mark:
        return "the settings, the data or kbr's version changed"
    files = done.get("files")
    for name in (METRICS, RESULTS):
        path, known = folder / name, files.get(name) if isinstance(files, dict) else None
        if not path.is_file() or content_digest(path) != known:
            return f"{name} is missing, damaged or altered"
    return None


def read_metrics(folder: Path) -> dict[str, Any]:
    """metrics.json; empty if it is missing or damaged."""
    return _read_json(folder / METRICS) or {}


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


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
