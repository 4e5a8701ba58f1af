"""The report's part on hyper-parameters: what was chosen, and how often on the edge of a grid."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kbr.app.report.comparison import COLUMNS, Comparison, ResultRow, varied_keys
from kbr.app.runs.facts import is_in_range
from kbr.app.runs.notes import Notes

MEASURED = {"mse", "val_mse", "coverage_90", "coverage_90_raw", "seconds"}
NOT_CHOSEN = {"data", "model", "seed", *MEASURED, *COLUMNS.values()}


@dataclass(frozen=True)
class Range:
    """The values of one hyper-parameter over trials; `middle` is to sort by."""

    text: str = ""
    middle: float | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one model chose at one x; `notes` is None where it recorded none."""

    model: str
    at: str
    notes: Notes | None
    trials: int
    values: list[Range]

    @property
    def edges(self) -> str:
        return "not recorded" if self.notes is None else edge_counts(self.notes, self.trials)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """All models that choose something, and what."""

    data: str
    x: str | None
    names: list[str]
    rows: list[Choice]

    @property
    def recorded(self) -> int:
        return sum(row.notes is not None for row in self.rows)

    @property
    def on_edge(self) -> int:
        return sum(bool(row.notes and row.notes.edges) for row in self.rows)


def choices_of(comparison: Comparison) -> Choices | None:
    """None where no model chooses anything."""
    names = [name for name in _columns(comparison) if any(r.get(name) for r in comparison.rows)]
    by_place: dict[tuple[str, str], list[ResultRow]] = {}
    for row in comparison.rows:
        by_place.setdefault((row["model"], comparison.at(row)), []).append(row)
    rows = [
        Choice(
            model=model,
            at=at,
            notes=comparison.notes.get((model, at)),
            trials=len(trials),
            values=[_range(trials, name) for name in names],
        )
        for (model, at), trials in by_place.items()
    ]
    rows = [row for row in rows if any(value.text for value in row.values)]
    if not names:
        return None
    return Choices(data=comparison.data, x=comparison.x, names=names, rows=rows)


def edge_counts(notes: Notes, trials: int) -> str:
    """Edges of several runs added up: `lam upper (0.1): 3 of 30`; other notes as they are."""
    counts: Counter[tuple[str, str, float]] = Counter()
    for edge in notes.edges:
        counts[edge.name, edge.end, edge.value] += edge.count
    edges = [f"{name} {end} ({at:g}): {n} of {trials}" for (name, end, at), n in counts.items()]
    return "; ".join([*edges, *dict.fromkeys(notes.sentences)])


def _columns(comparison: Comparison) -> list[str]:
    """Columns that hold what a model chose; `rmse ...` are errors of runs on own data."""
    names = dict.fromkeys(name for row in comparison.rows for name in row)
    others = {*NOT_CHOSEN, *varied_keys(comparison.runs)}
    return [n for n in names if not (n in others or "." in n or n.startswith("rmse "))]


def _range(rows: Sequence[ResultRow], name: str) -> Range:
    try:
        values = [float(row[name]) for row in rows if row.get(name)]
    except ValueError:  # a word, not a number
        return Range(", ".join(dict.fromkeys(row[name] for row in rows if row.get(name))))
    values = [value for value in values if is_in_range(value)]
    if not values:
        return Range()
    middle, low, high = float(np.median(values)), min(values), max(values)
    text = f"{middle:.3g}" if low == high else f"{middle:.3g} ({low:.3g} to {high:.3g})"
    return Range(text, middle)
