"""Beliefs as weighted points that move: predict, weigh, draw again."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.filters.classical.particle import ladder_ancestors

NOTHING = -1e6  # logarithm of a weight that is zero


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points [*s m dz] and the logarithms of their weights, which sum to one.

    `memory` is what each point remembers of the sensor's errors, see `lasting`.
    """

    points: Float[Tensor, "*s m dz"]
    log_weights: Float[Tensor, "*s m"]
    memory: Float[Tensor, "*s m c2"]

    @classmethod
    def weighted(
        cls,
        points: Float[Tensor, "*s m dz"],
        log_weights: Float[Tensor, "*s m"],
        memory: Float[Tensor, "*s m c2"] | None = None,
    ) -> "Cloud":
        """With weights that need not sum to one; what is zero has a finite logarithm, for files."""
        kept = points[..., :0] if memory is None else memory
        return cls(points, log_weights.log_softmax(-1).clamp_min(NOTHING), kept)

    @cached_property
    def weights(self) -> Float[Tensor, "*s m"]:
        return self.log_weights.exp()

    @classmethod
    def even(
        cls, points: Float[Tensor, "*s m dz"], memory: Float[Tensor, "*s m c2"] | None = None
    ) -> "Cloud":
        return cls.weighted(points, torch.zeros_like(points[..., 0]), memory)

    def moments(self) -> tuple[Float[Tensor, "*s dz"], Float[Tensor, "*s dz dz"]]:
        weights = self.weights.unsqueeze(-1)
        mean = (weights * self.points).sum(-2)
        away = self.points - mean.unsqueeze(-2)
        return mean, away.mT @ (weights * away)

    @property
    def effective_sample_size(self) -> Float[Tensor, "*s"]:
        return 1 / self.weights.square().sum(-1)

    def drawn(self, count: int, offset: Float[Tensor, ""]) -> "Cloud":
        """So many points, each in proportion to its weight: systematically, by one number."""
        if self.points.shape[-2] == count and not bool(self.log_weights.diff(dim=-1).any()):
            return self  # weights are even: each once
        chosen = ladder_ancestors(self.weights, offset, count).unsqueeze(-1)
        parts = (self.points, self.memory)
        return Cloud.even(
            *(p.gather(-2, chosen.expand(*chosen.shape[:-1], p.shape[-1])) for p in parts)
        )


@dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers of one step: the same for every sequence, and whenever it is repeated."""

    offset: Float[Tensor, ""]
    normal: Float[Tensor, "m dz"]

    @classmethod
    def of(cls, seed: int, step: int, shape: tuple[int, int], like: Tensor) -> "Draws":
        """For so many points of so many coordinates."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
        offset = torch.rand((), generator=generator, dtype=torch.float64, device="cpu")
        normal = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
        return cls(offset.to(like), normal.to(like))
