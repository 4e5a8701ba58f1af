"""The update on the training points that matter at a step: near the prediction and the observation.

For kernels of full rank on many points. A point whose ratio is small, or whose observation is
unlike the new one, hardly moves the posterior, so the Gram form is solved on the points with the
largest r_i k(x_i, x) alone. Their Gram matrix is computed at the step: nothing n x n is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.features import PivotedCholesky
from kbr.core.filters.kernel.engine import GROUP, Coordinates, Points, Query, Ridge, Weights
from kbr.core.kernels import Kernel
from kbr.core.rules import Rule

MEDIUM = 2000  # points above which kernels of a high rank are taken here
HIGH_RANK = 128  # above which features of x cost more than a step on few points
LIMIT = 512  # points of a solve at most,
FIRST = 1024  # and where the ratio singles out none, as at the first step
SHARE = 1e-5  # of the largest r_i k(x_i, x): points with less are left out


@dataclass(frozen=True, eq=False)
class Local:
    """Gram form on at most `limit` points, chosen anew at every step."""

    kernel: Kernel
    points: Float[Tensor, "*b n dx"]
    limit: int = LIMIT
    at_points: Callable[[Tensor], Tensor] = field(init=False, repr=False)
    name: ClassVar[str] = "local"

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_points", self.kernel.anchored(self.points))

    def observe(self, x: Points) -> Coordinates:
        return x

    def weights(self, rule: Rule, ratio: Weights, query: Query, lam: Ridge) -> Weights:
        n = ratio.shape[-1]
        near = self.at_points(query)
        score = ratio.abs() * near
        counts = (score > SHARE * score.amax(-1, keepdim=True)).sum(-1).reshape(-1)
        flat, near, score = (rows.reshape(-1, n) for rows in (ratio, near, score))
        even = flat.amax(-1) < 2 * flat.mean(-1)
        counts = torch.where(even, counts.clamp_max(FIRST), counts.clamp_max(self.limit))
        lams = lam.expand(ratio.shape[:-1]).reshape(-1)
        points = self.points.reshape(-1, *self.points.shape[-2:])
        owner = torch.arange(len(flat), device=ratio.device) // ratio.shape[-2]
        order, weights = counts.argsort(), torch.zeros_like(flat)
        for some in torch.split(order, max(1, GROUP // max(int(counts.max()), 1) ** 2)):
            index = score[some].topk(max(int(counts[some[-1]]), 1), -1).indices
            chosen = points[owner[some].unsqueeze(-1), index]
            cross = near[some].gather(-1, index).unsqueeze(-1)
            gram = self.kernel(chosen, chosen)
            r = flat[some].gather(-1, index)
            part = rule.gram_weights(gram, cross, r, n, lams[some]).squeeze(-1)
            weights[some] = weights[some].scatter(-1, index, part)
        return weights.reshape(ratio.shape)


def is_high_rank(kernel: Kernel, x: Float[Tensor, "*b n dx"]) -> bool:
    """Whether evenly spaced points tell that features of x would be many."""
    n = x.shape[-2]
    rows = torch.linspace(0, n - 1, min(n, MEDIUM), device=x.device).round().long()
    few = x.index_select(-2, rows).to(torch.float64)
    rough = PivotedCholesky(kernel=kernel, tolerance=1e-7, max_rank=HIGH_RANK + 1)
    return rough.fit(few).train.shape[-1] > HIGH_RANK
