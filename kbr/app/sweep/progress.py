"""How far a sweep is, and how long it will take: kept in a file, as cells may run in processes."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob

from kbr.app.text.numbers import in_words

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
LENGTH = "data.n_train"  # a cell's time grows with it
LONG_TRIAL = 10.0  # seconds from which on the end of a trial is said

Grid = Mapping[str, Sequence[str]]  # the values of each key


def searches(hydra: Any) -> bool:
    """Whether the sweeper decides as it goes, by what the cells return."""
    return bool(hydra.sweeper.get("_target_") != BASIC)


def grid_of(hydra: Any) -> dict[str, list[str]] | None:
    """The values a grid sweep gives each key; None for sweepers that decide as they go."""
    if searches(hydra):
        return None
    texts = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*texts, *hydra.overrides.task])
    if any(isinstance(one.value(), Glob) for one in overrides):
        return None  # which options there are, only Hydra's own parser knows
    grid = {}  # a key on the command line takes the place of the experiment's own
    for one in overrides:
        swept = one.is_sweep_override() and one.is_discrete_sweep()
        key = one.get_key_element()
        grid[key] = list(one.sweep_string_iterator()) if swept else [one.get_value_element_as_str()]
    return grid


def cell_name(overrides: Sequence[str], varied: Sequence[str]) -> str:
    """What sets a cell apart: the keys that are varied, `data.n_train=300` as `n_train=300`."""
    given = {key: value for key, _, value in (text.partition("=") for text in overrides)}
    return " ".join(
        given[key] if key in ("data", "model") else f"{key.rpartition('.')[2]}={given[key]}"
        for key in [key for key in varied if key in given] or given
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep will do: the keys it varies and the time of each cell beside the others'.

    `costs` is None for sweepers that decide as they go.
    """

    varied: Sequence[str] = ()
    costs: Mapping[str, float] | None = None

    @classmethod
    def of(cls, grid: Grid | None, of_models: Mapping[str, float]) -> Self:
        """A cell takes the time of its model, which grows with the length."""
        if grid is None:
            return cls()
        varied = [key for key, values in grid.items() if len(values) > 1]
        costs = {}
        for values in product(*grid.values()):
            cell = dict(zip(grid, values, strict=True))
            name = cell_name([f"{key}={value}" for key, value in cell.items()], varied)
            length = cell.get(LENGTH, "1")
            steps = float(length) if length.isdecimal() else 1.0
            costs[name] = of_models.get(cell.get("model", ""), 1.0) * steps
        return cls(varied=varied, costs=costs)


@dataclass(frozen=True, kw_only=True)
class Part:
    """When a share of a cell ran, in seconds of the clock.

    `skipped` is what says nothing about the time of others: found done, or failed.
    """

    cell: str
    share: float
    start: float
    end: float
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A sweep's plan and what is done of it: a line of the file for each."""

    path: Path

    def begin(self, plan: Plan) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(asdict(plan)) + "\n")

    def plan(self) -> Plan:
        return next((Plan(**line) for line in self._lines() if "varied" in line), Plan())

    def parts(self) -> list[Part]:
        return [Part(**line) for line in self._lines() if "varied" not in line]

    def add(self, part: Part) -> list[Part]:
        """All parts so far with this one; a full disk costs the estimate, not the run."""
        with suppress(OSError), self.path.open("a") as file:
            file.write(json.dumps(asdict(part)) + "\n")
        return self.parts()

    def _lines(self) -> list[dict[str, Any]]:
        """The lines that are whole: another process may be writing the last one."""
        try:
            text = self.path.read_text()
        except OSError:
            return []
        lines = []
        for line in text.splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
        return lines


def timeline_of(hydra: Any) -> Timeline:
    return Timeline(path=Path(hydra.sweep.dir) / ".progress")


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
    """Says how far the sweep is whenever one of its cells gets on."""

    timeline: Timeline
    plan: Plan
    cell: str

    @classmethod
    def of(cls, hydra: Any) -> Self:
        """As the cell of this Hydra config sees it."""
        timeline = timeline_of(hydra)
        plan = timeline.plan()
        name = cell_name(hydra.overrides.task, plan.varied)
        return cls(timeline=timeline, plan=plan, cell=name)

    def trial_ended(self, started: float, number: int, trials: int, *, skipped: bool) -> None:
        """One of the trials of this cell is done; said if it took long."""
        if number == trials:
            return  # the end of the cell says so
        now = time.time()
        part = Part(cell=self.cell, share=1 / trials, start=started, end=now, skipped=skipped)
        parts = self.timeline.add(part)
        if now - started >= LONG_TRIAL:
            trial = f"trial {number} of {trials}"
            self._say(parts, f"{trial:<15} {in_words(now - started):>7}")

    def cell_ended(self, started: float, result: str, *, skipped: bool) -> None:
        rest = 1 - share_done(self.timeline.parts(), self.cell)
        part = Part(cell=self.cell, share=rest, start=started, end=time.time(), skipped=skipped)
        self._say(self.timeline.add(part), result, silent=skipped)

    def _say(self, parts: Sequence[Part], result: str, *, silent: bool = False) -> None:
        """`[ 7/40] oscillatory n_train=900 iw   0.0551 ± 0.0012   12 s  ~12 min left`."""
        costs = self.plan.costs
        of = "" if costs is None else f"/{len(costs)}"
        done = cells_done(parts)
        place = f"[{done:>{max(1, len(of) - 1)}}{of}]"
        left = None if silent else seconds_left(parts, costs)
        ahead = f"  ~{in_words(left)} left" if left else ""
        print(f"{place} {self.cell:<33} {result}{ahead}", flush=True)
