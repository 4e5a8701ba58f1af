"""What a run's files say about it, of the kind that is expected; what is not is named."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kbr.app.text.plain import one_line
from kbr.core.filters.kernel.search import Edge

LARGEST, SMALLEST = 1e50, 1e-50  # of an error or a setting on an axis
SEED_BITS = 63


def _text(value: Any) -> str:
    return one_line(_of(str, value), 1000)


def _texts(value: Any) -> list[str]:
    return [_text(one) for one in _of(list, value)]


def _names(value: Any) -> dict[str, str]:
    return {_text(key): _text(one) for key, one in _of(dict, value).items()}


def _size(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= float(_of(int | float, value)) <= LARGEST:
        raise TypeError
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(_of(int, value))


def _edges(value: Any) -> list[Edge]:
    edges = [_of(dict, one) for one in _of(list, value)]
    return [Edge(**{key: take(one.get(key)) for key, take in EDGE.items()}) for one in edges]


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


EDGE: Mapping[str, Callable[[Any], Any]] = {
    "name": _text,
    "end": _text,
    "value": _size,
    "count": _count,
    "of": _count,
}
Kinds = Mapping[str, tuple[Callable[[Any], Any], str]]
MANIFEST_FACTS: Kinds = {
    **dict.fromkeys(
        ("fingerprint", "kbr", "torch", "python", "machine", "commit", "finished"), (_text, "text")
    ),
    "seconds": (_size, "a number of seconds"),
    "notes": (_texts, "a list of texts"),
    "edges": (_edges, "a list of edges"),
    "digests": (_names, "a digest for each file"),
}
METRIC_FACTS: Kinds = {"test/trials": (_count, "a number of trials")}
FIGURE_FACTS: Kinds = {
    **dict.fromkeys(("name", "x", "label", "reference"), (_text, "text")),
    "models": (_texts, "a list of models"),
}


def facts(
    values: Mapping[str, Any], kinds: Kinds, *, where: str, problems: list[str]
) -> dict[str, Any]:
    """The values of `kinds` that are there; null says no more than that a value is not."""
    kept = {}
    for name, (take, expected) in kinds.items():
        if values.get(name) is None and (name in NULL or name not in values):
            continue
        try:
            kept[name] = take(values[name])
        except TypeError:
            came = one_line(repr(values[name]), 60)
            problems.append(f"{where}{name} is {came}, not {expected}; not used")
    return kept


NULL = {"commit", *FIGURE_FACTS}  # may be null: no checkout, nothing chosen


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
