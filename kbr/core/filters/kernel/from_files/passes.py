"""Sums over all rows of the files, in pieces: what a fit needs of very many pairs.

Pieces are the same however many workers take them, and their sums are added in order: any number
of workers, and a fit that was stopped and went on, end with the same numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.filters.kernel.engines.landmarks import Span
from kbr.core.filters.kernel.from_files.journal import Journal, key_of
from kbr.core.filters.kernel.from_files.pairs import FilePairs
from kbr.core.filters.kernel.from_files.team import Team
from kbr.core.kernels import Kernel
from kbr.core.showing.progress import Shown
from kbr.core.tables import blocks
from kbr.core.units.units import Units

PIECE = 131_072  # rows
READ = 16_384  # rows read at once
AT_ONCE = 2048  # rows whose features are in the cache together


@dataclass(frozen=True, eq=False)
class Pass(ABC):
    """A sum over rows; `__call__` is that over a piece, as a flat array. Workers are sent it."""

    pairs: FilePairs
    units: Units
    title: ClassVar[str]

    @property
    @abstractmethod
    def key(self) -> Tensor:
        """What tells this sum from others of the same title."""

    def pieces(self) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in blocks(self.pairs.n, PIECE)]

    @abstractmethod
    def __call__(self, piece: tuple[int, int]) -> np.ndarray: ...

    def _reads(self, piece: tuple[int, int]) -> Iterator[tuple[int, int]]:
        start, stop = piece
        for part in blocks(stop - start, READ):
            yield start + part.start, start + part.stop


@dataclass(frozen=True, eq=False)
class Averages(Pass):
    """Math: sum_i k_X(x_i, p) k_Z(z_i, q) over all rows, at pairs (p, q); and how many rows."""

    kernels: tuple[Kernel, Kernel]
    points: tuple[Float[Tensor, "r dx"], Float[Tensor, "r dz"]]
    title = "averages of all pairs"

    @property
    def key(self) -> Tensor:
        return torch.cat(self.points, -1)

    def __call__(self, piece: tuple[int, int]) -> np.ndarray:
        at_x, at_z = (k.anchored(p) for k, p in zip(self.kernels, self.points, strict=True))
        total, count = torch.zeros_like(self.points[1][:, 0]), 0
        for start, stop in self._reads(piece):
            rows_of = self.pairs.x(start, stop), self.pairs.z(start, stop)
            x, z = inner(self.units, *whole_rows(*rows_of))
            for rows in blocks(len(z), AT_ONCE):
                total += at_x(x[rows]).mul_(at_z(z[rows])).sum(0)
            count += len(z)
        return np.append(total.numpy(), count)


@dataclass(frozen=True, eq=False)
class Steps(Pass):
    """Math: sum_t phi(z_t) phi(z_t+1)' over all steps inside sequences; and how many steps."""

    span: Span
    title = "dynamics of all steps"

    @property
    def key(self) -> Tensor:
        return self.span.points

    def __call__(self, piece: tuple[int, int]) -> np.ndarray:
        phi_of, p = self.span.quick(), len(self.span.points)
        total, count = self.span.points.new_zeros(p, p), 0
        for start, stop in self._reads(piece):
            first = max(start - 1, 0)  # the row before is where the first step begins
            z = self.units.z.apply(self.pairs.z(first, stop))
            whole = z.isfinite().all(-1)
            follows = whole[1:] & whole[:-1]
            begins = torch.from_numpy(self.pairs.begins(first + 1, stop))
            follows[begins] = False
            z = torch.where(whole.unsqueeze(-1), z, 0.0)
            for rows in blocks(len(z) - 1, AT_ONCE):
                phi = phi_of(z[rows.start : rows.stop + 1])
                total += (phi[:-1] * follows[rows].unsqueeze(-1)).mT @ phi[1:]
            count += int(follows.sum())
        return np.append(total.flatten().numpy(), count)


def whole_rows(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs without a missing number."""
    whole = x.reshape(len(x), -1).isfinite().all(-1) & z.isfinite().all(-1)
    return (x, z) if bool(whole.all()) else (x[whole], z[whole])


def inner(units: Units, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs in inner coordinates, observations flat."""
    return units.x.apply(x, "x").reshape(len(x), -1), units.z.apply(z)


def summed(
    task: Pass, team: Team, journal: Journal, shown: Shown | None = None
) -> tuple[Tensor, int]:
    """The sum over all pieces, and the count; those that the journal knows are not done again."""
    name = f"{task.title} {key_of(task.key)}"
    pieces, (done, total) = task.pieces(), journal.sums(name)
    left = pieces[done:]
    seen = left if shown is None else shown(left)
    for _, part in zip(seen, team.map(task, left), strict=False):
        done, total = done + 1, part if total is None else total + part
        journal.keep_sums(name, done, total)
    assert total is not None
    values = torch.from_numpy(total)
    return values[:-1], round(float(values[-1]))
