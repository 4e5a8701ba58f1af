"""How far a sweep is, and how long it will take: kept in a file, as cells may run in processes."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def grid_of(hydra: DictConfig) -> dict[str, int] | None:
    """How many values a grid sweep gives each key; None for sweepers that decide as they go."""
    if hydra.sweeper.get("_target_") != BASIC:
        return None
    texts = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*texts, *hydra.overrides.task])
    counts = {}  # a key on the command line takes the place of the experiment's own
    for one in overrides:
        swept = one.is_sweep_override() and one.is_discrete_sweep()
        counts[one.get_key_element()] = len(list(one.sweep_string_iterator())) if swept else 1
    return counts


@dataclass(frozen=True, kw_only=True)
class Cell:
    """When a cell ran, in seconds of the clock; one that was skipped took no time to speak of."""

    start: float
    end: float
    skipped: bool


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The cells of this sweep so far, one line of the file for each."""

    path: Path

    def clear(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def add(self, cell: Cell) -> list[Cell]:
        """All cells so far with this one. Short appended lines are whole, whoever else writes."""
        with self.path.open("a") as file:
            file.write(json.dumps([cell.start, cell.end, cell.skipped]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        read = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [Cell(start=start, end=end, skipped=skipped) for start, end, skipped in read]


def seconds_left(cells: Sequence[Cell], total: int | None) -> float | None:
    """Time per cell that ran, times the cells to come; None before one ran or without a total."""
    ran = [cell for cell in cells if not cell.skipped]
    if not ran or total is None:
        return None
    spent = max(cell.end for cell in ran) - min(cell.start for cell in ran)
    return spent / len(ran) * max(0, total - len(cells))


def in_words(seconds: float) -> str:
    """'0.4 s', '40 s', '12 min', '3.5 h'."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
