"""How a machine has changed: observations as trailing means, against its own start, with its age.

For what wears down slowly. One noisy row says little, rows that follow each other err together, and
machines differ from the first row on: what tells is the mean of the last rows, how far that is from
the mean of the first ones of the same machine, and how long the change took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbr.core.errors import KbrError

AGE = "age"


@dataclass(frozen=True, eq=False)
class Memory:
    """What a stream keeps of a sequence: its last rows, sums of the first ones, and its age."""

    recent: np.ndarray  # [at most k, d], the newest last
    sums: np.ndarray  # [d] of the first k numbers of each column
    counts: np.ndarray  # [d]
    age: int


@dataclass(frozen=True)
class Trend:
    """Observations x [T, d] of one sequence as [T, 2 d + 1] columns, of the past alone.

    Math: y_t = (m_t, m_t - f_t, t),  m_t the mean of x_t-k+1 .. x_t (fewer at the start), f_t the
          mean of the first min(t + 1, k) rows, k the `rows`; t counts from 0.
    Only numbers that are there count, in m_t and among the first k; the answer of a row that lacks
    one is missing in that column. A sequence is what a machine went through: gaps of time, in which
    it stood still, do not end it. `columns` are the names of x, where it has any.
    """

    rows: int
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.rows) is not int or self.rows < 2:
            raise KbrError(
                f"trend must be a whole number of rows, at least 2; got {self.rows!r}. Leave it "
                "out to see every row as it is."
            )

    @classmethod
    def of_source(cls, source: Mapping[str, Any]) -> "Trend | None":
        """The trend that a filter keeps in the `source` of its units; None where it has none."""
        if (kept := source.get("trend")) is None:
            return None
        return cls(int(kept["rows"]), tuple(map(str, kept["columns"])))

    @property
    def source(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {"rows": self.rows, "columns": list(self.columns)}

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns of trends are called."""
        if AGE in self.columns:
            raise KbrError(f"trend adds a column '{AGE}', and x has one already. Rename it.")
        kinds = ("mean", "change")
        return (*(f"{name} {kind}" for kind in kinds for name in self.columns), AGE)

    def before(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns from which those of these names are made; what is no trend stays."""
        return (*self.columns, *(name for name in names if name not in self.names))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """All rows of one sequence at once."""
        x = np.asarray(x, dtype=np.float64)
        there = np.isfinite(x)
        known = np.where(there, x, 0.0)
        before = np.zeros((self.rows - 1, x.shape[1]))
        window = np.lib.stride_tricks.sliding_window_view
        sums, counts = (
            window(np.concatenate([before, part]), self.rows, axis=0).sum(-1)
            for part in (known, there)
        )
        so_far = np.cumsum(there, axis=0)
        first = np.cumsum(np.where(so_far <= self.rows, known, 0.0), axis=0)
        age = np.arange(len(x), dtype=np.float64)[:, None]
        return _columns(x, (sums, counts), (first, np.minimum(so_far, self.rows)), age)

    def step(self, memory: Memory | None, row: np.ndarray) -> tuple[Memory, np.ndarray]:
        """The columns [2 d + 1] of one more row [d] of a stream; None before a sequence's first."""
        row = np.asarray(row, dtype=np.float64)
        if memory is None:
            nothing = np.zeros_like(row)
            memory = Memory(row[None, :][:0], nothing, nothing, -1)
        recent = np.vstack([memory.recent, row])[-self.rows :]
        new = np.isfinite(row) & (memory.counts < self.rows)
        sums, counts = memory.sums + np.where(new, row, 0.0), memory.counts + new
        now = Memory(recent, sums, counts, memory.age + 1)
        there = np.isfinite(recent)
        last = (np.where(there, recent, 0.0).sum(0), there.sum(0))
        return now, _columns(row, last, (sums, counts), np.array([float(now.age)]))


def _columns(
    x: np.ndarray,
    last: tuple[np.ndarray, np.ndarray],
    first: tuple[np.ndarray, np.ndarray],
    age: np.ndarray,
) -> np.ndarray:
    """(m, m - f, age) from sums and counts of the last and of the first rows; NaN where x is."""
    mean, start = (total / np.maximum(count, 1) for total, count in (last, first))
    mean = np.where(np.isfinite(x), mean, np.nan)
    return np.concatenate([mean, mean - start, age], axis=-1)
