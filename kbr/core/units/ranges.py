"""From where to where the training data reach, column by column, in the units of the data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.units.outside import Outside

MARGIN = 0.1  # of a column's range, beyond either end, that still counts as inside
ROUNDING = 1e-6  # the same for a column that was constant, as a share of its value
MOST = 64  # columns: more are an image, or like one, whose single numbers say little


@dataclass(frozen=True, eq=False)
class Range:
    """Lowest and highest values [*b d] in float64, on the CPU.

    NaN where a column has no range: an angle, a pixel, or what was absent from every row.
    """

    low: Float[Tensor, "*b d"]
    high: Float[Tensor, "*b d"]

    @classmethod
    def of(cls, rows: Float[Tensor, "*b n d"], skipped: Sequence[bool] = ()) -> "Range | None":
        """Of training rows; None where too many columns are left when some are `skipped`."""
        without = torch.tensor(skipped or [False] * rows.shape[-1], device="cpu")
        if not rows.shape[-2] or int((~without).sum()) > MOST:
            return None
        values = rows.detach().cpu().double()
        there = values.isfinite() & ~without
        low = torch.where(there, values, torch.inf).amin(-2)
        high = torch.where(there, values, -torch.inf).amax(-2)
        known = there.any(-2)
        return cls(*(torch.where(known, end, torch.nan) for end in (low, high)))

    def joined(self, other: "Range") -> "Range":
        """That of these rows and of others; a column that one of both lacks has the other's."""
        return Range(torch.fmin(self.low, other.low), torch.fmax(self.high, other.high))

    @property
    def limits(self) -> tuple[Tensor, Tensor]:
        """From where on a value is outside, below and above."""
        margin = MARGIN * (self.high - self.low)
        margin = torch.where(margin > 0, margin, ROUNDING * self.high.abs())
        return self.low - margin, self.high + margin

    def outside(self, rows: Tensor, names: Sequence[str]) -> Outside | None:
        """Of rows [*b *s T d]; None where they do not go with the range. NaN is not outside."""
        values = rows.detach().cpu().double()
        batch, count = self.low.ndim - 1, self.low.shape[-1]
        fits = values.ndim >= batch + 2 and values.shape[-1] == count == len(names)
        if not fits or values.shape[:batch] != self.low.shape[:-1]:
            return None
        if not values.shape[-2]:
            return None
        lead = [*self.low.shape[:-1], *(1,) * (values.ndim - batch - 1), count]
        floor, ceiling = (end.reshape(lead) for end in self.limits)
        beyond = ((values < floor) | (values > ceiling)) & values.isfinite()
        one = (*values.shape[:-2], count)
        low, high = (end.reshape(lead).squeeze(-2).expand(one) for end in (self.low, self.high))
        least = torch.where(beyond, values, torch.inf).amin(-2)
        most = torch.where(beyond, values, -torch.inf).amax(-2)
        return Outside(tuple(names), low, high, beyond.sum(-2), least, most, of=values.shape[-2])

    def member(self, index: int) -> "Range":
        """That of one of the data sets fitted together."""
        return self if self.low.ndim == 1 else Range(self.low[index], self.high[index])


@dataclass(frozen=True, eq=False)
class Ranges:
    """Those of x, of z and of the control inputs in use; None where there is none to speak of."""

    x: Range | None = None
    z: Range | None = None
    u: Range | None = None

    def joined(self, other: "Ranges") -> "Ranges":
        """Those of all rows; None where one of both is not known."""
        pairs = {item.name: (getattr(self, item.name), getattr(other, item.name)) for item in KINDS}
        return Ranges(**{k: a.joined(b) if a and b else None for k, (a, b) in pairs.items()})

    def member(self, index: int) -> "Ranges":
        known = {item.name: getattr(self, item.name) for item in KINDS}
        return replace(self, **{k: v and v.member(index) for k, v in known.items()})

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        known = {item.name: getattr(self, item.name) for item in KINDS}
        return {k: v and {"low": v.low, "high": v.high} for k, v in known.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Ranges":
        """The inverse of `record`; what does not fit together is refused."""
        return cls(**{item.name: _range(record[item.name]) for item in KINDS})


KINDS = fields(Ranges)


def _range(record: Mapping[str, Any] | None) -> Range | None:
    if record is None:
        return None
    ends = (torch.as_tensor(record[k], dtype=torch.float64, device="cpu") for k in ("low", "high"))
    low, high = ends
    if low.shape != high.shape or not low.ndim or bool((low > high).any()):
        raise KbrError("the file's ranges of its training data are damaged. Train again.")
    return Range(low, high)
