"""How far a sweep is, and how long it will take: kept in a file, as cells may run in processes."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

from kbr.app.text.numbers import duration

FILE = ".progress"  # in the sweep's folder: a line for the cells, then one for each part done
LENGTH = "data.n_train"  # a cell's time grows with it
LONG_TRIAL = 10.0  # seconds from which on the end of a trial is said


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The keys that tell cells apart, and the time of each cell beside the others'.

    `costs` is None for sweepers that decide as they go.
    """

    varied: Sequence[str] = ()
    costs: Mapping[str, float] | None = None

    @classmethod
    def of(cls, grid: Mapping[str, Sequence[str]] | None, of_models: Mapping[str, float]) -> Self:
        """A cell takes the time of its model, which grows with the length."""
        if grid is None:
            return cls()
        varied, costs = [key for key, values in grid.items() if len(values) > 1], {}
        for values in product(*grid.values()):
            cell = dict(zip(grid, values, strict=True))
            length = cell.get(LENGTH, "1")
            steps = float(length) if length.isdecimal() else 1.0
            costs[cell_name(cell, varied)] = of_models.get(cell.get("model", ""), 1.0) * steps
        return cls(varied=varied, costs=costs)


def cell_name(cell: Mapping[str, str], varied: Sequence[str]) -> str:
    """What sets a cell apart: the keys that are varied, `data.n_train=300` as `n_train=300`."""
    return " ".join(
        cell[key] if key in ("data", "model") else f"{key.rpartition('.')[2]}={cell[key]}"
        for key in [key for key in varied if key in cell] or cell
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """When a share of a cell ran, in seconds of the clock.

    `skipped` is what says nothing about the time of others: finished before, or failed.
    """

    cell: str
    share: float
    start: float
    end: float
    skipped: bool = False


def share_done(parts: Sequence[Part], cell: str) -> float:
    return sum(part.share for part in parts if part.cell == cell)


def cells_done(parts: Sequence[Part]) -> int:
    return sum(share_done(parts, cell) > 1 - 1e-9 for cell in {part.cell for part in parts})


def seconds_left(parts: Sequence[Part], costs: Mapping[str, float] | None) -> float | None:
    """Time for the work done so far, times the work to come; None before any, or without costs."""
    ran = [part for part in parts if not part.skipped]
    if not ran or costs is None:
        return None
    spent = max(0.0, max(part.end for part in ran) - min(part.start for part in ran))
    done = sum(part.share * costs.get(part.cell, 0.0) for part in ran)
    left = sum(cost * (1 - min(1.0, share_done(parts, cell))) for cell, cost in costs.items())
    return spent * left / done if done > 0 else None


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """The file of a sweep, as one of its cells sees it: each part done is added and said."""

    path: Path
    cell: str = ""

    @classmethod
    def of(cls, hydra: Any) -> Self:
        """For the cell of this Hydra config."""
        whole = cls.of_sweep(hydra)
        typed = dict(text.partition("=")[::2] for text in hydra.overrides.task)
        return cls(path=whole.path, cell=cell_name(typed, whole.read()[0].varied))

    @classmethod
    def of_sweep(cls, hydra: Any) -> Self:
        return cls(path=Path(hydra.sweep.dir) / FILE)

    def begin(self, cells: Cells) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(asdict(cells)) + "\n")

    def read(self) -> tuple[Cells, list[Part]]:
        """What is whole in the file: another process may be writing its last line."""
        lines: list[dict[str, Any]] = []
        with suppress(OSError):
            for line in self.path.read_text().splitlines():
                with suppress(json.JSONDecodeError):
                    lines.append(json.loads(line))
        cells = [Cells(**line) for line in lines if "varied" in line]
        return (cells or [Cells()])[0], [Part(**line) for line in lines if "varied" not in line]

    def add(self, part: Part) -> tuple[Cells, list[Part]]:
        """All so far with this part; a full disk costs the estimate, not the run."""
        with suppress(OSError), self.path.open("a") as file:
            file.write(json.dumps(asdict(part)) + "\n")
        return self.read()

    def trial_ended(self, started: float, number: int, trials: int, *, skipped: bool) -> None:
        """One of the trials of this cell is done; said if it took long."""
        if number == trials:
            return  # the end of the cell says so
        now = time.time()
        part = Part(cell=self.cell, share=1 / trials, start=started, end=now, skipped=skipped)
        text = f"trial {number} of {trials}"
        self._add(part, f"{text:<15} {duration(now - started):>7}", now - started >= LONG_TRIAL)

    def cell_ended(self, started: float, result: str, *, skipped: bool) -> None:
        rest = 1 - share_done(self.read()[1], self.cell)
        part = Part(cell=self.cell, share=rest, start=started, end=time.time(), skipped=skipped)
        self._add(part, result, True)

    def _add(self, part: Part, result: str, is_said: bool) -> None:
        """`[ 7/40] oscillatory n_train=900 iw   0.0551 ± 0.0012   12 s  ~12 min left`."""
        cells, parts = self.add(part)
        of = "" if cells.costs is None else f"/{len(cells.costs)}"
        place = f"[{cells_done(parts):>{max(1, len(of) - 1)}}{of}]"
        left = None if part.skipped else seconds_left(parts, cells.costs)
        ahead = f"  ~{duration(left)} left" if left else ""
        if is_said:
            print(f"{place} {self.cell:<33} {result}{ahead}", flush=True)
