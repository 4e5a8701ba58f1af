"""From recorded units to what filters work on, and back: standardising, and angles.

Every column has mean 0 and variance 1 on the training rows. An angle becomes (cos, sin), which has
no jump at a full turn; the two share one scale, so that the circle stays round.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.io.file_rows import FileRows
from kbr.core.linalg import or_one

UNIFORM = math.pi**2 / 3  # variance of an angle nothing is known about
TURNS = {"degrees": 360.0, "radians": 2 * math.pi}


@dataclass(frozen=True, eq=False)
class Scaling:
    """Fitted on training rows. `circular` marks angle columns; `turn` is a full turn in their unit.

    mean, scale   of the inner columns (angles take two), or of the channels of images; data sets
                  fitted together, of which there are `batch` leading dimensions, have their own;
    low           where each angle's range begins.
    """

    mean: Tensor
    scale: Tensor
    circular: tuple[bool, ...] = ()
    turn: float = 360.0
    low: tuple[float, ...] = ()
    batch: int = 0

    @cached_property
    def own(self) -> torch.Size:
        """Shape of what one data set is scaled by: (), (columns,) or (channels, 1, 1)."""
        return self.mean.shape[self.batch :]

    @classmethod
    def none(cls, like: Tensor) -> "Scaling":
        """Numbers stay as they are."""
        return cls(like.new_zeros((), dtype=torch.float64), like.new_ones((), dtype=torch.float64))

    @classmethod
    def fit(
        cls,
        values: Tensor,
        circular: Sequence[bool] = (),
        turn: float = 360.0,
        *,
        batch: int = 0,
        standardize: bool = True,
        channels: Sequence[range] = (),
    ) -> "Scaling":
        """From training rows [*b n d], or frames [*b n c h w], which are scaled by channel.

        Frames of other shapes have one scale for all of their numbers. Of rows that hold frames
        among others, `channels` are the columns of each channel.
        """
        marks = tuple(circular) if any(circular) else ()
        inner = _unroll(values.double(), marks, turn)
        own = [batch + 1] if inner.ndim in (batch + 2, batch + 4) else []
        axes = [k for k in range(batch, inner.ndim) if k not in own]
        mean, scale = (moment.squeeze(batch) for moment in _moments(inner, axes))
        for span in channels:
            start = span.start + sum(marks[: span.start])
            some = slice(start, start + len(span))
            shared = _moments(inner[..., some], [*axes, inner.ndim - 1])
            mean[..., some], scale[..., some] = (moment.squeeze(batch) for moment in shared)
        for at in _angle_places(marks):
            pair = scale[..., at : at + 2].square().mean(-1, keepdim=True).sqrt()
            scale[..., at : at + 2] = pair
        # Angles come back in the range they were recorded in: from 0, or from minus half a turn.
        low = tuple(
            0.0 if mark and not bool((values[..., k] < 0).any()) else -turn / 2
            for k, mark in enumerate(marks)
        )
        if not standardize:
            mean, scale = torch.zeros_like(mean), torch.ones_like(scale)
        return cls(mean, scale, marks, turn, low, batch)

    @classmethod
    def of_images(cls, rows: FileRows) -> "Scaling":
        """From training frames that stay in their file, as they are there."""
        mean, scale = (moment.squeeze(0) for moment in rows.moments(np.float64))
        return cls(mean, or_one(scale))

    def apply(self, values: Tensor, name: str = "z") -> Tensor:
        """Recorded values [*b ... d] in inner coordinates, in float64; NaN stays NaN."""
        own = self.own
        if len(own) in (1, 3):  # a column or channel too few would be repeated without a word
            count = own[0] - sum(self.circular)
            if values.ndim < len(own) or values.shape[-len(own)] != count:
                kind = "channel(s)" if len(own) > 1 else "column(s)"
                raise KbrError(
                    f"observations and latents need the shape they had in training: {name} has "
                    f"{count} {kind}; got shape {list(values.shape)}."
                )
        inner = _unroll(values.double(), self.circular, self.turn)
        return (inner - self._wide(self.mean, inner)) / self._wide(self.scale, inner)

    def of_columns(self, inner: Float[Tensor, "*b n k"]) -> "Scaling":
        """The same with a mean and a scale for each of these columns: others are told by that."""
        if self.mean.ndim:
            return self
        zeros = inner.new_zeros(*inner.shape[:-2], inner.shape[-1])
        return replace(self, mean=zeros, scale=zeros + 1, batch=inner.ndim - 2)

    def _known(self, inner: Float[Tensor, "*s j"]) -> Float[Tensor, "*s k"]:
        """Inner columns without those after the scaling's own: rates, which no answer shows."""
        return inner[..., : self.mean.shape[-1]] if self.mean.ndim else inner

    def linear(self, points: Float[Tensor, "*b n j"]) -> Float[Tensor, "*b n k"]:
        """Inner points in recorded units; angles stay (cos, sin), of which averages make sense."""
        points = self._known(points)
        return points * self._wide(self.scale, points) + self._wide(self.mean, points)

    def undo(
        self, mean: Float[Tensor, "*s j"], cov: Float[Tensor, "*s j j"]
    ) -> tuple[Float[Tensor, "*s d"], Float[Tensor, "*s d d"]]:
        """Moments of beliefs in recorded units, without those of rates (see `filters.lifting`).

        Math: an angle's belief has mean m = (c, s), R = |m|, tangent t = (-s, c) / R; its answer is
              atan2(s, c), its variance asinh(v), v = t'Ct / R^2. For a wrapped normal of variance
              a, R = exp(-a/2) and t'Ct = (1 - exp(-2a)) / 2, so v = sinh(a): the answer is exact.
        Ref:  Mardia and Jupp 2000, section 3.5 (moments of the wrapped normal).
        """
        mean, cov = self._known(mean), self._known(self._known(cov).mT).mT
        scale = self._wide(self.scale, mean).expand(mean.shape)
        mean = mean * scale + self._wide(self.mean, mean)
        cov = cov * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        if not self.circular:
            return mean, cov
        columns, rows = [], []
        for k, mark in enumerate(self.circular):
            row, at = torch.zeros_like(mean), k + sum(self.circular[:k])
            if mark:
                c, s = mean[..., at], mean[..., at + 1]
                unit = self.turn / (2 * math.pi)
                angle, radius = torch.atan2(s, c), torch.hypot(c, s).clamp_min(1e-6)
                columns.append((angle * unit - self.low[k]) % self.turn + self.low[k])
                row[..., at], row[..., at + 1] = -angle.sin() / radius, angle.cos() / radius
                v = torch.einsum("...i,...ij,...j->...", row, cov, row).clamp_min(0)
                shrink = (torch.asinh(v).clamp_max(UNIFORM) / v.clamp_min(1e-300)).sqrt()
                shrink = torch.where(v > 1e-12, shrink, torch.ones_like(v))
                row = row * (unit * shrink).unsqueeze(-1)
            else:
                columns.append(mean[..., at])
                row[..., at] = 1.0
            rows.append(row)
        jacobian = torch.stack(rows, -2)
        return torch.stack(columns, -1), jacobian @ cov @ jacobian.mT

    def centred(self) -> "Scaling":
        """The same without the offset of columns that are no angles: for differences."""
        kept = torch.zeros_like(self.mean)
        for at in _angle_places(self.circular):
            kept[..., at : at + 2] = self.mean[..., at : at + 2]
        return replace(self, mean=kept)

    def nearest(self, truth: Tensor, mean: Tensor) -> Tensor:
        """Truth with every angle given as its representative nearest to the answer.

        Then truth - mean is the wrapped error, for every table, test and plot that takes it.
        """
        if not self.circular:
            return truth
        whole = self.turn * torch.round((mean - truth) / self.turn)
        return torch.where(torch.tensor(self.circular, device=truth.device), truth + whole, truth)

    def to(self, device: str | torch.device) -> "Scaling":
        return replace(self, mean=self.mean.to(device), scale=self.scale.to(device))

    def member(self, index: int) -> "Scaling":
        """That of one of the data sets fitted together."""
        if self.batch == 0:
            return self
        return replace(self, mean=self.mean[index], scale=self.scale[index], batch=self.batch - 1)

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        lists = {"circular": list(self.circular), "low": list(self.low)}
        return {**asdict(self.to("cpu")), **lists}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Scaling":
        """The inverse of `record`; what does not fit together is refused."""
        mean, scale = (
            torch.as_tensor(record[k], dtype=torch.float64, device="cpu") for k in ("mean", "scale")
        )
        circular = tuple(bool(mark) for mark in record["circular"])
        good = bool(mean.isfinite().all()) and bool((scale > 0).all() and scale.isfinite().all())
        columns = mean.shape[-1] if mean.ndim else 0
        if not good or mean.shape != scale.shape:
            raise KbrError("the file's scaling is damaged. Train again.")
        if any(circular) and columns != len(circular) + sum(circular):
            raise KbrError("the file's scaling does not fit its angles. Train again.")
        low, turn = tuple(float(v) for v in record["low"]), float(record["turn"])
        return cls(mean, scale, circular if any(circular) else (), turn, low, int(record["batch"]))

    def _wide(self, value: Tensor, like: Tensor) -> Tensor:
        """A value for each data set, repeated over the dimensions between."""
        if value.ndim == 0 or self.batch == 0:
            return value
        lead, rest = value.shape[: self.batch], value.shape[self.batch :]
        return value.reshape(*lead, *(1,) * (like.ndim - value.ndim), *rest)


def full_turn(unit: str) -> float:
    if unit not in TURNS:
        raise KbrError(f"angle_unit must be degrees or radians; got {unit!r}. Set angle_unit.")
    return TURNS[unit]


def _unroll(values: Tensor, circular: tuple[bool, ...], turn: float) -> Tensor:
    """Columns with (cos, sin) in place of every angle."""
    if not circular:
        return values
    parts, last = [], 0
    for at in (k for k, mark in enumerate(circular) if mark):
        radians = values[..., at : at + 1] * (2 * math.pi / turn)
        parts += [values[..., last:at], radians.cos(), radians.sin()]
        last = at + 1
    return torch.cat([*parts, values[..., last:]], -1)


def _angle_places(circular: tuple[bool, ...]) -> list[int]:
    """Where the two inner columns of every angle begin."""
    return [k + sum(circular[:k]) for k, mark in enumerate(circular) if mark]


def _moments(values: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, of numbers of any size; what is constant has scale one.

    What is absent (NaN) does not count.
    """
    there = values.isfinite()
    lowest = torch.where(there, values, torch.inf).amin(axes, keepdim=True)
    highest = torch.where(there, values, -torch.inf).amax(axes, keepdim=True)
    values = torch.where(there, values, 0.0)
    peak = or_one(values.abs().amax(axes, keepdim=True))
    shares = values / peak
    part = there.double().mean(axes, keepdim=True)
    part = torch.where(part > 0, part, 1.0)
    mean = shares.mean(axes, keepdim=True) / part
    away = torch.where(there, shares - mean, 0.0)
    scale = peak * (away.square().mean(axes, keepdim=True) / part).sqrt()
    return peak * mean, or_one(torch.where(highest > lowest, scale, 0.0))
