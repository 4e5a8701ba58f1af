"""The report's part on what was run: settings, commit, versions, machine, time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from kbr.app.runs.facts import location
from kbr.app.runs.finished import Collection, Run
from kbr.app.text.numbers import duration
from kbr.app.text.plain import one_line, visible

FACTS = {
    "commit": "commit",
    "kbr": "kbr",
    "torch": "PyTorch",
    "python": "Python",
    "machine": "machine",
}


@dataclass(frozen=True)
class FolderFacts:
    """What was run in one of the folders that were given."""

    place: str
    facts: dict[str, str]
    example: str  # the run whose
    config: str  # is shown


def facts_by_folder(collection: Collection) -> list[FolderFacts]:
    """Of every folder that holds runs."""
    by_folder = {
        folder: [run for run in collection.runs if run.folder.is_relative_to(folder)]
        for folder in collection.folders
    }
    return [_facts(folder, runs) for folder, runs in by_folder.items() if runs]


def _facts(folder: Path, runs: Sequence[Run]) -> FolderFacts:
    given, varied = _overrides(runs)
    seconds = sum(run.manifest.get("seconds", 0.0) for run in runs)
    facts = {"runs": str(len(runs)), "seeds": _seeds(runs), "given": " ".join(given) or "defaults"}
    facts |= {f"varied: {key}": ", ".join(values) for key, values in varied.items()}
    for key, name in FACTS.items():
        values = (str(run.manifest.get(key, "unknown")) for run in runs)
        facts[name] = ", ".join(dict.fromkeys(values))
    finished = sorted(run.manifest["finished"] for run in runs if "finished" in run.manifest)
    if finished:
        facts["finished"] = " to ".join(dict.fromkeys((finished[0], finished[-1])))
    facts["time"] = f"{duration(seconds)} in all runs together"
    config = visible(yaml.safe_dump(runs[0].config, sort_keys=False, allow_unicode=True))
    return FolderFacts(location(folder), facts, one_line(runs[0].folder.name), config)


def _overrides(runs: Sequence[Run]) -> tuple[list[str], dict[str, list[str]]]:
    """Settings typed for every run alike, and those that differ with their values."""
    every = list(dict.fromkeys(text for run in runs for text in run.overrides))
    alike = set.intersection(*(set(run.overrides) for run in runs))
    given = [text for text in every if text in alike]
    varied: dict[str, list[str]] = {}
    for text in every:
        if text not in alike:
            key, _, value = text.partition("=")
            varied.setdefault(key, []).append(value)
    return given, {key: sorted(values, key=_rank) for key, values in varied.items()}


def _rank(text: str) -> tuple[float, str]:
    """Numbers by size, words by letter."""
    try:
        value = float(text)
    except ValueError:
        return float("inf"), text
    return (value, "") if value == value else (float("inf"), text)


def _seeds(runs: Sequence[Run]) -> str:
    seeds = sorted({int(row["seed"]) for run in runs for row in run.rows})
    whole = seeds[-1] - seeds[0] == len(seeds) - 1 and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
