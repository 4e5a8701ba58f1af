"""Which observations are like none of training: those say nothing about the latent."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.kernels import FEW_COORDINATES, distances_to, squared_distances

ANCHORS = 512  # training observations, evenly spaced, that others are compared with
BEYOND = 1.5  # times the largest held-out distance: farther is unlike


@dataclass(frozen=True, eq=False)
class Reach:
    """Training observations, and how far from the nearest of them an observation may lie.

    The limit is BEYOND times what the farthest held-out observation needed, and at least the root
    mean square distance of the training observations from their mean.
    """

    anchors: Float[Tensor, "*b m dx"]
    limit: Float[Tensor, "*b"]  # squared
    radius: Float[Tensor, "*b 1"] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", self.limit.sqrt().unsqueeze(-1))

    def __call__(self, x: Float[Tensor, "*b q dx"]) -> Bool[Tensor, "*b q"]:
        if x.shape[-2] == 1 and x.shape[-1] <= FEW_COORDINATES:  # a step of a stream
            return distances_to(x, self.anchors).amin(-1) <= self.radius
        return squared_distances(x, self.anchors).amin(-1) <= self.limit.unsqueeze(-1)

    def is_near(self, x: Float[Tensor, "*b s dx"]) -> bool:
        """Whether one observation is all there, and familiar; False also where it is not told."""
        if x.ndim > 2 or x.shape[-1] > FEW_COORDINATES:
            return False
        nearest = distances_to(x, self.anchors).min().item()  # NaN where a number is missing
        return nearest <= self.radius.item()

    def joined(self, x: Float[Tensor, "*b n dx"]) -> "Reach":
        """With training observations that were added later: as near to these is as good."""
        if not x.shape[-2]:
            return self
        anchors = torch.cat([self.anchors, _evenly(x).to(self.anchors)], -2)
        return replace(self, anchors=anchors)


def reach_of(
    x: Float[Tensor, "*b n dx"], held_out: Float[Tensor, "*b t dx"], n_before: int
) -> Reach:
    """From all training observations; those `held_out` are compared with the first `n_before`."""
    anchors, early = (_evenly(part).double() for part in (x, x[..., :n_before, :]))
    limit = (anchors - anchors.mean(-2, keepdim=True)).square().sum(-1).mean(-1)
    if held_out.shape[-2]:
        farthest = squared_distances(held_out.double(), early).amin(-1).amax(-1)
        limit = torch.maximum(limit, BEYOND**2 * farthest)
    return Reach(anchors.contiguous(), limit)


def _evenly(points: Float[Tensor, "*b n dx"]) -> Float[Tensor, "*b m dx"]:
    n = points.shape[-2]
    if n <= ANCHORS:
        return points
    rows = torch.linspace(0, n - 1, ANCHORS, device=points.device).round().long()
    return points.index_select(-2, rows)
