"""The report's part on hyper-parameters: what was chosen, and how often on the edge of a grid."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kbr.app.report.comparison import COLUMNS, Comparison, Row, varied_keys
from kbr.app.report.tables import Cell, Table
from kbr.app.runs.facts import is_in_range
from kbr.app.runs.notes import Notes

MEASURED = {"mse", "val_mse", "coverage_90", "coverage_90_raw", "seconds"}
NOT_CHOSEN = {"data", "model", "seed", *MEASURED, *COLUMNS.values()}
EDGES = "on a grid edge"


@dataclass(frozen=True)
class Choices:
    """A row for each model and x; how many of them recorded their edges, and how many had one."""

    table: Table
    recorded: int
    on_edge: int


def choices_of(comparison: Comparison) -> Choices | None:
    """None where no model chooses anything."""
    names = [name for name in _columns(comparison) if any(r.get(name) for r in comparison.rows)]
    by_place: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.rows:
        by_place.setdefault((row["model"], comparison.at(row)), []).append(row)
    rows, recorded, on_edge = [], 0, 0
    for (model, at), trials in by_place.items():
        values = [_range(trials, name) for name in names]
        if not any(cell.text for cell in values):
            continue
        notes = comparison.notes.get((model, at))
        edges = "not recorded" if notes is None else edge_counts(notes, len(trials))
        recorded += notes is not None
        on_edge += bool(notes and notes.edges)
        place = [Cell(at, float(at))] if comparison.x else []
        rows.append([Cell(model), *place, Cell(edges), *values])
    if not names:
        return None
    table = Table(
        label=f"Hyper-parameters on {comparison.data}",
        columns=["model", *([comparison.x] if comparison.x else []), EDGES, *names],
        rows=rows,
        words=("model", EDGES),
    )
    return Choices(table, recorded, on_edge)


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


def _range(rows: Sequence[Row], name: str) -> Cell:
    try:
        values = [float(row[name]) for row in rows if row.get(name)]
    except ValueError:  # a word, not a number
        return Cell(", ".join(dict.fromkeys(row[name] for row in rows if row.get(name))))
    values = [value for value in values if is_in_range(value)]
    if not values:
        return Cell("")
    middle, low, high = float(np.median(values)), min(values), max(values)
    text = f"{middle:.3g}" if low == high else f"{middle:.3g} ({low:.3g} to {high:.3g})"
    return Cell(text, middle)
