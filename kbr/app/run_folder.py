"""A run folder: what is written, in which form, and never half."""

import csv
import hashlib
import io
import json
import os
import platform
import subprocess
from dataclasses import dataclass
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
    """A hash of what decides the numbers: the config without folders and progress."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    decisive = {k: v for k, v in plain.items() if k not in ("resume", "logger", "figure")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def manifest(config: DictConfig) -> dict[str, Any]:
    """What was run, with which versions, where."""
    return {
        "fingerprint": fingerprint(config),
        "kbr": kbr.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "commit": _commit(),
    }


def is_finished(folder: Path, config: DictConfig) -> bool:
    """Whether the folder holds the complete results of exactly this config."""
    try:
        done = json.loads((folder / MANIFEST).read_text())
        complete = "test/mse" in json.loads((folder / METRICS).read_text())
    except (OSError, json.JSONDecodeError):
        return False
    return (
        complete and (folder / RESULTS).is_file() and done.get("fingerprint") == fingerprint(config)
    )


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
