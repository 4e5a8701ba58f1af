"""What a moving filter has learned, and its ways in and out of files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.storing.storage import calibration_from
from kbr.core.filters.moving.model import MovingModel
from kbr.core.filters.result import FilterResult
from kbr.core.uncertainty.calibration import Calibration, horizons_of
from kbr.core.units.units import Units

KIND = "kbr.moving_filter"  # of checkpoints with such filters
NUMBERS = {"n": int, "sequences": int, "rates": int, "jitter": float, "val_mse": float}
DAMAGE = (LookupError, TypeError, AttributeError, AssertionError, RuntimeError, ValueError)


@dataclass(frozen=True, eq=False)
class Learned:
    """The model, and what turns its answers into those of the user's data."""

    model: MovingModel
    units: Units
    calibration: Calibration | None
    shape: tuple[int, ...]  # of one inner observation
    n: int
    sequences: int
    rates: int
    jitter: float
    val_mse: float

    def to(self, device: str | torch.device) -> "Learned":
        known = self.calibration
        return replace(
            self,
            model=self.model.to(device),
            units=self.units.to(device),
            calibration=None if known is None else known.to(device),
        )

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        known = self.calibration
        return {
            "model": self.model.record(),
            "units": self.units.record(),
            "calibration": None if known is None else known.record(),
            "shape": list(self.shape),
            **{name: getattr(self, name) for name in NUMBERS},
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Learned":
        if any(bool(numbers.isnan().any()) for numbers in tensors_of(record["model"])):
            raise KbrError("the file's numbers are not all finite. Train again.")
        model = MovingModel.from_record(record["model"])
        return cls(
            model,
            Units.from_record(record["units"]),
            calibration_from(record["calibration"], model.start),
            tuple(int(size) for size in record["shape"]),
            **{name: kind(record[name]) for name, kind in NUMBERS.items()},
        )

    def check(self, answer: Callable[[FilterResult, Any], FilterResult]) -> None:
        """Of a file: an error unless steps can be taken, and their answers are finite."""
        model = self.model
        row = model.start.new_zeros(prod(self.shape))
        for group, reach in zip(model.columns, model.reaches, strict=True):
            row[list(group)] = reach.anchors[0]
        u = row.new_zeros(2, model.controls) if model.controls else None
        result = answer(model.filtered(row.expand(2, -1), u), horizons_of)
        latents = result.mean.shape[-1] + sum(self.units.z.circular) + self.rates
        finite = bool(result.mean.isfinite().all() and result.cov.isfinite().all())
        if not finite or latents != model.start.shape[-1]:
            raise KbrError("the file's numbers are not all finite, or do not fit. Train again.")


@contextmanager
def damage_named() -> Iterator[None]:
    """Whatever a damaged file breaks becomes one line."""
    try:
        yield
    except KbrError:
        raise
    except DAMAGE as error:
        raise KbrError(f"the file holds no moving filter ({error!r}). Fit it again.") from error


def trial_state(content: dict[str, Any], trial: int) -> dict[str, Any]:
    """The state of one trial in a checkpoint."""
    trials = content.get("trials")
    if not isinstance(trials, list) or not trials:
        raise KbrError("the file holds no moving filter. Fit it again.")
    if not 0 <= trial < len(trials):
        raise KbrError(f"the file holds trials 0 .. {len(trials) - 1}; got trial={trial}.")
    state: dict[str, Any] = trials[trial]
    return state


def tensors_of(record: Any) -> list[Tensor]:
    """All tensors in plain containers."""
    if isinstance(record, Tensor):
        return [record]
    if not isinstance(record, dict | list):
        return []
    inner = record.values() if isinstance(record, dict) else record
    return [found for part in inner for found in tensors_of(part)]
