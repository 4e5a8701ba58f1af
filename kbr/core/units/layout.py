"""Numbers, vectors and frames side by side: how what x holds by name lies in a flat row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from kbr.core.errors import KbrError
from kbr.core.units.columns import is_table, names_of, numbers

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The entries of a row in order; the shape of each: () a number, (d,), or (c, h, w) a frame."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> "Layout":
        return cls(tuple(names), ((),) * len(names))

    @cached_property
    def spans(self) -> dict[str, range]:
        """Where each entry lies in a flat row."""
        ends = accumulate((math.prod(shape) for shape in self.shapes), initial=0)
        return {name: range(*pair) for name, pair in zip(self.names, pairwise(ends), strict=True)}

    @cached_property
    def width(self) -> int:
        return sum(map(len, self.spans.values()))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the flat columns: of a vector v, v_1, v_2, ...; pixels have none ("")."""
        found: list[str] = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            found += {
                0: [name],
                1: [f"{name}_{k + 1}" for k in range(math.prod(shape))],
                3: [""] * math.prod(shape),
            }[len(shape)]
        return tuple(found)

    @property
    def channels(self) -> list[range]:
        """The flat columns of every channel of frames, which have one scale."""
        each = []
        for span, shape in zip(self.spans.values(), self.shapes, strict=True):
            if len(shape) == 3:
                size = shape[1] * shape[2]
                each += [range(at, at + size) for at in range(span.start, span.stop, size)]
        return each

    def flat(self, entries: Sequence[np.ndarray]) -> np.ndarray:
        """Entries [*s ...] as rows [*s d]; one that is a lone NaN is absent from all of them."""
        named = list(zip(self.names, self.shapes, entries, strict=True))
        there = [(name, shape, v) for name, shape, v in named if v.ndim or not np.isnan(v)]
        leads = [_leads(name, shape, values) for name, shape, values in there] or [[()]]
        common = [lead for lead in leads[0] if all(lead in others for others in leads)]
        if not common:
            rows = ", ".join(f"{name} {list(v.shape)}" for name, _, v in there)
            raise KbrError(f"all parts of x must have as many rows; got {rows}.")
        lead = common[0]
        parts = [
            np.broadcast_to(values, (*lead, math.prod(shape)))
            if values.ndim == 0 and np.isnan(values)
            else values.reshape(*lead, -1)
            for _, shape, values in named
        ]
        return np.concatenate(parts, -1)

    def words(self) -> str:
        """The entries with their shapes, for messages."""
        pairs = zip(self.names, self.shapes, strict=True)
        return ", ".join(f"{name} {list(shape)}" if shape else name for name, shape in pairs)


def _leads(name: str, shape: Shape, values: np.ndarray) -> list[Shape]:
    """What comes before the shape of one entry; a frame of one channel may come without it."""
    forms = dict.fromkeys((shape, shape[1:] if shape[:1] == (1,) else shape))
    found = [
        values.shape[: values.ndim - len(form)]
        for form in forms
        if values.ndim >= len(form) and values.shape[values.ndim - len(form) :] == form
    ]
    if not found:
        raise KbrError(
            f"{name} must have shape {['...', *shape]}, as in training; got {list(values.shape)}."
        )
    return found


def laid_out(table: Any) -> tuple[Layout | None, list[np.ndarray]]:
    """Columns [T ...] of a table, and their layout; None where each of them is one number."""
    names = tuple(str(name) for name in names_of(table))
    entries = [entry(table[name], str(name)) for name in names_of(table)]
    if all(values.ndim < 2 for values in entries):
        return None, entries
    return Layout(names, tuple(map(_shape, names, entries))), entries


def flat_rows(x: Any, known: Layout | None) -> tuple[Any, Layout | None]:
    """Tables with vectors or frames as flat rows, also inside a list, and their layout."""
    if isinstance(x, list | tuple) and x and is_table(x[0]):
        rows, layouts = zip(*(flat_rows(part, known) for part in x), strict=True)
        if len(set(layouts)) > 1:
            words = " and ".join(
                one.words() if one else "numbers" for one in dict.fromkeys(layouts)
            )
            raise KbrError(f"all sequences of x need the same parts; got {words}.")
        return list(rows), layouts[0]
    if not is_table(x):
        return x, known
    if known is not None:
        return known.flat([entry(x[name], name) for name in known.names]), known
    layout, entries = laid_out(x)
    return (x, None) if layout is None else (layout.flat(entries), layout)


def _shape(name: str, values: np.ndarray) -> Shape:
    """That of one row: grey frames [T, h, w] have one channel."""
    if not 1 <= values.ndim <= 4 or values.size == 0:
        raise KbrError(
            f"{name} must be numbers [T], vectors [T, d] or frames [T, h, w] or [T, c, h, w]; got "
            f"shape {list(values.shape)}."
        )
    shape = tuple(values.shape[1:])
    return (1, *shape) if len(shape) == 2 else shape


def entry(value: Any, name: str) -> np.ndarray:
    """One column as float64; in a list of arrays, None is an absent one."""
    if isinstance(value, list | tuple) and any(item is None for item in value):
        known = next((np.shape(item) for item in value if item is not None), ())
        value = [np.full(known, np.nan) if item is None else item for item in value]
    return numbers(value, name)


def has_parts(x: Any) -> bool:
    """Whether x, or the first of several sequences, is a table with vectors or frames in it."""
    first = x[0] if isinstance(x, list | tuple) and x else x
    return is_table(first) and any(_is_wide(first[name]) for name in names_of(first))


def _is_wide(column: Any) -> bool:
    if isinstance(column, list | tuple):
        return any(np.ndim(item) > 0 for item in column if item is not None)
    return getattr(column, "ndim", 1) > 1
