"""Rows that leave the range of the training data: which columns, how often, how far; in one line.

A filter has learned nothing there. Its answers are extrapolations, and so are its error bars.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

SHARE = 0.01  # of the rows: fewer outside are not worth a word
FEWEST = 3  # rows outside, unless there are not so many
NAMED = 3  # columns that are named
LONGEST = 1e9  # numbers from here on have an exponent
DIGITS = 4  # of numbers, unless more are needed to tell them apart
ADVICE = "answers there are extrapolations. Train on rows like these."


@dataclass(frozen=True, kw_only=True)
class Excursion:
    """A column that leaves its training range, in the units of the data.

    low, high     the training range;
    rows          outside, `of` so many;
    least, most   of the values outside;
    truth         whether it is a column of z.
    """

    column: str
    low: float
    high: float
    rows: int
    of: int
    least: float
    most: float
    truth: bool = False

    def __str__(self) -> str:
        low, high = (_written(value, self.low, self.high) for value in (self.low, self.high))
        known = f"{low} to {high}" if self.high > self.low else f"always {low}"
        least = _written(self.least, self.least, self.low)
        most = _written(self.most, self.most, self.high)
        below, above = self.least < self.low, self.most > self.high
        reach = f"from {least} to {most}" if below and above else f"up to {most}"
        reach = f"down to {least}" if below and not above else reach
        where = f"in {self.rows} of {self.of} rows, {reach}"
        name = f"'{self.column}'{' of z' if self.truth else ''}"
        return f"{name} is outside of training ({known}) {where}"

    @property
    def excess(self) -> float:
        """How far it leaves the range, in ranges."""
        away = max(self.low - self.least, self.most - self.high)
        return away / span if (span := self.high - self.low) > 0 else math.inf


@dataclass(frozen=True, eq=False)
class Outside:
    """What left the training range in sequences of `of` rows; false where nothing did.

    Per sequence and column: how many rows were outside, the least and the most of their values
    (infinite where there are none), and the training range, NaN where a column has none.
    """

    names: tuple[str, ...]
    low: Float[Tensor, "*s d"]
    high: Float[Tensor, "*s d"]
    rows: Int[Tensor, "*s d"]
    least: Float[Tensor, "*s d"]
    most: Float[Tensor, "*s d"]
    of: int = field(kw_only=True)
    truths: bool = field(default=False, kw_only=True)  # whether these are columns of z

    def __bool__(self) -> bool:
        return bool(self.columns)

    def __str__(self) -> str:
        return f"range: {'; '.join(self.lines)}: {ADVICE}" if self else "range: as in training"

    __repr__ = __str__

    @property
    def lines(self) -> tuple[str, ...]:
        """The worst columns, a sentence each, then how many more there are."""
        more = len(self.columns) - NAMED
        rest = (f"and {more} more column{'s' if more > 1 else ''}",) if more > 0 else ()
        return (*map(str, self.columns[:NAMED]), *rest)

    @cached_property
    def columns(self) -> tuple[Excursion, ...]:
        """Those that leave their range in more than a few rows, the worst first.

        Of data sets that were fitted together, each with ranges of its own, the worst counts.
        """
        several = [part.reshape(-1, len(self.names)) for part in self._parts]
        low, high, rows, least, most = several
        found = []
        for k, name in enumerate(self.names):
            alike = bool((low[:, k] == low[0, k]).all() and (high[:, k] == high[0, k]).all())
            some = slice(None) if alike else slice(worst := int(rows[:, k].argmax()), worst + 1)
            counts = rows[some, k]
            outside, of = int(counts.sum()), self.of * len(counts)
            if outside and outside >= min(of, max(FEWEST, math.ceil(SHARE * of))):
                found.append(
                    Excursion(
                        column=name,
                        low=float(low[some, k][0]),
                        high=float(high[some, k][0]),
                        rows=outside,
                        of=of,
                        least=float(least[some, k].min()),
                        most=float(most[some, k].max()),
                        truth=self.truths,
                    )
                )
        return tuple(sorted(found, key=lambda one: (-one.rows / one.of, -one.excess)))

    def sequence(self, *index: int) -> "Outside":
        """That of one of several sequences or data sets."""
        parts = (part[index] for part in self._parts)
        return Outside(self.names, *parts, of=self.of, truths=self.truths)

    def beside(self, other: "Outside") -> "Outside":
        """With other columns of the same sequences."""
        pairs = zip(self._parts, other._parts, strict=True)
        parts = (torch.cat(pair, -1) for pair in pairs)
        return Outside((*self.names, *other.names), *parts, of=self.of)

    def record(self) -> list[dict[str, Any]]:
        """Plain values, for a file: a column each, the worst first."""
        return [dict(vars(one)) for one in self.columns]

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return self.low, self.high, self.rows, self.least, self.most


def _written(value: float, one: float, other: float) -> str:
    """A number with so many digits that these two, one of which it is, differ where written.

    Long whole numbers, like coordinates on a map, stand without an exponent.
    """
    size, apart, digits = max(abs(one), abs(other)), abs(one - other), DIGITS
    if 0 < apart < math.inf and size < math.inf:
        more = math.floor(math.log10(size)) - math.floor(math.log10(apart)) + 2
        digits = min(17, max(DIGITS, more))
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < LONGEST else text
