"""What a run's files say about it, of the kind that is expected; what is not is named."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from kbr.app.config.values import Range, suits
from kbr.app.text.plain import one_line
from kbr.core.filters.kernel.choosing.search import Edge

LARGEST, SMALLEST = 1e50, 1e-50  # of an error or a setting on an axis
SEED_BITS = 63

Kinds = Mapping[str, tuple[Any, str]]  # of a value, and the words for it
MANIFEST_FACTS: Kinds = {
    **dict.fromkeys(
        ("fingerprint", "kbr", "torch", "python", "machine", "commit", "finished"), (str, "text")
    ),
    "seconds": (Annotated[float, Range(0)], "a number of seconds"),
    "notes": (list[str], "a list of texts"),
    "edges": (list[dict[str, Any]], "a list of edges"),
    "digests": (dict[str, str], "a digest for each file"),
}
METRIC_FACTS: Kinds = {"test/trials": (int, "a number of trials")}
FIGURE_FACTS: Kinds = {
    **dict.fromkeys(("name", "x", "label", "reference"), (str, "text")),
    "models": (list[str], "a list of models"),
}
NULL = {"commit", *FIGURE_FACTS}  # may be null: no checkout, nothing chosen
EDGE = {**get_type_hints(Edge), "value": Annotated[float, Range(0)]}


def facts(
    values: Mapping[str, Any], kinds: Kinds, *, where: str, problems: list[str]
) -> dict[str, Any]:
    """The values of `kinds` that are there; null says no more than that a value is not."""
    kept = {}
    for name, (kind, expected) in kinds.items():
        value: Any = values.get(name)
        if value is None and (name in NULL or name not in values):
            continue
        if suits(value, kind) and (name != "edges" or all(map(_is_edge, value))):
            kept[name] = _shown(value)
        else:
            came = one_line(repr(value), 60)
            problems.append(f"{where}{name} is {came}, not {expected}; not used")
    if "edges" in kept:
        kept["edges"] = [Edge(**{key: edge[key] for key in EDGE}) for edge in kept["edges"]]
    return kept


def _is_edge(entry: dict[str, Any]) -> bool:
    return all(suits(entry.get(key), kind) for key, kind in EDGE.items())


def _shown(value: Any) -> Any:
    """Texts as one visible line each."""
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    return one_line(value, 1000) if isinstance(value, str) else value


def row_fault(row: Mapping[str, str], needed: tuple[str, ...]) -> str | None:
    """What is wrong with a trial, if anything."""
    if missing := [name for name in needed if not row.get(name)]:
        return f"it has no {', '.join(missing)} (truncated?)"
    seed, mse = row["seed"], row["mse"]
    try:
        whole, error = int(seed), float(mse)
    except ValueError:
        return f"seed {one_line(seed, 40)!r} or mse {one_line(mse, 40)!r} is no number"
    if whole.bit_length() > SEED_BITS:
        return f"seed {one_line(seed, 40)} has more than {SEED_BITS} bits"
    if not math.isfinite(error) or error < 0 or not is_in_range(error):
        return f"mse is {one_line(mse, 40)} (seed {seed})"
    return None


def is_in_range(value: float) -> bool:
    """Whether a number can be squared, divided and put on an axis."""
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def is_number(text: Any) -> bool:
    """Whether a cell of a table can be put on an axis."""
    try:
        return is_in_range(float(text))
    except (TypeError, ValueError):
        return False


def location(path: Path) -> str:
    """A path in a line of its own."""
    return one_line(str(path), 1000)
