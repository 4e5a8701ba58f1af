"""Runs as the sections of a report: one a data set, with what is varied on its x axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbr.app.runs import Collection, Run
from kbr.app.style import STYLES

Row = dict[str, str]
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


def sections_of(found: Collection) -> tuple[list[Section], list[str]]:
    """One for each data set, by name, and all problems.

    Further keys that are varied become part of the models' names.
    """
    problems = list(found.problems)
    by_data: dict[str, list[Run]] = {}
    for run in found.runs:
        for name in dict.fromkeys(row["data"] for row in run.rows):
            by_data.setdefault(name, []).append(run)
    return [_section(name, by_data[name], problems) for name in sorted(by_data)], problems


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


def _section(data: str, runs: list[Run], problems: list[str]) -> Section:
    figure = next((f for run in runs if isinstance(f := run.config.get("figure"), dict)), {})
    swept = [key for key in swept_keys(runs) if key not in COLUMNS]
    columns = [name for name in COLUMNS.values() if _varies(runs, name)] + swept
    trials = [
        ({**row, **{key: _plain(run.value(key)) for key in swept}}, run)
        for run in runs
        for row in run.rows
        if row["data"] == data
    ]
    wanted = [*filter(None, [figure.get("x")]), *columns]
    x = next((c for c in wanted if all(_is_number(row.get(c)) for row, _ in trials)), None)
    variants = [name for name in columns if name != x]
    for row, _ in trials:
        parts = [f"{name.rpartition('.')[2]}={row[name]}" for name in variants if row.get(name)]
        row["model"] = " ".join([row["model"], *parts])
    order = [*figure.get("models", ()), *STYLES]
    models = sorted(
        {row["model"] for row, _ in trials}, key=lambda name: (_rank(name.split()[0], order), name)
    )
    reference = figure.get("reference")
    if reference not in models:
        reference = models[0] if len(models) > 1 else None
    kept = _without_duplicates(data, x, trials, problems)
    return Section(
        data=data,
        x=x,
        label=figure["label"] if x and x == figure.get("x") else LABELS.get(x or "", x or ""),
        reference=reference,
        models=models,
        rows=sorted(kept, key=lambda row: (models.index(row["model"]), _number(row, x))),
        runs=runs,
        notes=_notes(trials, x),
    )


def _notes(trials: list[tuple[Row, Run]], x: str | None) -> dict[tuple[str, str], list[str]]:
    """What the runs noted, by model and x; runs that recorded nothing of the kind are absent."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for row, run in trials:
        mine = runs.setdefault((row["model"], row[x] if x else ""), [])
        if run not in mine:
            mine.append(run)
    return {
        key: [str(note) for run in mine for note in run.manifest["notes"]]
        for key, mine in runs.items()
        if all("notes" in run.manifest for run in mine)
    }


def _without_duplicates(
    data: str, x: str | None, trials: list[tuple[Row, Run]], problems: list[str]
) -> list[Row]:
    """The first row of each model, x and seed; the others are a problem."""
    first: dict[tuple[str, str, str], tuple[Row, Run]] = {}
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
        seeds = ", ".join(seed for seed, _ in found)
        errors = "equal" if all(same for _, same in found) else "different"
        where = f"{place} and {again}" if place != again else f"{place}"
        problems.append(
            f"{data}, {what}: seed(s) {seeds} twice, with {errors} errors, in {where}; the first "
            "is kept"
        )
    return [row for row, _ in first.values()]


def _varies(runs: Sequence[Run], column: str) -> bool:
    return len({row[column] for run in runs for row in run.rows if row.get(column)}) > 1


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _number(row: Row, x: str | None) -> float:
    return 0.0 if x is None else float(row[x])


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True
