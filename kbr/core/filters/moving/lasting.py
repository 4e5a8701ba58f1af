"""Errors of sensors that last: what a point remembers of them from row to row.

A reading that is off is often off in the same way at the next row. Taken for new each time, such
errors would make a belief ever surer of what they say.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SHARES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # that are tried
FAR = 100  # rows over which nothing lasts
PAYS, COST = 0.01, 8.0  # nats a pair of rows, and in all, by which errors that last are likelier
MOST = 5.0  # standard deviations of an error that is remembered

Memory = Float[Tensor, "*s m c2"]  # of each point: errors [c] expected now, and shares of new ones
Errors = Float[Tensor, "*s m c"]  # over their standard deviations


def lasting_of(errors: Float[Tensor, "n k"], at: Float[Tensor, "n"]) -> Float[Tensor, "k"]:
    """The share rho of each column's error that is left at the next row.

    Math: e_t+h ~ N(rho^h e_t, 1 - rho^2h) for rows h apart, e of variance one: the likeliest rho of
          SHARES, zero where it gains little.

    `at` are the places of the rows; those of other sequences are FAR away.
    """
    errors = errors / errors.square().mean(0).sqrt().clamp_min(torch.finfo(errors.dtype).tiny)
    gap = at.diff()
    near = (gap > 0) & (gap < FAR)
    count = int(near.sum())
    if not count:
        return torch.zeros_like(errors[0])
    before, after = errors[:-1][near], errors[1:][near]
    costs = []
    for share in SHARES:
        left = (share ** gap[near].to(errors)).unsqueeze(-1)
        new = 1 - left.square()
        costs.append(((after - left * before).square() / new + new.log()).mean(0) / 2)
    cost = torch.stack(costs)
    least, best = cost.min(0)
    pays = cost[0] - least > PAYS + COST / count
    return torch.where(pays, errors.new_tensor(SHARES)[best], 0.0)


def places_of(lengths: list[int], like: Tensor) -> Float[Tensor, "n"]:
    """Where rows lie, of sequences end to end that are FAR from each other."""
    counts = torch.tensor(lengths, device=like.device)
    sequence = torch.arange(len(lengths), device=like.device).repeat_interleave(counts)
    return (torch.arange(len(sequence), device=like.device) + 2 * FAR * sequence).to(like)


def nothing_yet(points: Float[Tensor, "*s m d"], lasting: Float[Tensor, "c"]) -> Memory:
    """Before any observation: all of an error is new. Empty where nothing lasts."""
    if not bool(lasting.any()):
        return points[..., :0]
    before = points.new_zeros(*points.shape[:-1], len(lasting))
    return torch.cat([before, torch.ones_like(before)], -1)


def one_row_on(memory: Memory, lasting: Float[Tensor, "c"]) -> Memory:
    """Math: m <- rho m,  v <- 1 - rho^2 (1 - v)."""
    if not memory.shape[-1]:
        return memory
    errors, new = memory.chunk(2, -1)
    return torch.cat([lasting * errors, 1 - lasting.square() * (1 - new)], -1)


def innovation(
    errors: Errors, memory: Memory | None, columns: list[int]
) -> tuple[Errors, Tensor | float]:
    """What is new of errors in these columns, of variance one, and its log determinant.

    Math: (e - m) / v^.5,  sum log v / 2.
    """
    if memory is None or not memory.shape[-1]:
        return errors, 0.0
    expected, new = (part[..., columns] for part in memory.chunk(2, -1))
    return (errors - expected) / new.sqrt(), new.log().sum(-1) / 2


def remembered(
    memory: Memory, errors: Errors, there: Bool[Tensor, "*s"], columns: list[int]
) -> Memory:
    """After an observation of these columns, where they were there."""
    before, new = memory.clone().chunk(2, -1)
    shown = there[..., None, None]
    before[..., columns] = torch.where(shown, errors.clamp(-MOST, MOST), before[..., columns])
    new[..., columns] = torch.where(shown, 0.0, new[..., columns])
    return torch.cat([before, new], -1)
