"""Held-out steps of one sequence err alike: how many independent ones they are worth.

A sequence may be off from its start to its end. Then a hundred steps of each of six sequences say
about the next one what six numbers can, and regions must be wider to hold their share of it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def independent(distances: Float[Tensor, "*b t"], sizes: Sequence[int]) -> Float[Tensor, "*b"]:
    """So many of the t steps, which are pieces of these sizes end to end.

    Math: t / (1 + (s - 1) c), the design effect of clusters of size s = (t - sum s_j^2 / t) /
          (p - 1), c = (B - W) / (B + (s - 1) W) the intraclass correlation of the distances' ranks,
          between 0 and 1; B and W are mean squares between and within the p pieces.
    Ref:  Kish 1965; Fisher 1925 (intraclass correlation by analysis of variance).
    """
    count, pieces = distances.shape[-1], len(sizes)
    if pieces < 2 or count <= pieces:
        return torch.full_like(distances[..., 0], count)
    ranks = distances.argsort(-1).argsort(-1).to(distances)
    each = torch.split(ranks, list(sizes), -1)
    means = torch.stack([piece.mean(-1) for piece in each], -1)
    weights = distances.new_tensor(sizes)
    within = sum((piece - piece.mean(-1, keepdim=True)).square().sum(-1) for piece in each) / (
        count - pieces
    )
    away = means - ranks.mean(-1, keepdim=True)
    between = (weights * away.square()).sum(-1) / (pieces - 1)
    size = (count - float(weights.square().sum()) / count) / (pieces - 1)
    total = (between + (size - 1) * within).clamp_min(torch.finfo(distances.dtype).tiny)
    alike = ((between - within) / total).clamp(0, 1)
    worth: Tensor = count / (1 + (size - 1) * alike)
    return worth


def as_if_independent(
    sorted_distances: Float[Tensor, "*b t"], count: Float[Tensor, "*b"]
) -> Float[Tensor, "*b t"]:
    """Larger distances, in which a share p lies below the rank that so many independent ones need.

    Math: d_i -> d_j,  j = min(ceil(i (m + 1) t / (m (t + 1))), t): the ceil((t + 1) p)-th of them
          is the quantile p (m + 1) / m of the others, as conformal prediction with m numbers asks.
    Ref:  Vovk, Gammerman and Shafer 2005.
    """
    steps = sorted_distances.shape[-1]
    place = torch.arange(1, steps + 1, device=sorted_distances.device).to(count)
    wider = ((count + 1) / count * (steps / (steps + 1))).unsqueeze(-1)
    rank = (place * wider - 1e-9).ceil().clamp(1, steps).long() - 1
    return sorted_distances.gather(-1, rank)
