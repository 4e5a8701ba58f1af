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


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one model chose at one x: for each name a text, and the number to sort it by."""

    model: str
    at: str
    notes: Notes | None  # None where the runs recorded none
    edges: str
    values: list[tuple[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """All models that choose something, and what."""

    data: str
    x: str | None
    names: list[str]
    rows: list[Choice]


def choices_of(comparison: Comparison) -> Choices | None:
    """None where no model chooses anything."""
    names = [name for name in _columns(comparison) if any(r.get(name) for r in comparison.rows)]
    by_place: dict[tuple[str, str], list[ResultRow]] = {}
    for row in comparison.rows:
        by_place.setdefault((row["model"], comparison.at(row)), []).append(row)
    rows = []
    for (model, at), trials in by_place.items():
        values = [_range(trials, name) for name in names]
        if any(text for text, _ in values):
            notes = comparison.notes.get((model, at))
            edges = "not recorded" if notes is None else edge_counts(notes, len(trials))
            rows.append(Choice(model=model, at=at, notes=notes, edges=edges, values=values))
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


def _range(rows: Sequence[ResultRow], name: str) -> tuple[str, float | None]:
    """The median and the ends; words as they are."""
    try:
        values = [float(row[name]) for row in rows if row.get(name)]
    except ValueError:
        return ", ".join(dict.fromkeys(row[name] for row in rows if row.get(name))), None
    values = [value for value in values if is_in_range(value)]
    if not values:
        return "", None
    middle, low, high = float(np.median(values)), min(values), max(values)
    text = f"{middle:.3g}" if low == high else f"{middle:.3g} ({low:.3g} to {high:.3g})"
    return text, middle
