"""Tables over trials: mean, standard error, median, and paired tests between models."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kbr.app.runs.facts import is_number
from kbr.app.text.numbers import in_digits

STARS = ((1e-4, "****"), (1e-3, "***"), (1e-2, "**"), (5e-2, "*"))
TEST_FROM = 6  # with fewer pairs the signed-rank test cannot reach p < .05
WIDEST = 6  # columns of a table that is 80 characters wide
OTHERS = {  # columns of results.csv beside the squared error, and what tables call them
    "error": "error",
    "coverage_90": "in 90 %",
    "fit_cpu_seconds": "CPU s, fit",
    "step_cpu_seconds": "CPU s, step",
}


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """A two-sided Wilcoxon signed-rank test over common seeds; `note` says what it could not do."""

    p: float | None = None
    pairs: int
    difference: float | None = None  # mean of a - b
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
        from scipy.stats import wilcoxon  # slow to import, and a single run has no pairs

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
    p = np.asarray(p_values)
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order]).clip(max=1)
    return [float(value) for value in corrected]


def standard_error(errors: np.ndarray) -> float:
    """Of the mean; 0 for a single trial, which tells nothing about it."""
    return float(errors.std(ddof=1) / len(errors) ** 0.5) if len(errors) > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """Errors of one model on one data set at one x; `test` is None for the reference itself."""

    data: str
    x: str | None
    at: float | None
    model: str
    trials: int
    mean: float
    stderr: float
    median: float
    test: PairedTest | None = None
    p_holm: float | None = None  # corrected over all comparisons of the data set
    measure: str = ""  # what `error` of the others is, with its unit
    others: tuple[
        tuple[str, float], ...
    ] = ()  # means of the columns of OTHERS that all trials have

    @property
    def stars(self) -> str:
        return stars(self.p_holm)

    def row(self) -> dict[str, Any]:
        """As a row of summary.csv."""
        names, test = ("model", "trials", "mean", "stderr", "median"), self.test
        return {
            "data": self.data,
            **({} if self.x is None else {self.x: self.at}),
            **{name: getattr(self, name) for name in names},
            **({"measure": self.measure} if self.measure else {}),
            **dict(self.others),
            "p_value": test and test.p,
            "p_holm": self.p_holm,
            "pairs": test and test.pairs,
            "note": "" if test is None else test.note,
        }


def summarize(
    rows: Sequence[Mapping[str, str]], x: str | None, reference: str | None
) -> list[ModelSummary]:
    """One for each data set, x and model, tested by seed against `reference` at the same x."""
    cells: dict[tuple[str, float | None, str], dict[int, float]] = {}
    trials: dict[tuple[str, float | None, str], list[Mapping[str, str]]] = {}
    for row in rows:
        key = (row["data"], None if x is None else float(row[x]), row["model"])
        cells.setdefault(key, {})[int(row["seed"])] = float(row["mse"])
        trials.setdefault(key, []).append(row)
    summaries = []
    for (data, at, model), errors in cells.items():
        values, test = np.array(list(errors.values())), None
        if reference and (data, at, reference) not in cells:
            test = PairedTest(pairs=0, note=f"no trials of {reference}")
        elif reference and model != reference:
            test = paired_test(errors, cells[data, at, reference])
        summaries.append(
            ModelSummary(
                data=data,
                x=x,
                at=int(at) if at is not None and at == int(at) else at,
                model=model,
                trials=len(values),
                mean=float(values.mean()),
                stderr=standard_error(values),
                median=float(np.median(values)),
                test=test,
                measure=trials[data, at, model][0].get("measure", ""),
                others=_others(trials[data, at, model]),
            )
        )
    return _with_holm(summaries)


def _others(trials: Sequence[Mapping[str, str]]) -> tuple[tuple[str, float], ...]:
    """Means of what else was measured in all trials, where their error has a unit.

    Elsewhere a summary stays the same whenever it is made: CPU seconds never are.
    """
    if not all(row.get("measure") for row in trials):
        return ()
    there = [name for name in OTHERS if all(is_number(row.get(name)) for row in trials)]
    return tuple((name, float(np.mean([float(row[name]) for row in trials]))) for name in there)


def _with_holm(summaries: Sequence[ModelSummary]) -> list[ModelSummary]:
    corrected: dict[ModelSummary, float] = {}
    for data in {one.data for one in summaries}:
        tests = {one: one.test.p for one in summaries if one.data == data and one.test}
        tested = {one: p for one, p in tests.items() if p is not None}
        corrected |= zip(tested, holm(list(tested.values())), strict=True)
    return [replace(one, p_holm=corrected.get(one)) for one in summaries]


def stars(p: float | None) -> str:
    """The paper's marks: * p < .05, ** p < .01, *** p < .001, **** p < .0001."""
    return "" if p is None else next((mark for limit, mark in STARS if p < limit), "")


def format_table(table: Sequence[ModelSummary], x: str | None, reference: str | None) -> str:
    """Models as rows, x as columns, at most 80 characters wide; stars are against `reference`."""
    lines = []
    for data in dict.fromkeys(one.data for one in table):
        mine = [one for one in table if one.data == data]
        width = max(13, *(len(one.model) for one in mine))
        if x:
            lines += [f"\n{data}: mean MSE by {x}", *_blocks(mine, width)]
            continue
        lines += [f"\n{data}: mean MSE", *_lines(mine, width)]
    return "\n".join([*lines, *legend(table, reference)])


def legend(table: Sequence[ModelSummary], reference: str | None) -> list[str]:
    """What the stars mean, and what could not be tested."""
    tests = [one.test for one in table if one.test is not None]
    if not tests:
        return []
    lines = [
        f"\n  stars: differs from {reference}",
        "  paired Wilcoxon signed-rank test, Holm-corrected over a data set's comparisons",
        "  * p < .05, ** p < .01, *** p < .001, **** p < .0001",
    ]
    notes = Counter(test.note for test in tests if test.note)
    lines += [f"  {count} of {len(tests)} comparisons: {note}" for note, count in notes.items()]
    return lines


def _lines(table: Sequence[ModelSummary], width: int) -> list[str]:
    """A model a line, with the standard error; or, where it is measured in units, with all else."""
    measure = next((one.measure for one in table if one.measure), None)
    if measure is None:
        return [
            f" {one.model:<{width}}{_cell(one):>11} ± {in_digits(one.stderr, like=one.mean)}"
            for one in table
        ]
    unit = measure.rpartition("[")[2].rstrip("]")
    heads = ("MSE", unit, *(name for column, name in OTHERS.items() if column != "error"))
    lines = [f"  error: {measure}", f" {'':<{width}}" + "".join(f"{head:>12}" for head in heads)]
    for one in table:
        known = dict(one.others)
        cells = (f"{known[name]:.3g}" if name in known else "-" for name in OTHERS)
        texts = "".join(f"{text:>12}" for text in (_cell(one), *cells))
        lines.append(f" {one.model:<{width}}{texts}")
    return lines


def _blocks(table: Sequence[ModelSummary], width: int) -> list[str]:
    """Columns that do not fit side by side go into further blocks; names are `width` wide."""
    columns = sorted({one.at for one in table if one.at is not None})
    cells = {(one.model, one.at): _cell(one) for one in table}
    models = list(dict.fromkeys(one.model for one in table))
    fit = max(1, min(WIDEST, (79 - width) // 11))
    lines = []
    for start in range(0, len(columns), fit):
        part = columns[start : start + fit]
        lines.append(f" {'':<{width}}" + "".join(f"{c:>11}" for c in part))
        for model in models:
            texts = (cells.get((model, c), "-") for c in part)
            lines.append(f" {model:<{width}}" + "".join(f"{text:>11}" for text in texts))
    return lines


def _cell(one: ModelSummary) -> str:
    return in_digits(one.mean) + one.stars
