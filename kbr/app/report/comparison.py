"""Comparisons of runs, one for each data set: its models, their reference, what was varied."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kbr.app.figures.style import STYLES
from kbr.app.report.summary import OTHERS, ModelSummary, summarize
from kbr.app.run.folder import STORY
from kbr.app.runs.facts import is_number, location
from kbr.app.runs.finished import Collection, Run
from kbr.app.runs.notes import Notes
from kbr.app.text.plain import one_line

ResultRow = dict[str, str]
Trial = tuple[ResultRow, Run]
QUICK = "quick: fewer trials than the full experiment"
OWN = ("npz", "recording")  # data options of recordings of one's own
COLUMNS = {"data.n_train": "n_train", "data.dim": "dim"}  # keys that results.csv has by itself
LABELS = {"n_train": "training steps n", "dim": "dimension of x and z"}
# Overrides that do not make a run another experiment.
SAME = {"experiment", "quick", "trials", "seed", "resume", "data", "model", "debug"}
SAME |= {"data.path", "data.root"}
SAME_GROUPS = {"trainer", "logger", "figure", "hydra"}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Models on one data set; `x` is the column on the x axis, if something numeric is varied."""

    data: str
    x: str | None = None
    label: str = ""  # of x
    reference: str | None = None  # the model that the others are tested against
    models: list[str]
    rows: list[ResultRow]  # a trial each
    runs: list[Run] = field(default_factory=list)
    notes: dict[tuple[str, str], Notes] = field(default_factory=dict)  # of a model at an x

    @property
    def is_quick(self) -> bool:
        return any(run.is_quick for run in self.runs)

    def at(self, row: ResultRow) -> str:
        return _at(row, self.x)

    def errors(self, model: str) -> dict[tuple[str, int], float]:
        """By x and seed."""
        mine = [row for row in self.rows if row["model"] == model]
        return {(self.at(row), int(row["seed"])): float(row["mse"]) for row in mine}

    @property
    def measure(self) -> str:
        """What people of the field call the error, with its unit; empty: the squared error."""
        names = {row.get("measure", "") for row in self.rows}
        return names.pop() if len(names) == 1 else ""

    def shown(self, model: str) -> list[float]:
        """Of every trial the error that pictures show: by its measure, or squared."""
        column = "error" if self.measure else "mse"
        return [float(row[column]) for row in self.rows if row["model"] == model]

    @cached_property
    def others(self) -> dict[str, str]:
        """Columns beside the squared error that some model has, and what tables call them."""
        there = {name for one in self.summary for name, _ in one.others}
        named = {**OTHERS, "error": self.measure or OTHERS["error"]}
        return {name: named[name] for name in OTHERS if name in there}

    @property
    def story(self) -> Path | None:
        """The picture of a real recording by the reference, or by the first model that has one."""

        def place(run: Run) -> tuple[bool, int]:
            model = run.rows[0]["model"]
            return model != self.reference, self.models.index(model) if model in self.models else 99

        paths = (run.folder / STORY for run in sorted(self.runs, key=place))
        return next((path for path in paths if path.is_file()), None)

    @cached_property
    def summary(self) -> list[ModelSummary]:
        """A row for each x and model, with its test."""
        return summarize(self.rows, self.x, self.reference)

    @cached_property
    def cells(self) -> dict[tuple[str, float | None], ModelSummary]:
        """The same by model and x."""
        return {(one.model, one.at): one for one in self.summary}

    @cached_property
    def lowest(self) -> dict[float, float]:
        """The lowest mean error at each x, in order of x."""
        places = sorted({one.at for one in self.summary if one.at is not None})
        return {at: min(one.mean for one in self.summary if one.at == at) for at in places}


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that tables, figures and pages show of some runs."""

    collection: Collection
    comparisons: list[Comparison]  # by the name of the data set
    problems: list[str]

    @property
    def is_quick(self) -> bool:
        return any(run.is_quick for run in self.collection.runs)

    @property
    def rows(self) -> list[ResultRow]:
        """Every trial, with columns for the keys that are varied."""
        runs = self.collection.runs
        return [row for row, _ in _trials(runs, varied_keys(runs))]


def report_of(collection: Collection) -> Report:
    """A comparison for each data set.

    Further varied keys of the data make separate data sets, as they change the test sequences;
    other varied keys become part of the models' names.
    """
    problems = list(collection.problems)
    by_data: dict[tuple[str, str], list[Run]] = {}
    for run in collection.runs:
        by_data.setdefault((run.rows[0]["data"], _recording(run)), []).append(run)
    names = [name for name, _ in by_data]
    comparisons = []
    for (name, recording), runs in sorted(by_data.items(), key=lambda item: item[0]):
        title = f"{name} {recording}" if names.count(name) > 1 else name
        comparisons += _comparisons(title, runs, problems)
    return Report(collection=collection, comparisons=comparisons, problems=problems)


def varied_keys(runs: Sequence[Run]) -> list[str]:
    """Keys of the command line that differ between runs and have no column in results.csv."""
    overrides = (text for run in runs for text in run.overrides)
    keys = dict.fromkeys(text.lstrip("+~").partition("=")[0] for text in overrides)
    return [
        key
        for key in keys
        if not (key in SAME or key in COLUMNS or key.split(".")[0] in SAME_GROUPS)
        and len({_plain(run.value(key)) for run in runs}) > 1
    ]


def _trials(runs: Sequence[Run], keys: Sequence[str]) -> list[Trial]:
    return [
        ({**row, **{key: _plain(run.value(key)) for key in keys}}, run)
        for run in runs
        for row in run.rows
    ]


def _recording(run: Run) -> str:
    """The file of the user's own recording; other data are the same from any file."""
    return _plain(run.value("data.path")) if run.value("data") in OWN else ""


def _comparisons(title: str, runs: list[Run], problems: list[str]) -> list[Comparison]:
    """Runs on one data set; keys of the data that are not on the x axis set them apart."""
    figure = next((run.figure for run in runs if run.figure), {})
    keys = varied_keys(runs)
    trials = _trials(runs, keys)
    values = {name: {row.get(name) or None for row, _ in trials} for name in COLUMNS.values()}
    given = {name for key, name in COLUMNS.items() if _is_given_once(runs, key)}
    columns = [n for n in values if len(values[n] - {None}) > 1 and n not in given] + keys
    wanted = [*filter(None, [figure.get("x")]), *columns]
    x = next((c for c in wanted if all(is_number(row.get(c)) for row, _ in trials)), None)
    of_data = {*COLUMNS.values(), *(key for key in keys if key.startswith("data."))}
    parts: dict[str, list[Trial]] = {}
    for row, run in trials:
        names = {c: f"{c.rpartition('.')[2]}={row[c]}" for c in columns if c != x and row.get(c)}
        row["data"] = " ".join([title, *(names[c] for c in names if c in of_data)])
        row["model"] = " ".join([row["model"], *(names[c] for c in names if c not in of_data)])
        parts.setdefault(row["data"], []).append((row, run))
    return [_comparison(data, x, figure, mine, problems) for data, mine in parts.items()]


def _is_given_once(runs: Sequence[Run], key: str) -> bool:
    """Whether all configs agree in a key: where its column differs, that is the models' doing.

    Of a recording, a model that knows absent sensors has more training rows than others.
    """
    group, _, name = key.partition(".")
    known = [run.config.get(group) for run in runs]
    return (
        all(isinstance(part, dict) and name in part for part in known)
        and len({_plain(part[name]) for part in known if isinstance(part, dict)}) == 1
    )


def _comparison(
    data: str, x: str | None, figure: dict[str, Any], trials: list[Trial], problems: list[str]
) -> Comparison:
    models = sorted({row["model"] for row, _ in trials})
    families = {name: name.partition(" ")[0] for name in models}
    order = [*(figure.get("models") or ()), *STYLES, *families.values()]
    models.sort(key=lambda name: order.index(families[name]))
    reference = figure.get("reference")
    if reference not in models:  # what was varied is part of names: then the first of its family
        mine = [name for name in models if families[name] == reference]
        reference = (mine or models)[0] if len(models) > 1 else None
    kept = _without_duplicates(data, x, trials, problems)
    label = figure.get("label") if x == figure.get("x") else None
    return Comparison(
        data=data,
        x=x,
        label=label or LABELS.get(x or "", x or ""),
        reference=reference,
        models=models,
        rows=sorted(
            (row for row, _ in kept),
            key=lambda row: (models.index(row["model"]), float(row[x]) if x else 0.0),
        ),
        runs=list(dict.fromkeys(run for _, run in trials)),
        notes=_notes(kept, x),
    )


def _notes(trials: list[Trial], x: str | None) -> dict[tuple[str, str], Notes]:
    """What the runs noted, by model and x; absent where one of them has no record of it."""
    notes: dict[tuple[str, str], list[Notes | None]] = {}
    for model, at, run in dict.fromkeys((row["model"], _at(row, x), run) for row, run in trials):
        notes.setdefault((model, at), []).append(run.notes)
    return {
        place: Notes.joined(one for one in mine if one is not None)
        for place, mine in notes.items()
        if None not in mine
    }


def _without_duplicates(
    data: str, x: str | None, trials: list[Trial], problems: list[str]
) -> list[Trial]:
    """The first row of each model, x and seed; the others are a problem."""
    first: dict[tuple[str, str, str], Trial] = {}
    repeated: dict[tuple[str, str], list[tuple[str, bool]]] = {}  # seed; is its error the same?
    for row, run in trials:
        earlier, by = first.setdefault((row["model"], _at(row, x), row["seed"]), (row, run))
        if earlier is not row:
            what = row["model"] + (f", {x} = {row[x]}" if x else "")
            where = " and ".join(dict.fromkeys(map(location, (by.folder, run.folder))))
            same = earlier["mse"] == row["mse"]
            repeated.setdefault((what, where), []).append((row["seed"], same))
    for (what, where), rows in repeated.items():
        seeds = one_line(", ".join(seed for seed, _ in rows))
        errors = "equal" if all(same for _, same in rows) else "different"
        problems.append(
            f"{data}, {what}: seed(s) {seeds} twice, with {errors} errors, in {where}; the first "
            "is kept"
        )
    return list(first.values())


def _at(row: ResultRow, x: str | None) -> str:
    return row[x] if x else ""


def _plain(value: Any) -> str:
    """1 and 1.0 are one value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else one_line(str(value))
