"""Hyper-parameters of the kernel Bayes filter, chosen on the end of the training sequence.

For every bandwidth scale, eta is chosen by leave-one-out and all lams are filtered as one batch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError

Progress = Callable[[Sequence[tuple[float, float]]], Iterable[tuple[float, float]]]
VALIDATION_STEPS = 200
MINIMUM_STEPS = 6


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen for each data set, its validation error, and which grid edges it lies on."""

    scale_x: Float[Tensor, "*b"]
    scale_z: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam_transition: Float[Tensor, "*b"]
    lam: Float[Tensor, "*b"]
    val_mse: Float[Tensor, "*b"]
    edges: tuple[str, ...] = ()

    def describe(self) -> dict[str, Tensor]:
        """Name to value, as tables and metrics show them."""
        names = ("scale_x", "scale_z", "eta", "lam_transition", "lam", "val_mse")
        return {name: getattr(self, name) for name in names}


def validation_start(n: int) -> int:
    """First row of the validation block: the last 200 steps, a third where there are under 600."""
    if n < MINIMUM_STEPS:
        raise KbrError(
            f"tuning needs at least {MINIMUM_STEPS} training steps to hold some out; got {n}. Raise "
            "n_train, or set the bandwidths, eta and lam so that nothing is tuned."
        )
    return n - (VALIDATION_STEPS if n >= 3 * VALIDATION_STEPS else n // 3)


def split_lengths(lengths: Sequence[int], cut: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Sequence lengths before row `cut`, and the (start, stop) rows of the pieces after it."""
    fit, pieces, start = [], [], 0
    for length in lengths:
        stop = start + length
        if start < cut:
            fit.append(min(stop, cut) - start)
        if stop > cut:
            pieces.append((max(start, cut), stop))
        start = stop
    return fit, pieces


def edges_hit(name: str, chosen: Float[Tensor, "*b"], grid: Sequence[float]) -> list[str]:
    """Which ends of a grid were chosen, and how often, as words for a report."""
    found = []
    for end, value in (("lower", min(grid)), ("upper", max(grid))):
        count = int((chosen == value).sum())
        if len(grid) > 1 and count:
            found.append(f"{name} at the {end} edge ({value:g}) in {count} of {chosen.numel()}")
    return found
