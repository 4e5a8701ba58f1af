"""Two kernel filters on the same training latents, averaged: a mixture of their beliefs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.filters.belief import Belief, KernelBelief, Moments
from kbr.core.filters.kernel.choosing.held_out import Measured, Rows
from kbr.core.showing.plotting import array

ENOUGH = 20  # held-out steps that a share can be chosen by


def mixture(share: float, one: Moments, other: Moments) -> Moments:
    """Moments of a mixture.

    Math: m = s m1 + (1 - s) m2,  C = s C1 + (1 - s) C2 + s (1 - s) (m1 - m2)(m1 - m2)'.
    """
    (mean, cov), (second, wide), rest = one, other, 1 - share
    away = mean - second
    spread = away.unsqueeze(-1) * away.unsqueeze(-2)
    return share * mean + rest * second, share * cov + rest * wide + share * rest * spread


def mixed(share: float, one: Sequence[Measured], other: Sequence[Measured]) -> list[Measured]:
    """Beliefs of the mixture at the held-out steps at which both were measured."""

    def both(rows: Rows, others: Rows) -> Rows:
        return {
            horizon: [
                (*mixture(share, first[:2], second[:2]), first[2])
                for first, second in zip(rows[horizon], others[horizon], strict=True)
            ]
            for horizon in rows
        }

    pairs = zip(one, other, strict=True)
    return [(both(rows, others), known) for (rows, known), (others, _) in pairs]


def best_share(one: Sequence[Measured], other: Sequence[Measured]) -> float:
    """The first one's share, by the least squared error of the mean at held-out steps.

    Math: s = <z - m2, m1 - m2> / |m1 - m2|^2, between 0 and 1; one half where there are fewer than
          ENOUGH such steps, or both answer the same.
    """
    (mean, z), (second, _) = _now(one), _now(other)
    away = mean - second
    size = float(away.square().sum())
    if size == 0 or len(z) < ENOUGH:
        return 0.5
    return min(max(float(((z - second) * away).sum()) / size, 0.0), 1.0)


def error_of(rows: Sequence[Measured]) -> float:
    """Mean squared error at held-out steps, summed over coordinates; NaN where they are too few."""
    mean, z = _now(rows)
    return float((mean - z).square().sum(-1).mean()) if len(z) >= ENOUGH else math.nan


def _now(several: Sequence[Measured]) -> tuple[Tensor, Tensor]:
    """Means and truths [t dz] at steps with an observation."""
    parts = [part for rows, _ in several for part in rows.get(0.0, ())]
    if not parts:
        return torch.empty(0, 1, device="cpu"), torch.empty(0, 1, device="cpu")
    return torch.cat([mean for mean, _, _ in parts]), torch.cat([z for _, _, z in parts])


@dataclass(frozen=True, eq=False, repr=False)
class PairedBelief(Belief):
    """The beliefs of both filters; `share` is that of the first.

    `evidence` is False where an observation told one of them nothing.
    """

    one: KernelBelief = field(kw_only=True)
    other: KernelBelief = field(kw_only=True)
    share: float = field(kw_only=True)

    def inner_moments(self) -> Moments:
        return mixture(self.share, self.one.inner_moments(), self.other.inner_moments())

    @property
    def weights(self) -> Float[Tensor, "*e n"]:
        """Of the training latents, which both filters have."""
        return self.share * self.one.weights + (1 - self.share) * self.other.weights

    @property
    def embedding(self) -> Embedding:
        """The belief as a weighted embedding, see `KernelBelief.embedding`."""
        return Embedding(self.one.embedding.points, self.weights)

    @property
    def effective_sample_size(self) -> Float[Tensor, "*e"]:
        return self.embedding.effective_sample_size

    def _made_of(self) -> dict[str, Any]:
        return {**self.one._made_of(), "weights": array(self.weights)}
