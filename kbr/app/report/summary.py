"""Tables over trials: mean, standard error, median, and paired tests between models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from kbr.app.text.numbers import in_digits

STARS = ((1e-4, "****"), (1e-3, "***"), (1e-2, "**"), (5e-2, "*"))
TEST_FROM = 6  # with fewer pairs the signed-rank test cannot reach p < .05
SHOWN_COLUMNS = 6  # of a table that is 80 characters wide


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """A two-sided Wilcoxon signed-rank test over common seeds; `note` says what it could not do."""

    p: float | None
    pairs: int
    difference: float | None  # mean of a - b
    note: str = ""


def paired_test(a: Mapping[int, float], b: Mapping[int, float]) -> PairedTest:
    """Compare two models seed by seed; equal pairs are dropped, as Wilcoxon does, and counted."""
    seeds = sorted(a.keys() & b.keys())
    differences = np.array([a[s] - b[s] for s in seeds])
    equal = int((differences == 0).sum())
    p, note = None, ""
    if len(seeds) < TEST_FROM:
        note = f"fewer than {TEST_FROM} pairs"
    elif equal == len(seeds):
        note = "all equal"
    elif all(len({errors[s] for s in seeds}) == 1 for errors in (a, b)):
        note = "the trials are copies"  # of one recording, by models that draw nothing
    elif len(seeds) - equal < TEST_FROM:
        note = f"fewer than {TEST_FROM} pairs differ"
    else:
        p = float(wilcoxon(differences).pvalue)
        note = f"{equal} of {len(seeds)} equal, dropped" if equal else ""
    if len(seeds) < max(len(a), len(b)):
        note = "; ".join(filter(None, [note, "seeds differ, common ones paired"]))
    difference = float(differences.mean()) if seeds else None
    return PairedTest(p=p, pairs=len(seeds), difference=difference, note=note)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for testing several hypotheses at once.

    Math: p'_(i) = max_{j <= i} min(1, (m - j + 1) p_(j)), p sorted ascending, m of them.
    Ref:  Holm 1979.
    """
    order = np.argsort(p_values, kind="stable")
    corrected, floor = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = floor
    return corrected


def standard_error(errors: np.ndarray) -> float:
    """Of the mean; 0 for a single trial, which tells nothing about it."""
    return float(errors.std(ddof=1) / len(errors) ** 0.5) if len(errors) > 1 else 0.0


def summarize(
    rows: Sequence[Mapping[str, str]], x: str | None, reference: str | None
) -> list[dict[str, Any]]:
    """One row for each data set, x and model, tested by seed against `reference` at the same x.

    p_holm is corrected over all comparisons of the row's data set.
    """
    cells: dict[tuple[str, float | None, str], dict[int, float]] = {}
    for row in rows:
        key = (row["data"], None if x is None else float(row[x]), row["model"])
        cells.setdefault(key, {})[int(row["seed"])] = float(row["mse"])
    table = []
    for (data, at, model), by_seed in cells.items():
        entry: dict[str, Any] = {"data": data}
        if x is not None and at is not None:
            entry[x] = int(at) if at == int(at) else at
        entry |= {"model": model} | statistics(by_seed)
        against = cells.get((data, at, reference)) if reference else None
        if against is not None and model != reference:
            test = paired_test(by_seed, against)
            entry |= {"p_value": test.p, "pairs": test.pairs, "note": test.note}
        elif reference and model != reference:
            entry |= {"pairs": 0, "note": f"no trials of {reference}"}
        table.append(entry)
    for data in dict.fromkeys(row["data"] for row in table):
        fill_holm([row for row in table if row["data"] == data])
    return table


def statistics(errors: Mapping[int, float]) -> dict[str, Any]:
    """A model's part of a table's row, from its error by seed; no test has been made yet."""
    values = np.array(list(errors.values()))
    return {
        "trials": len(values),
        "mean": float(values.mean()),
        "stderr": standard_error(values),
        "median": float(np.median(values)),
        "p_value": None,
        "p_holm": None,
        "pairs": None,
        "note": "",
    }


def fill_holm(rows: Sequence[dict[str, Any]]) -> None:
    """p_holm of the rows that were tested, corrected over all of them."""
    tested = [row for row in rows if row["p_value"] is not None]
    for row, value in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_holm"] = value


def stars(p: float | None) -> str:
    """The paper's marks: * p < .05, ** p < .01, *** p < .001, **** p < .0001."""
    return "" if p is None else next((mark for limit, mark in STARS if p < limit), "")


def format_table(table: Sequence[Mapping[str, Any]], x: str | None, reference: str | None) -> str:
    """Models as rows, x as columns, at most 80 characters wide; stars are against `reference`."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in table):
        mine = [row for row in table if row["data"] == data]
        lines.append(f"\n{data}: mean MSE" + (f" by {x}" if x else ""))
        lines += _single(mine) if x is None else _blocks(mine, x)
    lines += legend(table, reference)
    return "\n".join(lines)


def legend(table: Sequence[Mapping[str, Any]], reference: str | None) -> list[str]:
    """What the stars mean, and what could not be tested."""
    compared = [row for row in table if row["pairs"] is not None]
    if not compared:
        return []
    lines = [
        f"\n  stars: differs from {reference}",
        "  paired Wilcoxon signed-rank test, Holm-corrected over a data set's comparisons",
        "  * p < .05, ** p < .01, *** p < .001, **** p < .0001",
    ]
    notes = [row["note"] for row in compared if row["note"]]
    for note in dict.fromkeys(notes):
        lines.append(f"  {notes.count(note)} of {len(compared)} comparisons: {note}")
    return lines


def _single(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    width = max(13, *(len(row["model"]) for row in rows))
    return [
        f" {row['model']:<{width}}{_cell(row):>11} ± {in_digits(row['stderr'], like=row['mean'])}"
        for row in rows
    ]


def _blocks(rows: Sequence[Mapping[str, Any]], x: str) -> list[str]:
    """Columns that do not fit side by side go into further blocks."""
    columns = sorted({row[x] for row in rows})
    models = list(dict.fromkeys(row["model"] for row in rows))
    width = max(13, *(len(model) for model in models))
    fit = max(1, min(SHOWN_COLUMNS, (79 - width) // 11))
    lines = []
    for start in range(0, len(columns), fit):
        part = columns[start : start + fit]
        lines.append(f" {'':<{width}}" + "".join(f"{c:>11}" for c in part))
        for model in models:
            values = {row[x]: row for row in rows if row["model"] == model}
            cells = [_cell(values.get(c)) for c in part]
            lines.append(f" {model:<{width}}" + "".join(f"{cell:>11}" for cell in cells))
    return lines


def _cell(row: Mapping[str, Any] | None) -> str:
    return "-" if row is None else in_digits(row["mean"]) + stars(row["p_holm"])
