"""A run folder: what is written, in which form, and never half."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from kbr.app.sweep.progress import SweepProgress
from kbr.core.io.checkpoint import write_atomically

METRICS = "metrics.json"
RESULTS = "results.csv"
MANIFEST = "run.json"
DATA = "data.json"  # of runs on own data: columns, units, scaling
FAILURE = "failure.txt"
LOCK = ".lock"  # held by the process that writes
STORY = Path("figures") / "story.png"  # of a real recording
BEST = Path("checkpoints") / "best.ckpt"


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where a run writes and what it may use."""

    folder: Path
    trainer: dict[str, Any]
    logger: DictConfig
    callbacks: Sequence[DictConfig] = ()  # of Lightning
    resume: Path | None = None
    quiet: bool = False  # a sweep has lines of its own
    sweep: SweepProgress | None = None  # that this run is a cell of, if any
    is_first: bool = True  # of several workers: the one that writes

    @property
    def is_shown(self) -> bool:
        """Whether there is somebody to see how far training is."""
        return self.is_first and not self.quiet

    def logger_in(self, folder: Path) -> Any:
        """The logger of a trial, writing into its folder unless the config names a place."""
        logger = instantiate(self.logger)
        if not isinstance(logger, partial):
            return logger
        return logger(**({} if "save_dir" in logger.keywords else {"save_dir": folder}))


def write_bytes(path: Path, content: bytes) -> None:
    """Whole or absent: a reader sees the old file or the new one."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def write_json(path: Path, values: dict[str, Any]) -> None:
    write_bytes(path, (json.dumps(values, indent=2) + "\n").encode())


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_bytes(path, csv_text(rows).encode())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with the union of all columns, in order of first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_json(path: Path) -> dict[str, Any] | None:
    """Named values; None if the file is missing or damaged."""
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
