"""A step on the training points that matter to it: near the prediction and the observation.

For kernels of full rank on many points. A point whose ratio is small, or whose observation is
unlike the new one, hardly moves the posterior. So the Gram form is solved on the points with the
largest r_i k(x_i, x), and on every so many of the next ones with the mass of all of them. Their
Gram matrix is computed at the step: nothing n x n is kept. Where the rule leaves out small ratios,
those near the prediction are found by cells of neighbouring latents, so that a step hardly depends
on n.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.features import Features, PivotedCholesky
from kbr.core.filters.kernel.engine import (
    Coordinates,
    Points,
    Query,
    Ridge,
    State,
    Weights,
)
from kbr.core.filters.kernel.operators import LearnedOperators
from kbr.core.kernels import Kernel
from kbr.core.rules import Rule
from kbr.core.tables import at_rows, sum_rows

MEDIUM = 2000  # points above which kernels of a high rank are taken here
HIGH_RANK = 128  # above which features of x cost more than a step on few points
BUDGET = 4_000_000  # points of a solve, times n: the more there are, the closer are the nearest
LEAST, MOST = (
    320,
    1024,
)  # points of a solve; where the ratio singles out none, as at the start, MOST
CELLS = 4096  # points above which cells of latents are looked at first
CELL = 16  # latents in a cell
FAR = 0.2  # of the floor: cells with less in their middle are left out
GROUP = 2**20  # numbers in the Gram matrices that are solved at once: 8 MB, new at each step
SHARE = 1e-5  # of the largest r_i k(x_i, x): points with less are left out


@dataclass(frozen=True, eq=False)
class Local:
    """Gram form on few points, chosen anew at every step."""

    kernel: Kernel
    points: Float[Tensor, "*b n dx"]
    limit: int | None = None
    name: ClassVar[str] = "local"

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", self.limit or points_of(self.points.shape[-2]))

    def observe(self, x: Points) -> Coordinates:
        return x

    def grown(self, x: Points, *, lam: float) -> "Local":
        return Local(self.kernel, torch.cat([self.points, x.to(self.points)], -2))

    def weights(self, rule: Rule, ratio: Weights, query: Query, lam: Ridge) -> Weights:
        n = ratio.shape[-1]
        if ratio.ndim == 2:
            active = ratio.any(0).nonzero().squeeze(-1)
            if 2 * len(active) < n:  # the same on these alone
                few = replace(self, points=self.points.index_select(0, active))
                weights = few._weights(rule, ratio.index_select(-1, active), query, lam, n)
                return torch.zeros_like(ratio).index_copy(-1, active, weights)
        return self._weights(rule, ratio, query, lam, n)

    def _weights(self, rule: Rule, ratio: Weights, query: Query, lam: Ridge, total: int) -> Weights:
        """Of points chosen among so many in total."""
        n = ratio.shape[-1]
        near = self.kernel(query, self.points)
        score = ratio.abs() * near
        flat, near, score = (rows.reshape(-1, n) for rows in (ratio, near, score))
        counts = (score > SHARE * score.amax(-1, keepdim=True)).sum(-1).clamp_min(1)
        even = flat.amax(-1) < 2 * flat.sum(-1) / total
        sizes = counts.minimum(torch.where(even, max(BUDGET // total, MOST), self.limit or MOST))
        lams = lam.expand(ratio.shape[:-1]).reshape(-1)
        points = self.points.reshape(-1, *self.points.shape[-2:])
        owner = torch.arange(len(flat), device=ratio.device) // ratio.shape[-2]
        order, weights = sizes.argsort(), torch.zeros_like(flat)
        for some in torch.split(order, max(1, GROUP // int(sizes.max()) ** 2)):
            best = score[some].topk(int(counts[some].max()), -1).indices
            places, mass = thinned(counts[some], sizes[some])
            index = best.gather(-1, places)
            chosen = points[owner[some].unsqueeze(-1), index]
            cross = near[some].gather(-1, index).unsqueeze(-1)
            gram = self.kernel(chosen, chosen)
            r = flat[some].gather(-1, index) * mass
            part = rule.gram_weights(gram, cross, r, total, lams[some]).squeeze(-1)
            weights[some] = weights[some].scatter_add(-1, index, part)
        return weights.reshape(ratio.shape)


def thinned(
    counts: Int[Tensor, "g"], sizes: Int[Tensor, "g"]
) -> tuple[Int[Tensor, "g width"], Float[Tensor, "g width"]]:
    """Places among so many points in order, `sizes` of them, with the mass that each stands for.

    The first half are taken one by one. The places after them are evenly spaced, each with the mass
    of those up to the next, so that sums over all points keep their size. Rows are filled up to the
    largest size with places of no mass.
    """
    every = torch.arange(int(sizes.max()), device=counts.device)
    count, size = counts.unsqueeze(-1), sizes.unsqueeze(-1)
    half = size // 2
    step = (count - half).double() / (size - half)
    first = every < half
    later = (half + (every - half + 0.5) * step).long()
    places = torch.where(first, every, later).minimum(count - 1)
    mass = torch.where(first, 1.0, step) * (every < size)
    return places, mass


@dataclass(frozen=True, eq=False)
class Cells:
    """Neighbouring latents in cells of equal size, by halving along the longest side."""

    rows: Int[Tensor, "c l"]  # a row may stand twice, so that all cells are full
    centres: Float[Tensor, "c dz"]

    @classmethod
    def of(cls, z: Float[Tensor, "n dz"], size: int = CELL) -> "Cells":
        groups = [torch.arange(len(z), device=z.device)]
        while len(groups[0]) > size:
            groups = [half for group in groups for half in _halves(group, z[group])]
        width = max(map(len, groups))
        rows = torch.stack([torch.cat([g, g[-1:].expand(width - len(g))]) for g in groups])
        return cls(rows, z[rows].mean(1))


def _halves(rows: Tensor, points: Tensor) -> tuple[Tensor, ...]:
    side = int((points.amax(0) - points.amin(0)).argmax())
    return rows[points[:, side].argsort()].chunk(2)


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalOperators(LearnedOperators):
    """Operators that look at the cells near the prediction.

    `near` has features of the cells' centres, `inside` those of the points of each: beside `phi`,
    so that a step reads few and whole cells, both in float32.
    """

    cells: Cells
    near: Float[Tensor, "c p"]
    inside: Float[Tensor, "c l p"]

    @classmethod
    def of(cls, operators: LearnedOperators, latents: Features) -> "LocalOperators":
        cells = Cells.of(operators.points)
        near = latents(cells.centres).to(operators.phi.device, torch.float32)
        inside = operators.phi.float()[cells.rows]
        return cls(**vars(operators), cells=cells, near=near, inside=inside)

    def at_points(self, solved: State) -> Weights:
        """As with all points, but zero in cells whose ratio is far below the rule's floor."""
        floor = float(getattr(self.rule, "floor", 0.0))
        if not floor:
            return super().at_points(solved)
        at = at_rows(solved, self.near)
        close = at > FAR * floor * at.amax(-1, keepdim=True)
        kept = close.any(-2).nonzero().squeeze(-1)
        rows = self.cells.rows.index_select(0, kept).flatten()
        own = close.index_select(-1, kept).repeat_interleave(self.cells.rows.shape[-1], -1)
        ratio = at_rows(solved, self.inside.index_select(0, kept).flatten(0, 1)) * own
        return torch.zeros_like(solved[:, :1]).expand(-1, self.n).index_copy(-1, rows, ratio)

    def coordinates(self, weights: Weights) -> State:
        rows = weights.flatten(0, -2).any(0).nonzero().squeeze(-1)
        if 4 * len(rows) > self.n:
            return super().coordinates(weights)
        return sum_rows(weights.index_select(-1, rows), self.phi.index_select(0, rows))


def points_of(n: int) -> int:
    """How many of n points a step is taken on at most."""
    return min(max(BUDGET // n, LEAST), MOST)


def local_note(n: int) -> str:
    return f"each step on at most {points_of(n)} of {n:,} points, near x and z"


def is_high_rank(kernel: Kernel, x: Float[Tensor, "*b n dx"]) -> bool:
    """Whether evenly spaced points tell that features of x would be many."""
    n = x.shape[-2]
    rows = torch.linspace(0, n - 1, min(n, MEDIUM), device=x.device).round().long()
    few = x.index_select(-2, rows).to(torch.float64)
    rough = PivotedCholesky(kernel=kernel, tolerance=1e-7, max_rank=HIGH_RANK + 1)
    return rough.fit(few).train.shape[-1] > HIGH_RANK
