"""Finished runs read back from their folders; whatever is damaged is named, never fatal."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbr.app.run.folder import FAILURE, MANIFEST, METRICS, RESULTS
from kbr.app.runs.facts import (
    FIGURE_FACTS,
    MANIFEST_FACTS,
    METRIC_FACTS,
    Kinds,
    facts,
    location,
    row_fault,
)
from kbr.app.runs.files import (
    RESULTS_BYTES,
    DamagedFile,
    inside,
    read_bytes,
    read_json,
    read_start,
    read_table,
    read_yaml,
)
from kbr.app.runs.notes import Notes
from kbr.app.text.plain import one_line, visible

NEEDED = ("data", "model", "seed", "mse")
ONE_A_RUN = ("data", "model", "n_train", "dim")  # columns with one value in all trials of a run
CONFIG, HYDRA = Path(".hydra") / "config.yaml", Path(".hydra") / "hydra.yaml"
FAULTS = 3  # lines about the rows of one file
FAILURE_BYTES = 20_000  # of a failure that are shown

Reader = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One finished run: its rows (a trial each), config, and what its files say about it."""

    folder: Path
    rows: list[dict[str, str]]
    config: dict[str, Any] = field(default_factory=dict)
    figure: dict[str, Any] = field(default_factory=dict)  # of the experiment it is part of, if any
    choices: dict[str, str] = field(default_factory=dict)  # option of every config group
    overrides: tuple[str, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """The option of a config group, or the value of a key."""
        if key in self.choices:
            return self.choices[key]
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value.get("name") if isinstance(value, dict) else value

    @property
    def is_quick(self) -> bool:
        return bool(self.config.get("quick"))

    @property
    def notes(self) -> Notes | None:
        """None where it recorded none."""
        sentences, edges = (self.manifest.get(name) for name in ("notes", "edges"))
        return None if sentences is None else Notes.of_run(sentences, edges)

    @property
    def identity(self) -> tuple[Any, ...] | None:
        """Equal for copies of one run; None where it has no fingerprint."""
        if "fingerprint" not in self.manifest:
            return None
        return self.manifest["fingerprint"], *((row["seed"], row["mse"]) for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Everything found in some folders."""

    folders: tuple[Path, ...]
    runs: list[Run]
    failures: dict[str, str]
    problems: list[str]


def collect(folders: Sequence[Path]) -> Collection:
    """Run folders, or folders of run folders at any depth; of copies of a run, one is read."""
    runs: list[Run] = []
    failures: dict[str, str] = {}
    problems: list[str] = []
    seen: set[str] = set()
    first: dict[tuple[Any, ...], Path] = {}
    for folder in folders:
        if not os.path.isdir(folder):
            problems.append(f"{location(folder)}: there is no such folder")
            continue
        begun, failed, finished = _kinds(folder, problems)
        failures |= {location(at): _failure(at / FAILURE) for at in sorted(failed)}
        if unfinished := sorted(_short(at, folder) for at in begun - finished - failed):
            some = ", ".join([*unfinished[:3], *(["..."] if len(unfinished) > 3 else [])])
            problems.append(f"{location(folder)}: {len(unfinished)} run(s) not finished: {some}")
        if not finished - failed:
            problems.append(f"{location(folder)}: no finished runs (none has a {MANIFEST})")
        for at in sorted(finished - failed):
            if os.path.realpath(at) in seen:
                problems.append(f"{location(at)}: given twice, read once")
                continue
            seen.add(os.path.realpath(at))
            run = _read(at, problems)
            if run is None:
                continue
            if run.identity is not None and first.setdefault(run.identity, at) != at:
                other = location(first[run.identity])
                problems.append(f"{location(at)}: a copy of {other}, the same run; read once")
                continue
            runs.append(run)
    return Collection(
        folders=tuple(dict.fromkeys(folders)), runs=runs, failures=failures, problems=problems
    )


def _kinds(folder: Path, problems: list[str]) -> tuple[set[Path], set[Path], set[Path]]:
    """The folders of runs that were begun, that failed, that finished; no links are followed."""
    begun, failed, finished = set(), set(), set()

    def unreadable(error: OSError) -> None:
        problems.append(f"{location(Path(error.filename))}: cannot be read ({error.strerror})")

    for root, folders, files in os.walk(folder, onerror=unreadable):
        at, names = Path(root), {*folders, *files}
        if at.name == CONFIG.parent.name and CONFIG.name in names:
            begun.add(at.parent)
        if FAILURE in names:
            failed.add(at)
        if MANIFEST in names:
            finished.add(at)
    return begun, failed, finished


def _read(folder: Path, problems: list[str]) -> Run | None:
    def checked(name: str | Path, read: Reader, kinds: Kinds) -> dict[str, Any]:
        values, where = _settings(folder / name, read, problems), f"{location(folder / name)}: "
        return facts(values, kinds, where=where, problems=problems)

    manifest = checked(MANIFEST, read_json, MANIFEST_FACTS)
    if changed := _changed(folder, manifest.get("digests", {})):
        problems.append(
            f"{location(folder / changed)}: changed since the run ended (its SHA-256 is not the "
            f"one in {MANIFEST}); the run is left out"
        )
        return None
    rows = _rows(folder / RESULTS, problems)
    expected = checked(METRICS, read_json, METRIC_FACTS).get("test/trials", len(rows))
    if rows and expected != len(rows):
        problems.append(f"{location(folder / RESULTS)}: {len(rows)} of {expected} trials")
    config = _settings(folder / CONFIG, read_yaml, problems)
    hydra = _settings(folder / HYDRA, read_yaml, problems)
    choices = inside(hydra, "hydra", "runtime", "choices")
    typed = inside(hydra, "hydra", "overrides").get("task")
    overrides = typed if isinstance(typed, list) else None
    if hydra and (not choices or overrides is None):
        problems.append(f"{location(folder / HYDRA)}: damaged or truncated")
    if not rows:
        problems.append(f"{location(folder)}: left out, as none of its trials can be used")
        return None
    return Run(
        folder=folder,
        rows=rows,
        config=config,
        figure=_figure(config.get("figure"), f"{location(folder / CONFIG)}: ", problems),
        choices={str(key): one_line(str(value)) for key, value in choices.items()},
        overrides=tuple(one_line(str(one)) for one in overrides or ()),
        manifest=manifest,
    )


def _figure(values: Any, where: str, problems: list[str]) -> dict[str, Any]:
    """What the experiment says about its figure."""
    if values is not None and not isinstance(values, dict):
        problems.append(
            f"{where}figure is {one_line(repr(values), 60)}, not named values; not used"
        )
        values = None
    return facts(values or {}, FIGURE_FACTS, where=f"{where}figure.", problems=problems)


def _changed(folder: Path, digests: dict[str, str]) -> str | None:
    """The first file that is not as it was when the run ended, if any; others are not recorded."""
    for name in (RESULTS, METRICS):
        try:
            if name in digests:
                content = read_bytes(folder / name, RESULTS_BYTES)
                if hashlib.sha256(content).hexdigest() != digests[name]:
                    return name
        except DamagedFile:  # it is named where it is read
            continue
    return None


def _rows(path: Path, problems: list[str]) -> list[dict[str, str]]:
    """The trials whose row is whole and whose error is a number."""
    kept: list[dict[str, str]] = []
    faults: list[str] = []
    count = 0
    try:
        header, lines = read_table(path)
        for count, line in enumerate(lines, 1):
            row = {name: one_line(value) for name, value in zip(header, line, strict=False)}
            if fault := _misfit(header, line) or row_fault(row, NEEDED):
                faults.append(f"row {count} left out: {fault}")
            else:
                kept.append(row | {"seed": str(int(row["seed"]))})
    except DamagedFile as error:
        problems.append(str(error))
        return []
    if not count:
        problems.append(f"{location(path)}: holds no trials")
    usual = dict(Counter(map(_common, kept)).most_common(1))
    others = [row for row in kept if _common(row) not in usual]
    faults += [
        f"seed {row['seed']} left out: {', '.join(_common(row))} is not what the others are of"
        for row in others
    ]
    problems += [f"{location(path)}: {fault}" for fault in faults[:FAULTS]]
    if len(faults) > FAULTS:
        problems.append(f"{location(path)}: {len(faults) - FAULTS} more row(s) left out")
    return [row for row in kept if _common(row) in usual]


def _misfit(header: list[str], line: list[str]) -> str | None:
    """A row that has not one field for each column."""
    if len(line) > len(header):
        return "more fields than columns"
    if short := header[len(line) :]:
        return f"it has no {one_line(', '.join(short))} (truncated?)"
    return None


def _common(row: dict[str, str]) -> tuple[str, ...]:
    """What all trials of a run have in common."""
    return tuple(row[name] for name in ONE_A_RUN if row.get(name))


def _settings(path: Path, read: Reader, problems: list[str]) -> dict[str, Any]:
    """A file of named values, or nothing and a problem."""
    try:
        return read(path)
    except DamagedFile as error:
        problems.append(str(error))
        return {}


def _failure(path: Path) -> str:
    """What the run said when it failed, or why that cannot be read."""
    try:
        return visible(read_start(path, FAILURE_BYTES).decode(errors="replace").strip())
    except DamagedFile as error:
        return str(error)


def _short(path: Path, folder: Path) -> str:
    return one_line(str(path.relative_to(folder)) if path != folder else path.name)
