"""Kernels with a bandwidth for each coordinate (automatic relevance determination)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.kernels import Gaussian, Kernel, Linear, Points, median_distance

MEDIAN_POINTS = 500  # above this, a coordinate's median is taken over an evenly spaced subset


@dataclass(frozen=True, kw_only=True, eq=False)
class PerCoordinate(Kernel):
    """A stationary kernel whose coordinates have bandwidths [*b d] of their own.

    Math: k(a, b) = profile((sum_j (a_j - b_j)^2 / bandwidth_j^2)^1/2), the profile of `kernel`;
          the median rule is bandwidth_j = scale sqrt(d) median |a_j - b_j|: a scale means what it
          does with one bandwidth for all.
    For coordinates in different units. `bandwidth` is a tensor or a list, one entry a coordinate.
    """

    bandwidth: float | Tensor | Sequence[float] | None = None  # type: ignore[assignment]
    kernel: Kernel = field(default_factory=Gaussian)

    def __post_init__(self) -> None:
        if self.kernel.bandwidth is not None or isinstance(self.kernel, Linear | PerCoordinate):
            raise KbrError(
                "PerCoordinate needs a stationary kernel without a bandwidth, for its profile; got "
                f"{self.kernel!r}. Pass bandwidth=[...] to PerCoordinate itself."
            )
        if self.bandwidth is not None and not isinstance(self.bandwidth, Tensor):
            try:
                numbers = [float(item) for item in self.bandwidth]  # type: ignore[union-attr]
            except (TypeError, ValueError) as error:
                raise KbrError(
                    "bandwidth must be a list of numbers, one for each coordinate; got "
                    f"{self.bandwidth!r}."
                ) from error
            vector = torch.tensor(numbers, dtype=torch.float64, device="cpu")
            object.__setattr__(self, "bandwidth", vector)
        super().__post_init__()

    def fit(self, points: Points) -> Kernel:
        n, d = points.shape[-2:]
        if self.bandwidth is not None:
            self.widths(points)
            return self
        keep = torch.linspace(0, n - 1, min(n, MEDIAN_POINTS), device=points.device).round().long()
        some = points.index_select(-2, keep)
        each = [median_distance(some[..., j : j + 1]) for j in range(d)]
        scale = torch.as_tensor(self.scale, dtype=points.dtype, device=points.device)
        return replace(self, bandwidth=math.sqrt(d) * scale.unsqueeze(-1) * torch.stack(each, -1))

    def widths(self, points: Points) -> Tensor:
        width = torch.as_tensor(self.bandwidth, dtype=points.dtype, device=points.device)
        if width.ndim == 0 or width.shape[-1] != points.shape[-1]:
            raise KbrError(
                f"PerCoordinate needs a bandwidth for each of the {points.shape[-1]} coordinates; "
                f"got shape {list(width.shape)}. Change bandwidth, or leave it out."
            )
        return width.unsqueeze(-2)

    def profile(self, squared: Tensor) -> Tensor:
        return self.kernel.profile(squared)

    def spectral_radius(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return self.kernel.spectral_radius(shape, generator)
