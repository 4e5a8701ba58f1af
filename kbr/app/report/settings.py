"""The report's part on what was run: settings, commit, versions, machine, time."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from kbr.app.runs.facts import location
from kbr.app.runs.finished import Collection, Run
from kbr.app.text.numbers import in_words
from kbr.app.text.plain import one_line, visible

FACTS = {
    "commit": "commit",
    "kbr": "kbr",
    "torch": "PyTorch",
    "python": "Python",
    "machine": "machine",
}


def runs_html(found: Collection) -> str:
    """One list of facts for each folder that was given."""
    parts = ['<h2 id="runs">What was run</h2>']
    for folder in found.folders:
        mine = [run for run in found.runs if run.folder.is_relative_to(folder)]
        if mine:
            parts.append(_folder(folder, mine))
    return "\n".join(parts) if len(parts) > 1 else ""


def _folder(folder: Path, runs: Sequence[Run]) -> str:
    given, varied = _overrides(runs)
    seconds = sum(run.manifest.get("seconds", 0.0) for run in runs)
    facts = {"runs": str(len(runs)), "seeds": _seeds(runs), "given": " ".join(given) or "defaults"}
    facts |= {f"varied: {key}": ", ".join(values) for key, values in varied.items()}
    for key, name in FACTS.items():
        facts[name] = ", ".join(dict.fromkeys(_word(run.manifest.get(key)) for run in runs))
    finished = sorted(run.manifest["finished"] for run in runs if "finished" in run.manifest)
    if finished:
        first, last = finished[0], finished[-1]
        facts["finished"] = first if first == last else f"{first} to {last}"
    facts["time"] = f"{in_words(seconds)} in all runs together"
    listed = "\n".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    config = visible(yaml.safe_dump(runs[0].config, sort_keys=False, allow_unicode=True))
    return (
        f"<h3>{escape(location(folder))}</h3>\n<dl>\n{listed}\n</dl>\n"
        f"<details><summary>Config of {escape(one_line(runs[0].folder.name))}</summary>\n"
        f"<pre>{escape(config)}</pre></details>"
    )


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


def _word(value: Any) -> str:
    return "unknown" if value is None else str(value)
