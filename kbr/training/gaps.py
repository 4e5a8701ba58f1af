"""Frames that are missing: what stands in for them, and some that are hidden on purpose."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MEAN_GAP = 5.0  # frames in a row that are hidden, on average


def hold(psi: Float[Tensor, "s t d"], seen: Bool[Tensor, "s t"]) -> Float[Tensor, "s t d"]:
    """Rows that are missing become the last one seen; before the first one seen, that one."""
    steps = torch.arange(psi.shape[1], device=psi.device).expand(psi.shape[:2])
    last = torch.where(seen, steps, -1).cummax(1).values
    first = seen.to(torch.int8).argmax(1, keepdim=True).expand_as(last)
    index = torch.where(last >= 0, last, first)
    return psi.gather(1, index.unsqueeze(-1).expand_as(psi))


def random_gaps(lengths: Sequence[int], share: float) -> Bool[Tensor, "t"]:
    """Which frames stay, where about this share is hidden; the first of a sequence always stays.

    Math: a Markov chain: a gap ends with probability 1 / 5 a step, and begins as often as gives
          the share. Drawn from the global generator.
    """
    rows = sum(lengths)
    ends = torch.rand(rows, device="cpu") < 1 / MEAN_GAP
    begins = torch.rand(rows, device="cpu") < share / ((1 - share) * MEAN_GAP)
    starts = set(accumulate(lengths, initial=0))
    seen, now = [], True
    for row, (end, begin) in enumerate(zip(ends.tolist(), begins.tolist(), strict=True)):
        now = row in starts or (not begin if now else end)
        seen.append(now)
    return torch.tensor(seen, device="cpu")
