"""What of a stream leaves the range of training: counted row by row, said at first and at last."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kbr.core.units.columns import is_table
from kbr.core.units.outside import ADVICE, Outside
from kbr.core.units.ranges import Range, Ranges
from kbr.core.units.training_range import observed_names
from kbr.core.units.units import Units


class RangeWatch:
    """Call it with every row that was answered, then `end`. Without known ranges it says nothing.

    Its memory does not grow with the rows.
    """

    def __init__(self, units: Units, say: Callable[[str], None]) -> None:
        self.units, self.say = units, say
        known = units.ranges or Ranges()
        x, u = (one if one and one.low.ndim == 1 else None for one in (known.x, known.u))
        self._x = None if x is None else _Counts(x, observed_names(units))
        self._u = None if u is None or units.u is None else _Counts(u, units.u.columns)
        self._rows, self._said = 0, 0  # rows so far, and when something was said

    def __call__(self, value: Any, *, moved: bool) -> None:
        """A row as `step` takes it; `moved` where it was not the first of its sequence."""
        self._rows += 1
        beyond = False
        if self._x is not None:
            row = self.units.observed(value) if is_table(value) else value
            beyond = self._x.add(np.asarray(row, dtype=np.float64).reshape(-1))
        if self._u is not None and self.units.u is not None and moved:
            move = self.units.u.given(value, None, np.asarray(np.nan))
            beyond = (move is not None and self._u.add(move.cpu().numpy().reshape(-1))) or beyond
        if beyond and not self._said:
            self._tell()

    def end(self) -> None:
        """One line about all rows, unless the first one has told all."""
        if self._said != self._rows:
            self._tell()

    def _tell(self) -> None:
        parts = [one.outside(self._rows) for one in (self._x, self._u) if one is not None]
        lines = [line for found in parts for line in found.lines]
        if lines:
            self.say(f"range: {'; '.join(lines)}: {ADVICE}")
            self._said = self._rows


class _Counts:
    """Of every column: how many values were outside, the least and the most of them."""

    def __init__(self, known: Range, names: tuple[str, ...]) -> None:
        self.known, self.names = known, names
        self.floor, self.ceiling = (end.numpy() for end in known.limits)
        size = len(self.floor)
        self.rows = np.zeros(size, dtype=np.int64)
        self.least, self.most = np.full(size, np.inf), np.full(size, -np.inf)

    def add(self, row: np.ndarray) -> bool:
        """Whether some column of the row is outside."""
        beyond: np.ndarray = (row < self.floor) | (row > self.ceiling)
        if not beyond.any():  # NaN is neither
            return False
        beyond &= np.isfinite(row)
        self.rows += beyond
        self.least = np.where(beyond, np.minimum(row, self.least), self.least)
        self.most = np.where(beyond, np.maximum(row, self.most), self.most)
        return bool(beyond.any())

    def outside(self, rows: int) -> Outside:
        counts = (torch.from_numpy(part.copy()) for part in (self.rows, self.least, self.most))
        return Outside(self.names, self.known.low, self.known.high, *counts, of=rows)
