"""The report's part on hyper-parameters: what was chosen, and how often on the edge of a grid."""

import re
from collections.abc import Sequence
from html import escape

import numpy as np

from kbr.app.report.sections import COLUMNS, Row, Section, swept_keys
from kbr.app.report.table import Cell, table
from kbr.app.runs.facts import is_in_range

MEASURED = {"mse", "val_mse", "coverage_90", "coverage_90_raw", "seconds"}
NOT_CHOSEN = {"data", "model", "seed", *MEASURED, *COLUMNS.values()}
EDGE = re.compile(
    r"(?P<name>\w+) at the (?P<end>lower|upper) edge \((?P<value>.+)\) in (?P<n>\d+) "
)


def choices_html(section: Section) -> str:
    """Nothing where no model of the section chooses anything."""
    names = [name for name in _columns(section) if any(row.get(name) for row in section.rows)]
    if not names:
        return ""
    rows: list[list[Cell | str]] = []
    cells = hit = 0
    for model, at in dict.fromkeys((r["model"], _at(section, r)) for r in section.rows):
        mine = [r for r in section.rows if (r["model"], _at(section, r)) == (model, at)]
        values = [_range(mine, name) for name in names]
        if not any(cell.text for cell in values):
            continue
        notes = section.notes.get((model, at))
        edges = "not recorded" if notes is None else edge_counts(notes, len(mine))
        cells, hit = cells + (notes is not None), hit + any(map(EDGE.match, notes or ()))
        place = [Cell(at, float(at))] if section.x else []
        rows.append([model, *place, edges, *values])
    head = ["model", *([section.x] if section.x else []), "on a grid edge", *names]
    made = table(
        head, rows, label=f"Hyper-parameters on {section.data}", text=["model", "on a grid edge"]
    )
    said = f"A grid edge was chosen in {hit} of {cells} cells that recorded it. " if cells else ""
    return (
        f"<h3>Chosen hyper-parameters</h3>\n{made}\n"
        f'<p class="soft">Median over trials, and the range where they differ. {escape(said)}</p>'
    )


def edge_counts(notes: Sequence[str], trials: int) -> str:
    """Notes of several runs added up: `lam upper (0.1): 3 of 30`; other notes as they are."""
    counts: dict[tuple[str, str, str], int] = {}
    others = []
    for note in notes:
        found = EDGE.match(note)
        if found is None:
            others.append(note)
            continue
        key = (found["name"], found["end"], found["value"])
        counts[key] = counts.get(key, 0) + int(found["n"])
    words = [f"{name} {end} ({at}): {n} of {trials}" for (name, end, at), n in counts.items()]
    return "; ".join([*words, *dict.fromkeys(others)])


def _columns(section: Section) -> list[str]:
    names = dict.fromkeys(name for row in section.rows for name in row)
    given = {*NOT_CHOSEN, *swept_keys(section.runs)}
    return [name for name in names if not (name in given or "." in name or _is_error(name))]


def _is_error(name: str) -> bool:
    """An error in a column's own units, of a run on own data."""
    return name.startswith("rmse ")


def _at(section: Section, row: Row) -> str:
    return row[section.x] if section.x else ""


def _range(rows: Sequence[Row], name: str) -> Cell:
    try:
        values = np.array([float(row[name]) for row in rows if row.get(name)])
    except ValueError:  # a word, not a number
        return Cell(", ".join(dict.fromkeys(row[name] for row in rows if row.get(name))))
    values = np.array([value for value in values if is_in_range(float(value))])
    if not len(values):
        return Cell("")
    middle, low, high = np.median(values), values.min(), values.max()
    text = f"{middle:.3g}" if low == high else f"{middle:.3g} ({low:.3g} to {high:.3g})"
    return Cell(text, float(middle))
