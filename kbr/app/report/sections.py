"""Runs as the sections of a report: one a data set, with what is varied on its x axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbr.app.figures.style import STYLES
from kbr.app.runs.facts import is_number, location
from kbr.app.runs.finished import Collection, Run
from kbr.app.text.plain import one_line

Row = dict[str, str]
Trial = tuple[Row, Run]
QUICK = "quick: fewer trials than the full experiment"
OWN = "npz"  # the data option of one's own recordings
COLUMNS = {"data.n_train": "n_train", "data.dim": "dim"}  # keys that results.csv has by itself
LABELS = {"n_train": "training steps n", "dim": "dimension of x and z"}
# Overrides that do not make a run another experiment.
KEPT = {"experiment", "quick", "trials", "seed", "resume", "data", "model", "debug", "data.path"}
KEPT_GROUPS = {"trainer", "logger", "figure", "hydra"}


@dataclass(frozen=True, kw_only=True)
class Section:
    """Trials on one data set; `x` is the column on the x axis, if something numeric is varied."""

    data: str
    x: str | None
    label: str
    reference: str | None
    models: list[str]
    rows: list[Row]
    runs: list[Run]
    notes: dict[tuple[str, str], list[str]]  # of a model at x: grid edges that were chosen

    @property
    def is_quick(self) -> bool:
        return any(run.is_quick for run in self.runs)


def sections_of(found: Collection) -> tuple[list[Section], list[str]]:
    """One for each data set, by name, and all problems.

    Of further keys that are varied, those of the data make data sets of their own, as their test
    sequences are others; the rest become part of the models' names.
    """
    problems = list(found.problems)
    by_data: dict[tuple[str, str], list[Run]] = {}
    for run in found.runs:
        for name in dict.fromkeys(row["data"] for row in run.rows):
            by_data.setdefault((name, _recording(run)), []).append(run)
    several = {name for name, _ in by_data if sum(name == other for other, _ in by_data) > 1}
    sections = []
    for (name, recording), runs in sorted(by_data.items(), key=lambda item: item[0]):
        shown = f"{name} {recording}" if name in several else name
        sections += _sections(name, shown, runs, problems)
    return sections, problems


def swept_keys(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Keys given on the command line whose value is not the same in all runs, with the values."""
    keys = dict.fromkeys(
        text.lstrip("+~").partition("=")[0] for run in runs for text in run.overrides
    )
    found = {}
    for key in keys:
        if key in KEPT or key.split(".")[0] in KEPT_GROUPS:
            continue
        values = list(dict.fromkeys(_plain(run.value(key)) for run in runs))
        if len(values) > 1:
            found[key] = values
    return found


def all_rows(runs: Sequence[Run]) -> list[Row]:
    """Every trial, with columns for the keys that are varied."""
    swept = [key for key in swept_keys(runs) if key not in COLUMNS]
    return [
        {**row, **{key: _plain(run.value(key)) for key in swept}}
        for run in runs
        for row in run.rows
    ]


def _recording(run: Run) -> str:
    """The file of a recording of one's own; files of other data hold what is always the same."""
    return _plain(run.value("data.path")) if run.value("data") == OWN else ""


def _sections(data: str, shown: str, runs: list[Run], problems: list[str]) -> list[Section]:
    """The trials on `data`, in sections for the keys of the data that are not on the x axis."""
    figure = next((run.figure for run in runs if run.figure), {})
    swept = [key for key in swept_keys(runs) if key not in COLUMNS]
    columns = [name for name in COLUMNS.values() if _varies(runs, name)] + swept
    trials = [
        ({**row, **{key: _plain(run.value(key)) for key in swept}}, run)
        for run in runs
        for row in run.rows
        if row["data"] == data
    ]
    wanted = [*filter(None, [figure.get("x")]), *columns]
    x = next((c for c in wanted if all(is_number(row.get(c)) for row, _ in trials)), None)
    of_data = {*COLUMNS.values(), *(key for key in swept if key.startswith("data."))} - {x}
    parts: dict[str, list[Trial]] = {}
    for row, run in trials:
        names = {c: f"{c.rpartition('.')[2]}={row[c]}" for c in columns if c != x and row.get(c)}
        row["data"] = " ".join([shown, *(names[c] for c in names if c in of_data)])
        row["model"] = " ".join([row["model"], *(names[c] for c in names if c not in of_data)])
        parts.setdefault(row["data"], []).append((row, run))
    return [_section(name, x, figure, mine, problems) for name, mine in parts.items()]


def _section(
    data: str, x: str | None, figure: dict[str, Any], trials: list[Trial], problems: list[str]
) -> Section:
    order = [*(figure.get("models") or ()), *STYLES]
    models = sorted(
        {row["model"] for row, _ in trials},
        key=lambda name: (_rank(name.partition(" ")[0], order), name),
    )
    reference = figure.get("reference")
    if reference not in models:
        reference = models[0] if len(models) > 1 else None
    kept = _without_duplicates(data, x, trials, problems)
    own_label = figure.get("label") if x and x == figure.get("x") else None
    rows = [row for row, _ in kept]
    return Section(
        data=data,
        x=x,
        label=own_label or LABELS.get(x or "", x or ""),
        reference=reference,
        models=models,
        rows=sorted(rows, key=lambda row: (models.index(row["model"]), _number(row, x))),
        runs=list(dict.fromkeys(run for _, run in trials)),
        notes=_notes(kept, x),
    )


def _notes(trials: list[Trial], x: str | None) -> dict[tuple[str, str], list[str]]:
    """What the runs noted, by model and x; runs that recorded nothing of the kind are absent."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for row, run in trials:
        mine = runs.setdefault((row["model"], row[x] if x else ""), [])
        if run not in mine:
            mine.append(run)
    return {
        key: [note for run in mine for note in run.manifest["notes"]]
        for key, mine in runs.items()
        if all("notes" in run.manifest for run in mine)
    }


def _without_duplicates(
    data: str, x: str | None, trials: list[Trial], problems: list[str]
) -> list[Trial]:
    """The first row of each model, x and seed; the others are a problem."""
    first: dict[tuple[str, str, str], Trial] = {}
    double: dict[tuple[str, Path, Path], list[tuple[str, bool]]] = {}
    for row, run in trials:
        key = (row["model"], row[x] if x else "", row["seed"])
        if key in first:
            earlier, by = first[key]
            what = row["model"] + (f", {x} = {row[x]}" if x else "")
            same = earlier["mse"] == row["mse"]
            double.setdefault((what, by.folder, run.folder), []).append((row["seed"], same))
        else:
            first[key] = row, run
    for (what, place, again), found in double.items():
        seeds = one_line(", ".join(seed for seed, _ in found))
        errors = "equal" if all(same for _, same in found) else "different"
        where = " and ".join(dict.fromkeys(map(location, (place, again))))
        problems.append(
            f"{data}, {what}: seed(s) {seeds} twice, with {errors} errors, in {where}; the first "
            "is kept"
        )
    return list(first.values())


def _varies(runs: Sequence[Run], column: str) -> bool:
    return len({row[column] for run in runs for row in run.rows if row.get(column)}) > 1


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _plain(value: Any) -> str:
    """1 and 1.0 are one value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else one_line(str(value))


def _number(row: Row, x: str | None) -> float:
    return 0.0 if x is None else float(row[x])
