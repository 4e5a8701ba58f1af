"""From recorded units to what filters work on, and back: standardising, and angles.

Every column has mean 0 and variance 1 on the training rows. An angle becomes (cos, sin), which has
no jump at a full turn; the two share one scale, so that the circle stays round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.file_rows import FileRows
from kbr.core.filters.result import FilterResult

CONSTANT = (
    "x is constant over the training rows: it says nothing about z. Choose other columns (data.x), "
    "or another part (data.split, data.test_share)."
)
UNIFORM = math.pi**2 / 3  # variance of an angle nothing is known about
TURNS = {"degrees": 360.0, "radians": 2 * math.pi}


@dataclass(frozen=True, eq=False)
class Scaling:
    """Fitted on training rows. `circular` marks angle columns; `turn` is a full turn in their unit.

    mean, scale   of the inner columns (angles take two); `low` [d] where angles' range begins.
    """

    circular: tuple[bool, ...]
    turn: float
    mean: Float[Tensor, "k"] | Float[Tensor, "c 1 1"]
    scale: Float[Tensor, "k"] | Float[Tensor, "c 1 1"]
    low: tuple[float, ...]

    @classmethod
    def fit(
        cls, values: np.ndarray, names: Sequence[str], circular: Sequence[str], turn: float
    ) -> "Scaling":
        """From training rows [n, d] (or frames [n, c, h, w], scaled by channel)."""
        marks = tuple(name in circular for name in names)
        given = torch.from_numpy(values)
        if given.ndim == 4:
            found = [_moments(given[:, c].double()) for c in range(given.shape[1])]
            mean, scale = (torch.stack(part)[:, None, None] for part in zip(*found, strict=True))
            return cls(marks, turn, mean, scale, ())
        inner = _unroll(given.double(), marks, turn)
        found = [_moments(column) for column in inner.unbind(-1)]
        mean, scale = (torch.stack(part) for part in zip(*found, strict=True))
        for at in _angle_places(marks):
            pair = slice(at, at + 2)
            scale[pair] = scale[pair].square().mean().sqrt()
        # Angles come back in the range they were recorded in: from 0, or from minus half a turn.
        low = tuple(
            0.0 if mark and bool((values[:, k] >= 0).all()) else -turn / 2
            for k, mark in enumerate(marks)
        )
        return cls(marks, turn, mean, scale, low)

    @classmethod
    def of_images(cls, rows: FileRows, names: Sequence[str], turn: float) -> "Scaling":
        """From training frames that stay in their file: by channel, block by block."""
        first = next(rows.parts()).raw().astype(np.float64).mean((0, 2, 3))
        sums, one = np.zeros((2, len(first))), rows.part(slice(1)).raw()[0]
        low, high = one, one
        for part in rows.parts():
            frames = part.raw()
            low, high = np.minimum(low, frames.min(0)), np.maximum(high, frames.max(0))
            centred = frames.astype(np.float64) - first[:, None, None]
            sums += np.stack([centred.sum((0, 2, 3)), np.square(centred).sum((0, 2, 3))])
        if (low == high).all():
            raise KbrError(CONSTANT)
        mean, second = sums / (len(rows) * np.prod(rows.shape[2:]))
        scale = np.sqrt(np.maximum(second - mean**2, 0))
        centre, width = (
            torch.from_numpy(part)[:, None, None]
            for part in (first + mean, np.where(scale > 0, scale, 1.0))
        )
        return cls(tuple(False for _ in names), turn, centre, width, ())

    def apply(self, values: np.ndarray) -> Tensor:
        """Recorded rows in inner coordinates; NaN stays NaN. Frames stay float32."""
        given = torch.from_numpy(values)
        inner = _unroll(given, self.circular, self.turn)
        return (inner - self.mean.to(inner)) / self.scale.to(inner)

    def undo(self, result: FilterResult) -> FilterResult:
        """Beliefs in recorded units.

        Math: an angle's belief has mean m = (c, s), R = |m|, tangent t = (-s, c) / R; its answer is
              atan2(s, c), its variance asinh(v), v = t'Ct / R^2. For a wrapped normal of variance
              a, R = exp(-a/2) and t'Ct = (1 - exp(-2a)) / 2, so v = sinh(a): the answer is exact.
        Ref:  Mardia and Jupp 2000, section 3.5 (moments of the wrapped normal).
        """
        mean = result.mean.double() * self.scale + self.mean
        outer = self.scale.unsqueeze(-1) * self.scale
        cov = result.cov.double() * outer
        columns, rows = [], []
        at = 0
        for k, mark in enumerate(self.circular):
            row = torch.zeros_like(mean)
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
                at += 2
            else:
                columns.append(mean[..., at])
                row[..., at] = 1.0
                at += 1
            rows.append(row)
        jacobian = torch.stack(rows, -2)
        return FilterResult(
            torch.stack(columns, -1),
            jacobian @ cov @ jacobian.mT,
            result.evidence,
            result.effective_sample_size,
        )

    def nearest(self, truth: Tensor, mean: Tensor) -> Tensor:
        """Truth with every angle given as its representative nearest to the answer.

        Then truth - mean is the wrapped error, for every table, test and plot that takes it.
        """
        whole = self.turn * torch.round((mean - truth) / self.turn)
        return torch.where(torch.tensor(self.circular), truth + whole, truth)

    def record(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "circular": list(self.circular),
            "turn": self.turn,
            "mean": self.mean.flatten().tolist(),
            "scale": self.scale.flatten().tolist(),
            "low": list(self.low),
        }


def full_turn(unit: str) -> float:
    if unit not in TURNS:
        raise KbrError(f"data.angle_unit must be degrees or radians; got {unit!r}.")
    return TURNS[unit]


def _unroll(values: Tensor, circular: tuple[bool, ...], turn: float) -> Tensor:
    """Columns with (cos, sin) in place of every angle."""
    if values.ndim == 4 or not any(circular):
        return values
    parts = []
    for column, mark in zip(values.unbind(-1), circular, strict=True):
        radians = column * (2 * math.pi / turn)
        parts += [radians.cos(), radians.sin()] if mark else [column]
    return torch.stack(parts, -1)


def _angle_places(circular: tuple[bool, ...]) -> list[int]:
    """Where the two inner columns of every angle begin."""
    return [k + sum(circular[:k]) for k, mark in enumerate(circular) if mark]


def _moments(column: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, of numbers of any size; a constant column has scale one."""
    peak = column.abs().amax()
    peak = torch.where(peak > 0, peak, 1.0)
    mean, scale = peak * (column / peak).mean(), peak * (column / peak).std(correction=0)
    return mean, torch.where(column.amax() > column.amin(), scale, 1.0)
