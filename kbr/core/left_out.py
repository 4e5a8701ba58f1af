"""Errors of a ridge regression at rows it is not told, in closed form, blocks of rows at a time."""

import torch
from jaxtyping import Float

TOGETHER, FOLDS = 50, 10  # rows at most that are left out at once, and at least so many times


def block_of(n: int, together: int = TOGETHER) -> int:
    """How many of n rows are left out at once: errors of rows that follow each other are alike."""
    return max(min(together, n // FOLDS), 1)


def errors_left_out(
    rooted: Float[torch.Tensor, "n p"], missed: Float[torch.Tensor, "n k"], size: int
) -> Float[torch.Tensor, "n k"]:
    """Errors of blocks of `size` rows by fits without them.

    Math: (I - H_bb)^-1 (t_b - fit_b), with fit = H t and H = `rooted` rooted', `missed` = t - fit.
    """
    even = len(missed) - len(missed) % size
    blocks = [part[:even].reshape(-1, size, part.shape[-1]) for part in (rooted, missed)]
    found = [_without(*blocks)]
    if even < len(missed):
        found.append(_without(rooted[None, even:], missed[None, even:]))
    return torch.cat(found)


def _without(
    rooted: Float[torch.Tensor, "b r p"], missed: Float[torch.Tensor, "b r k"]
) -> Float[torch.Tensor, "m k"]:
    own = rooted @ rooted.mT
    left = torch.eye(own.shape[-1], dtype=own.dtype, device=own.device) * (1 + 1e-12) - own
    solved: torch.Tensor = torch.linalg.solve(left, missed)
    return solved.flatten(0, 1)
