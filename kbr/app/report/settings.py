"""The report's part on what was run: settings, commit, versions, machine, time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from kbr.app.runs.facts import is_number, location
from kbr.app.runs.finished import Collection, Run
from kbr.app.text.numbers import duration
from kbr.app.text.plain import one_line, visible


@dataclass(frozen=True)
class FolderFacts:
    """What was run in one folder, and the config of one of its runs as an example."""

    place: str
    facts: dict[str, str]
    example: str
    config: str


def facts_by_folder(collection: Collection) -> list[FolderFacts]:
    """Of every folder that holds runs."""
    by_folder = {
        folder: [run for run in collection.runs if run.folder.is_relative_to(folder)]
        for folder in collection.folders
    }
    return [_facts(folder, runs) for folder, runs in by_folder.items() if runs]


def _facts(folder: Path, runs: Sequence[Run]) -> FolderFacts:
    overrides = dict.fromkeys(text for run in runs for text in run.overrides)
    shared = [text for text in overrides if all(text in run.overrides for run in runs)]
    varied: dict[str, list[str]] = {}
    for text in overrides:
        if text not in shared:
            key, _, value = text.partition("=")
            varied.setdefault(key, []).append(value)
    facts = {"runs": str(len(runs)), "seeds": _seeds(runs), "given": " ".join(shared) or "defaults"}
    for key, values in varied.items():
        facts[f"varied: {key}"] = ", ".join(sorted(values, key=_rank))
    names = {"torch": "PyTorch", "python": "Python"}
    for key in ("commit", "kbr", "torch", "python", "machine"):
        versions = (str(run.manifest.get(key, "unknown")) for run in runs)
        facts[names.get(key, key)] = ", ".join(dict.fromkeys(versions))
    finished = sorted(run.manifest["finished"] for run in runs if "finished" in run.manifest)
    if finished:
        facts["finished"] = " to ".join(dict.fromkeys((finished[0], finished[-1])))
    seconds = sum(run.manifest.get("seconds", 0.0) for run in runs)
    facts["time"] = f"{duration(seconds)} in all runs together"
    config = visible(yaml.safe_dump(runs[0].config, sort_keys=False, allow_unicode=True))
    return FolderFacts(location(folder), facts, one_line(runs[0].folder.name), config)


def _rank(text: str) -> tuple[float, str]:
    """Numbers by size, then words by letter."""
    return float(text) if is_number(text) else math.inf, text


def _seeds(runs: Sequence[Run]) -> str:
    seeds = sorted({int(row["seed"]) for run in runs for row in run.rows})
    whole = seeds[-1] - seeds[0] == len(seeds) - 1 and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
