"""Several workers, one loss: each takes a share of the points, and their sums are added up."""

import re
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.objectives import (
    FeatureSums,
    add_up,
    feature_sums,
    loss_and_cotangents,
    share_of_loss,
)

# What gloo, NCCL and the store say when the other end is gone.
LOST = re.compile(r"closed by peer|reset by peer|broken pipe|timed? ?out|gloo|nccl|store", re.I)


def rows_of(rank: int, world: int, n: int, *, piece: int) -> slice:
    """The rows of one worker: a block of whole pieces, or of rows where there are few.

    A piece passes the network together, and comes out to the same bits on whatever worker; shares
    cut across pieces would be rounded differently, and training makes much of such differences.
    """
    unit = piece if n >= world * piece else 1
    count = -(-n // unit)
    start, end = (min(n, unit * (count * k // world)) for k in (rank, rank + 1))
    return slice(start, end)


def sums_by_pieces(
    psi: Float[Tensor, "n d"], phi: Float[Tensor, "n p"], *, piece: int
) -> FeatureSums:
    """The sums, piece by piece and added up in halves, as two workers with a half each do.

    Floating-point sums depend on their order: in this one, one worker and two round alike.
    """

    def added(parts: list[FeatureSums]) -> FeatureSums:
        half = len(parts) // 2
        return added(parts[:half]) + added(parts[half:]) if half else parts[0]

    pieces = zip(torch.split(psi, piece), torch.split(phi, piece), strict=True)
    return added([feature_sums(*rows) for rows in pieces])


def sum_over_workers(part: FeatureSums) -> FeatureSums:
    """The sums over all workers' points, without a graph; one message of d (d + p) + 2 numbers."""
    values = (part.second, part.cross, part.energy, part.energy.new_tensor(float(part.n)))
    message = torch.cat([value.detach().flatten() for value in values])
    dist.all_reduce(message)
    summed = torch.split(message, [value.numel() for value in values])
    second, cross, energy, n = (s.reshape(v.shape) for s, v in zip(summed, values, strict=True))
    return FeatureSums(second, cross, energy, round(float(n)))


def loss_over_workers(part: FeatureSums, *, lam: float) -> tuple[Tensor, FeatureSums]:
    """The loss of all workers' points, and their sums; `part` are the sums of this one's.

    Its gradient is `world` times this worker's share of the full gradient: Lightning and PyTorch
    average gradients over the workers, and so arrive at the full one. A single worker goes the same
    way, so that it rounds alike.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    total = sum_over_workers(part) if world > 1 else part.detach()
    value, cotangents = loss_and_cotangents(total, lam=lam)
    share = world * share_of_loss(part, cotangents)
    return share + (value - share).detach(), total


def loss_in_parts(
    weights: Sequence[Tensor], parts: Callable[[], Iterable[FeatureSums]], *, lam: float
) -> tuple[Tensor, FeatureSums]:
    """The loss of all points of all workers, taken part by part, and their sums.

    Two passes over this worker's parts: sums without a graph, then the gradient of each part's
    share, in the memory of one part. What comes back is linear in the weights and has the value and
    the gradient of the loss, for whoever calls backward on it; on several workers its gradient is
    like that of `loss_over_workers`.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    with torch.no_grad():
        total = add_up(parts())
    total = total if world == 1 else sum_over_workers(total)
    value, cotangents = loss_and_cotangents(total, lam=lam)
    gradients = [torch.zeros_like(weight) for weight in weights]
    for part in parts():
        share = world * share_of_loss(part, cotangents)
        for gradient, more in zip(gradients, torch.autograd.grad(share, weights), strict=True):
            gradient += more
    pairs = zip(weights, gradients, strict=True)
    linear = torch.stack([(weight * gradient).sum() for weight, gradient in pairs]).sum()
    return linear + (value - linear).detach(), total


def is_lost(error: RuntimeError) -> bool:
    """Whether this is how the loss of another worker shows."""
    return isinstance(error, dist.DistError) or bool(LOST.search(str(error)))


def check_workers(workers: int, *, points: int, mixed: bool, device: str) -> None:
    """What several workers cannot do; `mixed`: the encoder has batch normalisation."""
    if points < workers:
        raise KbrError(
            f"{workers} workers need at least {workers} points to train on; there are {points} "
            "before the validation block. Raise data.n_train, or lower trainer.devices."
        )
    if workers > 1 and mixed and device == "cpu":
        raise KbrError(
            "the encoder has batch normalisation, and CPU workers cannot share its statistics. Use "
            "encoder=cnn, one process (trainer=cpu), or GPUs (trainer=ddp)."
        )
