"""Finished runs read back from their folders; whatever is damaged is named, never fatal."""

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from kbr.app.run_folder import FAILURE, MANIFEST, METRICS, RESULTS

NEEDED = ("data", "model", "seed", "mse")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, ten times faster


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One finished run: its rows (a trial each), config, and what its files say about it."""

    folder: Path
    rows: list[dict[str, str]]
    config: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)  # option of every config group
    overrides: tuple[str, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """The option of a config group, or the value of a key."""
        if key in self.choices:
            return self.choices[key]
        found: Any = self.config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found.get("name") if isinstance(found, dict) else found

    @property
    def is_quick(self) -> bool:
        return bool(self.config.get("quick"))

    @property
    def figure(self) -> dict[str, Any]:
        """What its experiment says about the figure, if it is part of one."""
        return _inside(self.config, "figure")


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Everything found in some folders."""

    folders: tuple[Path, ...]
    runs: list[Run]
    failures: dict[str, str]
    problems: list[str]


def collect(folders: Sequence[Path]) -> Collection:
    """Run folders, or folders of run folders at any depth."""
    runs: list[Run] = []
    failures: dict[str, str] = {}
    problems: list[str] = []
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            problems.append(f"{folder}: there is no such folder")
            continue
        begun = sorted(path.parent.parent for path in folder.rglob(".hydra/config.yaml"))
        failed = sorted(path.parent for path in folder.rglob(FAILURE))
        finished = sorted({path.parent for path in folder.rglob(MANIFEST)} - set(failed))
        failures |= {str(at): (at / FAILURE).read_text(errors="replace").strip() for at in failed}
        unfinished = set(begun) - set(finished) - set(failed)
        if unfinished:
            some = ", ".join(sorted(_short(at, folder) for at in unfinished)[:3])
            more = ", ..." if len(unfinished) > 3 else ""
            problems.append(f"{folder}: {len(unfinished)} run(s) not finished: {some}{more}")
        if not finished:
            problems.append(f"{folder}: no finished runs (none has a {MANIFEST})")
        for at in finished:
            if at.resolve() in seen:
                problems.append(f"{at}: given twice, read once")
                continue
            seen.add(at.resolve())
            run = _read(at, problems)
            if run is not None:
                runs.append(run)
    return Collection(
        folders=tuple(dict.fromkeys(folders)), runs=runs, failures=failures, problems=problems
    )


def _read(folder: Path, problems: list[str]) -> Run | None:
    rows = _rows(folder, problems)
    manifest, metrics = _json(folder / MANIFEST, problems), _json(folder / METRICS, problems)
    expected = metrics.get("test/trials", len(rows))
    if rows and expected != len(rows):
        problems.append(f"{folder / RESULTS}: {len(rows)} of {expected} trials")
    config = _yaml(folder / ".hydra" / "config.yaml", problems)
    hydra = _yaml(folder / ".hydra" / "hydra.yaml", problems)
    choices = _inside(hydra, "hydra", "runtime", "choices")
    overrides = _inside(hydra, "hydra", "overrides").get("task")
    if hydra and not (choices and isinstance(overrides, list)):
        problems.append(f"{folder / '.hydra' / 'hydra.yaml'}: damaged or truncated")
    if not rows:
        return None
    return Run(
        folder=folder,
        rows=rows,
        config=config,
        choices={key: str(value) for key, value in choices.items()},
        overrides=tuple(map(str, overrides)) if isinstance(overrides, list) else (),
        manifest=manifest,
    )


def _rows(folder: Path, problems: list[str]) -> list[dict[str, str]]:
    """The trials whose row is whole and whose error is a number."""
    path = folder / RESULTS
    try:
        with path.open(newline="") as file:
            read = list(csv.DictReader(file))
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")
        return []
    except (UnicodeDecodeError, csv.Error):
        problems.append(f"{path}: damaged or truncated")
        return []
    kept = []
    for number, row in enumerate(read, 1):
        fault = _fault(row)
        if fault:
            problems.append(f"{path}: row {number} left out: {fault}")
        else:
            kept.append(row)
    if not read:
        problems.append(f"{path}: holds no trials")
    return kept


def _fault(row: dict[str, Any]) -> str | None:
    """What is wrong with a row, if anything."""
    if None in row:
        return "more fields than columns"
    short = [name for name, value in row.items() if value is None]
    missing = [name for name in NEEDED if not row.get(name)]
    if short or missing:
        return f"it has no {', '.join(dict.fromkeys([*missing, *short]))} (truncated?)"
    try:
        int(row["seed"])
        finite = math.isfinite(float(row["mse"]))
    except ValueError:
        return f"seed {row['seed']!r} or mse {row['mse']!r} is no number"
    return None if finite else f"mse is {row['mse']} (seed {row['seed']})"


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    return _settings(path, json.loads, problems)


def _yaml(path: Path, problems: list[str]) -> dict[str, Any]:
    return _settings(path, partial(yaml.load, Loader=LOADER), problems)


def _settings(path: Path, parse: Callable[[str], Any], problems: list[str]) -> dict[str, Any]:
    """A file of named values, or nothing and a problem."""
    try:
        read = parse(path.read_text())
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError, yaml.YAMLError):
        problems.append(f"{path}: damaged or truncated")
        return {}
    if not isinstance(read, dict):
        problems.append(f"{path}: damaged or truncated")
        return {}
    return read


def _inside(settings: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Settings within settings; empty where a truncated file has none."""
    for key in keys:
        found = settings.get(key)
        settings = found if isinstance(found, dict) else {}
    return settings


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder else path.name
