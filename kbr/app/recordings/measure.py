"""The error as people of a field state it: by its name and unit, beside the squared error."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Errors = Tensor  # [*b T dz], estimate minus truth


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number for each trial: `of` takes errors [*b T dz] to [*b]."""

    name: str
    unit: str
    of: Callable[[Errors], Tensor]

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]"


DISTANCE = Measure(name="mean error", unit="m", of=lambda e: e.norm(dim=-1).mean(-1))
PERCENT = Measure(name="mean absolute error", unit="%", of=lambda e: 100 * e.abs().sum(-1).mean(-1))
CYCLES = Measure(
    name="root mean square error", unit="cycles", of=lambda e: e.square().sum(-1).mean(-1).sqrt()
)
