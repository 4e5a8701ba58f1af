"""The tables of a page: cells as they are shown, with the numbers to sort by."""

from collections.abc import Sequence
from dataclasses import dataclass

from kbr.app.report.comparison import Comparison
from kbr.app.report.summary import ModelSummary, stars


@dataclass(frozen=True)
class Cell:
    """What is shown, and the number to sort by if it is another."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """The first cell of a row is its heading; columns named in `words` are left-aligned."""

    label: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[str] = ("model",)


def number(value: float | None, digits: str = "#.4g", mark: str = "") -> Cell:
    """A number to so many digits; nothing for None."""
    return Cell("") if value is None else Cell(f"{value:{digits}}{mark}", value)


def mean_errors(comparison: Comparison) -> Table:
    """Models as rows, x as columns; the lowest error of each column is marked."""
    columns = sorted({one.at for one in comparison.summary if one.at is not None})
    by_place = {(one.model, one.at): one for one in comparison.summary}
    lowest = {at: min(one.mean for one in by_place.values() if one.at == at) for at in columns}

    def cell(one: ModelSummary | None) -> Cell:
        if one is None or one.at is None:
            return Cell("")
        text = f"{one.mean:#.4g} ± {one.stderr:#.2g}{stars(one.p_holm)}"
        return Cell(text, one.mean, best=one.mean == lowest[one.at])

    return Table(
        label=f"Mean error on {comparison.data}",
        columns=["model", *map(str, columns)],
        rows=[
            [Cell(model), *(cell(by_place.get((model, at))) for at in columns)]
            for model in comparison.models
        ],
    )


def all_numbers(comparison: Comparison) -> Table:
    """A row for each model and x, with its test against the reference."""
    x, tested = comparison.x, comparison.reference is not None
    columns = ["model", *([x] if x else []), "trials", "mean", "std. error", "median"]
    columns += ["difference", "pairs", "p", "p (Holm)", "note"] if tested else []
    rows = []
    for one in comparison.summary:
        cells = [Cell(one.model), *([number(one.at, "g")] if x else [])]
        cells += [number(one.trials, "d"), number(one.mean)]
        cells += [number(one.stderr, "#.2g"), number(one.median)]
        if tested:
            cells += _test(one)
        rows.append(cells)
    label = f"All numbers on {comparison.data}"
    return Table(label=label, columns=columns, rows=rows, words=("model", "note"))


def _test(one: ModelSummary) -> list[Cell]:
    test = one.test
    if test is None:  # the reference
        return [Cell("")] * 5
    return [
        number(test.difference, "+#.2g"),
        number(test.pairs, "d"),
        number(test.p, ".2g"),
        number(one.p_holm, ".2g", stars(one.p_holm)),
        Cell(test.note),
    ]
