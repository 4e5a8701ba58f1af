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
    """What one model chose at one x."""

    model: str
    at: str
    notes: Notes | None  # None where the runs recorded none
    edges: str
    ranges: dict[str, tuple[str, float | None]]  # of each column: a text, a number to sort it by


def choices_of(comparison: Comparison) -> list[Choice]:
    """Of every model that chooses something; all have the same columns."""
    names = _columns(comparison)
    trials: dict[tuple[str, str], list[ResultRow]] = {}
    for row in comparison.rows:
        trials.setdefault((row["model"], comparison.at(row)), []).append(row)
    choices = []
    for (model, at), rows in trials.items():
        ranges = {name: _range(rows, name) for name in names}
        if any(text for text, _ in ranges.values()):
            notes = comparison.notes.get((model, at))
            edges = "not recorded" if notes is None else edge_counts(notes, len(rows))
            choices.append(Choice(model=model, at=at, notes=notes, edges=edges, ranges=ranges))
    return choices


def edge_counts(notes: Notes, trials: int) -> str:
    """Edges of several runs added up: `lam upper (0.1): 3 of 30`; other notes as they are."""
    counts: Counter[tuple[str, str, float]] = Counter()
    for edge in notes.edges:
        counts[edge.name, edge.end, edge.value] += edge.count
    edges = [f"{name} {end} ({at:g}): {n} of {trials}" for (name, end, at), n in counts.items()]
    return "; ".join([*edges, *dict.fromkeys(notes.sentences)])


def _columns(comparison: Comparison) -> list[str]:
    """Columns that hold what a model chose; `rmse ...` are errors of runs on own data."""
    names = dict.fromkeys(name for row in comparison.rows for name in row if row[name])
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
