"""Frames of a turn on the spot, and which of them is seen at a heading."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float32, Float64, Int, UInt8
from torch import Tensor

from kbr.core.datasets.drawing import TURN, normal_mass
from kbr.core.errors import KbrError
from kbr.core.filters.classical.circular import wrap
from kbr.core.inputs import check_finite


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameTable:
    """Frames seen from one spot, with their headings in degrees: any order, any spacing.

    Integer images are 0..255, floating-point ones 0..1. Headings 360 degrees apart are the same.
    """

    images: UInt8[Tensor, "n 3 h w"] | Float[Tensor, "n 3 h w"]
    yaw: Float[Tensor, " n"]

    def __post_init__(self) -> None:
        check_finite(self.yaw, name="yaw")
        if len(self.yaw) != len(self.images):
            raise KbrError(
                f"A frame table has one yaw for every frame; got {len(self.images)} images and "
                f"{len(self.yaw)} values of yaw."
            )
        if len(torch.unique(self._sorted[0])) < 2:
            raise KbrError(
                f"A frame table needs frames at two headings or more; got {len(self.yaw)} frame(s) "
                "at one heading. Record a full turn on the spot."
            )
        if self.images.is_floating_point():
            low, high = (float(end) for end in torch.aminmax(self.images))
            if not (low >= 0 and high <= 1):  # also where there is a NaN
                raise KbrError(
                    f"Floating-point images must lie in [0, 1]; got {low:.3g} to {high:.3g}. "
                    "Divide them by 255, or pass them as uint8."
                )

    @cached_property
    def _sorted(self) -> tuple[Float64[Tensor, " n"], Int[Tensor, " n"]]:
        """Headings in [0, 2 pi), ascending, and where each one is in the table."""
        turned = torch.deg2rad(self.yaw.double()).remainder(TURN)
        heading, order = turned.sort(stable=True)
        return heading, order

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of a frame."""
        return tuple(self.images.shape[1:])

    @cached_property
    def pixels(self) -> Float32[Tensor, "n 3 h w"]:
        """Frames in [0, 1], by ascending heading."""
        images = self.images[self._sorted[1].to(self.images.device)]
        scale = 1.0 if images.is_floating_point() else 255.0
        return images.to(torch.float32) / scale

    @cached_property
    def borders(self) -> Float64[Tensor, " borders"]:
        """Frame k is the nearest one from borders[k] to borders[k + 1]; they span one turn."""
        heading = self._sorted[0]
        ahead = torch.cat([heading[1:], heading[:1] + TURN])
        middle = 0.5 * (heading + ahead)
        return torch.cat([middle[-1:] - TURN, middle])

    def nearest(self, theta: Float[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        """Index into `pixels` of the frame whose heading is nearest to theta, in radians."""
        borders = self.borders.to(theta.device)
        turned = borders[0] + (theta.double() - borders[0]).remainder(TURN)
        index = torch.searchsorted(borders[1:].contiguous(), turned.contiguous(), right=True)
        return index.clamp_max(len(borders) - 2)

    def chance(
        self, theta: Float64[Tensor, "*b m"], frame: Int[Tensor, "*b k"], *, sigma: float
    ) -> Float64[Tensor, "*b m k"]:
        """P(frame | theta): the chance that theta + N(0, sigma^2) is nearest to a frame.

        Math: sum_j Phi((b_k+1 + 2 pi j - theta) / sigma) - Phi((b_k + 2 pi j - theta) / sigma).
        """
        borders = self.borders.to(theta.device)
        # sigma = 0 means a jump at the border; a tiny width gives the same without 0 / 0.
        width = max(sigma, 1e-12)
        low = wrap(borders[frame].unsqueeze(-2) - theta.unsqueeze(-1))
        high = low + borders.diff()[frame].unsqueeze(-2)
        turns = 1 + math.ceil(6 * sigma / TURN)
        mass = torch.zeros_like(low)
        for turn in range(-turns, turns + 1):
            mass += normal_mass((low + turn * TURN) / width, (high + turn * TURN) / width)
        return mass
