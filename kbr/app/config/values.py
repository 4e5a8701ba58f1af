"""Whether a value of the config suits what is declared for its key, and the words for both."""

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

LARGEST = 1e20  # of a number; what is larger loses its digits or overflows
SHOWN = 60  # characters of a value in a message
PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class Node:
    """A part of the config with keys of its own."""


class Built:
    """A part that names the class it is built from."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, without the ends that are `open`; none above `most`, which is
    more than anybody wants and is named only to those who pass it."""

    low: float = -math.inf
    high: float = math.inf
    open: Literal["", "low", "high", "both"] = ""
    most: float = math.inf

    def holds(self, number: float) -> bool:
        above = number > self.low if self.open in ("low", "both") else number >= self.low
        below = number < self.high if self.open in ("high", "both") else number <= self.high
        return above and below and number <= self.most

    def words(self, value: Any) -> str:
        if _is_number(value) and value > self.most:
            return f" of at most {self.most:.10g}"
        if math.isinf(self.high):
            return f" above {self.low:g}" if self.open else f" of at least {self.low:g}"
        left = "(" if self.open in ("low", "both") else "["
        right = ")" if self.open in ("high", "both") else "]"
        return f" in {left}{self.low:.10g}, {self.high:.10g}{right}"


@dataclass(frozen=True)
class Length:
    """A text or list of so many items."""

    low: int = 1
    high: float = math.inf


@dataclass(frozen=True)
class Described:
    """Words of its own for what is expected."""

    words: str


def suits(value: Any, kind: Any) -> bool:
    """Whether a value is of this kind: a plain type, list, mapping, union, Literal or Annotated.

    What config files cannot hold, a class of the code say, is not looked into.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return suits(value, parts[0]) and all(_obeys(value, mark) for mark in parts[1:])
    if origin in (Union, types.UnionType):
        return any(suits(value, part) for part in parts)
    if origin is Literal:
        return any(value == word and type(value) is type(word) for word in parts)
    if kind in (None, type(None)):
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= LARGEST  # NaN is not
    if kind is str:
        return isinstance(value, str)
    if _is_list(origin, kind):
        inner = parts[0] if parts else Any
        return isinstance(value, list | tuple) and all(suits(item, inner) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(suits(v, parts[1]) for v in value.values())
    if kind is Built:
        return isinstance(value, Mapping) and "_target_" in value
    return isinstance(value, Mapping) if kind is Node else True


def expected(kind: Any, value: Any = None) -> str:
    """What is expected, in words; limits of all numbers are named where the value passes them."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = [mark.words for mark in parts[1:] if isinstance(mark, Described)]
        ranges = "".join(mark.words(value) for mark in parts[1:] if isinstance(mark, Range))
        plain = expected(parts[0], value)
        return own[0] if own else plain if " of at most " in plain else plain + ranges
    if origin in (Union, types.UnionType):
        parts = tuple(sorted(parts, key=lambda part: part is type(None)))
        return either([expected(part, value) for part in parts])
    if origin is Literal:
        return either([str(word) for word in parts])
    if kind in (None, type(None)):
        return "null"
    if _is_list(origin, kind):
        inner = expected(parts[0]) if parts else "values"
        return f"a list [...] with {inner} each"
    if origin in (dict, Mapping):
        return f"a mapping {{...}} of {expected(parts[1])} each"
    if kind is float and _is_number(value) and abs(value) > LARGEST:
        return f"a number of at most {LARGEST:g}"
    return PLAIN.get(kind, "a mapping {...}")


def written(value: Any) -> str:
    """A value on one line, much as it is typed; long ones are cut."""
    text = _typed(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _typed(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_typed(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_typed, value))}]"
    return repr(value)


def _obeys(value: Any, mark: Any) -> bool:
    if isinstance(mark, Range):
        return mark.holds(value)
    if mark is Node:
        return isinstance(value, Mapping)
    return mark.low <= len(value) <= mark.high if isinstance(mark, Length) else True


def _is_list(origin: Any, kind: Any) -> bool:
    return origin in (list, tuple, Sequence) or kind in (list, tuple, Sequence)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def strings(value: Any) -> Iterator[str]:
    """All texts of nested settings, keys too."""
    return (one for one in nested(value) if isinstance(one, str))


def nested(value: Any) -> Iterator[Any]:
    """A value with all that is in it, keys too."""
    yield value
    inside = [*value, *value.values()] if isinstance(value, Mapping) else value
    for item in inside if isinstance(value, Mapping | list) else ():
        yield from nested(item)


def walked(node: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of nested mappings by its path, parts before what is in them."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        yield key, value
        if isinstance(value, Mapping):
            yield from walked(value, key)
