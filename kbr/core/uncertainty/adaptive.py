"""Error bars that follow the errors: adaptive conformal inference on truths that arrive later.

Math: log s_t+1 = log s_t + rate ([z_t outside its region] - (1 - level)), s multiplying the squared
      radius. Whatever the data do, the share of truths outside tends to 1 - level.
Ref:  Gibbs and Candès 2021; Angelopoulos, Candès and Tibshirani 2023 (the tracked radius).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LEVEL = 0.9
RATE = 0.2  # five misses in a row widen a region by e^.9; it settles in about 20 steps
WIDEST = 1e6


def stretched(
    stretch: Float[Tensor, "*s"], missed: Bool[Tensor, "*s"], rate: float = RATE
) -> Float[Tensor, "*s"]:
    """The factor after one more truth."""
    step = rate * (missed.to(stretch) - (1 - LEVEL))
    return (stretch * step.exp()).clamp(1 / WIDEST, WIDEST)


def stretches(
    outside: Float[Tensor, "*s t"], *, delay: int = 1, rate: float = RATE
) -> Float[Tensor, "*s t"]:
    """The factors in use at every step; `outside` is the squared distance over the squared radius.

    The truth of a step is known `delay` steps later; NaN where it never is.
    """
    now = torch.ones_like(outside[..., 0])
    used: list[Tensor] = []
    for t in range(outside.shape[-1]):
        if t >= delay:
            then = outside[..., t - delay]
            fresh = stretched(now, then > used[t - delay], rate)
            now = torch.where(then.isnan(), now, fresh)
        used.append(now)
    return torch.stack(used, -1)
