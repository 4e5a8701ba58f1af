"""Positive definite kernels on points [*b n d].

A kernel without a bandwidth is a recipe: `fit` sets the bandwidth to `scale` times the median
pairwise distance of the training points, one bandwidth for each batch member.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import check_positive
from kbr.core.linalg import or_one

Points = Float[Tensor, "*b n d"]
Others = Float[Tensor, "*b m d"]
Gram = Float[Tensor, "*b n m"]

NUMBERS = 2**24  # in the points of a batch, above which its data sets are taken one by one
MEDIAN_POINTS = 2000  # above this, the median is taken over an evenly spaced subset
FEW_COORDINATES = 32  # up to here, one point's distances are quickest from the differences


def squared_distances(a: Points, b: Others) -> Gram:
    """|a_i - b_j|^2 by one matrix product, centred first so that offsets cost no digits.

    What is left within rounding of zero is zero: equal points are at distance 0, also where a
    kernel takes the square root (which would turn 1e-16 into 1e-8). Large data sets of a batch are
    taken one by one, as the copies made here are of their size.
    """
    same = a is b
    if a.ndim > 2 and a.shape[:-2] == b.shape[:-2] and a.numel() + b.numel() > NUMBERS:
        pairs = ((one, one) for one in a) if same else zip(a, b, strict=True)
        return torch.stack([squared_distances(*pair) for pair in pairs])
    centre = b.mean(-2, keepdim=True)
    b = _in_range(b - centre)
    a = b if same else _in_range(a - centre)
    squares = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
    rounding = 4 * math.sqrt(a.shape[-1]) * torch.finfo(squares.dtype).eps
    distances = squares - 2 * a @ b.mT
    return torch.where(distances > rounding * squares, distances, torch.zeros_like(distances))


def distances_to(a: Float[Tensor, "*b 1 d"], b: Others) -> Float[Tensor, "*b 1 m"]:
    """|a - b_j| of one point, from the differences: no digits are lost, few calls are made."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _in_range(points: Points) -> Points:
    """Coordinates whose squares add up without overflow; a point that far is far still."""
    limit = 0.25 * math.sqrt(torch.finfo(points.dtype).max / max(points.shape[-1], 1))
    return points.clamp(-limit, limit)


def median_distance(points: Points) -> Float[Tensor, "*b"]:
    """Median pairwise distance; where most points coincide, the mean of the positive distances.

    Points that all coincide have no scale: the answer is 1, so that kernels stay defined.
    """
    n = points.shape[-2]
    if n > MEDIAN_POINTS:
        keep = torch.linspace(0, n - 1, MEDIAN_POINTS, device=points.device).round().long()
        points = points.index_select(-2, keep)
        n = MEDIAN_POINTS
    if n < 2:
        return points.new_ones(points.shape[:-2])
    points = points - points.mean(-2, keepdim=True)
    # Squares of what is huge or tiny: in range.
    size = or_one(points.abs().amax((-2, -1), keepdim=True))
    i, j = torch.triu_indices(n, n, offset=1, device=points.device)
    points = points / size
    distances = squared_distances(points, points)[..., i, j].sqrt()
    median = distances.median(-1).values
    mean = distances.sum(-1) / (distances > 0).sum(-1).clamp_min(1)
    return or_one(torch.where(median > 0, median, mean) * size[..., 0, 0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """A stationary kernel k(a, b) = profile(|a - b| / bandwidth)."""

    bandwidth: float | Tensor | None = None
    scale: float | Tensor = 1.0

    def __post_init__(self) -> None:
        check_positive(self.scale, name="scale")
        if self.bandwidth is not None:
            check_positive(self.bandwidth, name="bandwidth")

    def fit(self, points: Points) -> "Kernel":
        """The same kernel with its bandwidth set, by the median rule if it is not a number yet."""
        if self.bandwidth is not None:
            return self
        return replace(self, bandwidth=self.scale * median_distance(points))

    def __call__(self, a: Points, b: Others) -> Gram:
        if self.bandwidth is None:
            raise KbrError(
                f"{type(self).__name__} has no bandwidth yet: pass bandwidth=..., or call "
                "fit(training_points) to take the median distance."
            )
        width = self.widths(a)
        scaled = b / width
        return self.profile(squared_distances(scaled if a is b else a / width, scaled))

    def widths(self, points: Points) -> Tensor:
        """What points are divided by: one bandwidth, [*b 1 1]; a subclass may have [*b 1 d]."""
        width = torch.as_tensor(self.bandwidth, dtype=points.dtype, device=points.device)
        return width[..., None, None]

    def anchored(self, b: Others) -> Callable[[Tensor], Tensor]:
        """The function a -> k(a, b), with what depends on b alone computed once."""
        if type(self).__call__ is not Kernel.__call__ or self.bandwidth is None:
            return lambda a: self(a, b)
        width = self.widths(b)
        scaled = b / width
        centre = scaled.mean(-2, keepdim=True)
        fixed = _in_range(scaled - centre)
        norms = fixed.square().sum(-1).unsqueeze(-2)
        twice = (2 * fixed.mT).contiguous()
        rounding = 4 * math.sqrt(b.shape[-1]) * torch.finfo(b.dtype).eps
        few = b.shape[-1] <= FEW_COORDINATES

        def cross(a: Tensor) -> Tensor:
            if few and a.shape[-2] == 1:  # a step of a stream
                return self.profile(distances_to(_in_range(a / width), scaled).square())
            a = _in_range(a / width - centre)
            squares = a.square().sum(-1).unsqueeze(-1) + norms
            distances = squares - a @ twice
            near = distances <= rounding * squares
            return self.profile(distances.masked_fill(near, 0.0))

        return cross

    def diagonal(self, points: Points) -> Float[Tensor, "*b n"]:
        """k(a, a) of every point."""
        return points.new_ones(points.shape[:-1])

    def profile(self, squared: Tensor) -> Tensor:
        """The kernel as a function of the squared distance in bandwidths."""
        raise NotImplementedError

    def spectral_radius(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Factors that turn standard normal frequencies into draws of the spectral density."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaussian(Kernel):
    """Math: k(a, b) = exp(-|a - b|^2 / (2 bandwidth^2))."""

    def profile(self, squared: Tensor) -> Tensor:
        return torch.exp(-0.5 * squared)

    def spectral_radius(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.ones(shape, dtype=torch.float64, device=generator.device)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Matern(Kernel):
    """Matern kernels of half-integer smoothness; their spectrum is a multivariate t.

    Ref: Rasmussen and Williams 2006, section 4.2.1.
    """

    degrees = 1  # twice the smoothness

    def spectral_radius(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        normal = torch.randn(
            *shape, self.degrees, dtype=torch.float64, device=generator.device, generator=generator
        )
        return (self.degrees / normal.square().sum(-1)).sqrt()


@dataclass(frozen=True, kw_only=True, eq=False)
class Laplace(_Matern):
    """Math: k(a, b) = exp(-|a - b| / bandwidth), Euclidean distance."""

    degrees = 1

    def profile(self, squared: Tensor) -> Tensor:
        return torch.exp(-squared.sqrt())


@dataclass(frozen=True, kw_only=True, eq=False)
class Matern32(_Matern):
    """Math: k(a, b) = (1 + t) exp(-t),  t = sqrt(3) |a - b| / bandwidth."""

    degrees = 3

    def profile(self, squared: Tensor) -> Tensor:
        t = math.sqrt(3) * squared.sqrt()
        return (1 + t) * torch.exp(-t)


@dataclass(frozen=True, kw_only=True, eq=False)
class Matern52(_Matern):
    """Math: k(a, b) = (1 + t + t^2 / 3) exp(-t),  t = sqrt(5) |a - b| / bandwidth."""

    degrees = 5

    def profile(self, squared: Tensor) -> Tensor:
        t = math.sqrt(5) * squared.sqrt()
        return (1 + t + t.square() / 3) * torch.exp(-t)


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear(Kernel):
    """Math: k(a, b) = a'b. It has no bandwidth; learned features use it."""

    def fit(self, points: Points) -> "Kernel":
        return self

    def __call__(self, a: Points, b: Others) -> Gram:
        return a @ b.mT

    def diagonal(self, points: Points) -> Float[Tensor, "*b n"]:
        return points.square().sum(-1)
