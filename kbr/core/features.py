"""Finite feature maps: every kernel, random feature or learned feature becomes a matrix Psi [n p].

Math: k(a, b) ~ psi(a)' psi(b). A map is a recipe; `fit` on training points gives `Features`, which
hold the features of the training points and compute those of new ones. A kernel passed where a
map is expected is factorised by pivoted Cholesky, exact to its tolerance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import check_shares, check_sizes
from kbr.core.kernels import Gaussian, Kernel, Linear, Points
from kbr.core.linalg import pivoted_cholesky
from kbr.core.tables import blocks, by_feature, extended

# Up to GRAM_POINTS points the Gram matrix is formed once, above that its columns one at a time.
# Points of few coordinates have low rank and cheap columns: faster from a quarter of that on.
GRAM_POINTS = 4096
FEW_COORDINATES = 32


@dataclass(frozen=True, eq=False)
class Features:
    """Features of the training points, and the function that gives those of other points."""

    train: Float[Tensor, "*b n p"]
    function: Callable[[Float[Tensor, "*b q d"]], Float[Tensor, "*b q p"]] = field(repr=False)
    kernel: Kernel | None = None

    def __call__(self, points: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q p"]:
        return self.function(points)

    def by_feature(self) -> "Features":
        """The same features, those of the training points laid out feature by feature."""
        return replace(self, train=by_feature(self.train))

    def grown(self, points: Float[Tensor, "*b m d"]) -> "Features":
        """The same features with those of more training points."""
        n, train = self.train.shape[-2], extended(self.train, points.shape[-2])
        for rows in blocks(points.shape[-2]):
            train[..., n + rows.start : n + rows.stop, :] = self(points[..., rows, :].double())
        return replace(self, train=train)


@runtime_checkable
class FeatureMap(Protocol):
    """Anything with `fit(points) -> Features`."""

    def fit(self, points: Points) -> Features: ...


@dataclass(frozen=True, kw_only=True)
class PivotedCholesky:
    """Features from a partial Cholesky factor of the Gram matrix, greedy in the largest residual.

    Math: G ~ L L', psi(x) = L_P^-1 k(P, x) with P the pivots; the residual of every training point
          is at most `tolerance` max_i k(x_i, x_i). With all n pivots this is the Gram form itself.
    Ref:  Fine and Scheinberg 2001.

    With `among`, pivots are found among so many evenly spaced points.
    """

    kernel: Kernel = field(default_factory=Gaussian)
    tolerance: float | Tensor = 1e-13  # of a batch, [*b]
    max_rank: int | None = None
    among: int | None = None

    def __post_init__(self) -> None:
        given = self.tolerance
        for end in given.aminmax() if isinstance(given, Tensor) else (given,):
            check_shares(tolerance=float(end))
        if self.max_rank is not None:
            check_sizes(max_rank=self.max_rank)

    def fit(self, points: Points) -> Features:
        points = points.to(torch.float64)
        kernel = self.kernel.fit(points)
        n = points.shape[-2]
        if self.among is not None and n > self.among:
            rows = torch.linspace(0, n - 1, self.among, device=points.device).round().long()
            few = replace(self, kernel=kernel, among=None).fit(points.index_select(-2, rows))
            return replace(few, train=few(points))
        landmarks, whiten, factor = self.landmarks(kernel, points)
        # Landmarks second: distances are centred there, so no query can disturb another one.
        at_landmarks = kernel.anchored(landmarks)

        def features(query: Tensor) -> Tensor:
            return at_landmarks(query.to(points)) @ whiten

        return Features(factor, features, kernel)

    def landmarks(self, kernel: Kernel, points: Points) -> tuple[Tensor, Tensor, Tensor]:
        """The pivots [*b r d], what makes kernels with them features [*b r r], and the factor."""
        n, dim = points.shape[-2:]
        if n <= (GRAM_POINTS if dim > FEW_COORDINATES else GRAM_POINTS // 4):
            gram = kernel(points, points)

            def column(index: Tensor) -> Tensor:
                wide = index[..., None, None].expand(*gram.shape[:-1], 1)
                return gram.gather(-1, wide).squeeze(-1)
        else:

            def column(index: Tensor) -> Tensor:
                return kernel(points, take_rows(points, index.unsqueeze(-1))).squeeze(-1)

        factor, pivots = pivoted_cholesky(
            kernel.diagonal(points), column, tolerance=self.tolerance, max_rank=self.max_rank
        )
        triangle, used = pivot_triangle(factor, pivots)
        # Solved once: a query then costs a product, as exact as a solve of its own.
        unit = torch.diag_embed(used.to(triangle.dtype))
        inverse: Tensor = torch.linalg.solve_triangular(triangle, unit, upper=False)
        return take_rows(points, pivots), inverse.mT.contiguous(), factor


@dataclass(frozen=True, kw_only=True)
class Nystroem:
    """Features spanned by a random subset of training points.

    Math: psi(x) = K_PP^-1/2 k(P, x), eigenvalues below `tolerance` of the largest dropped.
    Ref:  Williams and Seeger 2001.
    """

    kernel: Kernel = field(default_factory=Gaussian)
    n_landmarks: int = 200
    seed: int = 0
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        check_sizes(n_landmarks=self.n_landmarks)

    def fit(self, points: Points) -> Features:
        points = points.to(torch.float64)
        kernel = self.kernel.fit(points)
        generator = torch.Generator().manual_seed(self.seed)
        keep = torch.randperm(points.shape[-2], generator=generator)[: self.n_landmarks]
        landmarks = points.index_select(-2, keep.to(points.device))
        values, vectors = torch.linalg.eigh(kernel(landmarks, landmarks))
        whiten = _over_roots(vectors, values, self.tolerance)

        def features(query: Tensor) -> Tensor:
            return kernel(query.to(points), landmarks) @ whiten

        return Features(features(points), features, kernel)


@dataclass(frozen=True, kw_only=True)
class KernelPCA:
    """Features along the leading eigenvectors of the Gram matrix: the best of their number.

    Math: G = U diag(l) U',  psi(x) = diag(l)^-1/2 U' k(X, x), the leading l alone.
    Ref:  Schölkopf et al. 1998 (without centring).
    """

    kernel: Kernel = field(default_factory=Gaussian)
    n_features: int = 64

    def fit(self, points: Points) -> Features:
        kernel = self.kernel.fit(points)
        values, vectors = torch.linalg.eigh(kernel(points, points))
        values, vectors = values[..., -self.n_features :], vectors[..., -self.n_features :]
        axes = _over_roots(vectors, values, 1e-12)
        return Features(
            vectors * values.clamp_min(0).sqrt().unsqueeze(-2),
            lambda query: kernel(query.to(points), points) @ axes,
            kernel,
        )


@dataclass(frozen=True, kw_only=True)
class RandomFourier:
    """Random Fourier features of a stationary kernel, orthogonal by default.

    Math: psi(x) = sqrt(2/p) [cos(W'x / bandwidth), sin(W'x / bandwidth)], columns of W from the
          spectral density; orthogonal: directions from random rotations, lengths from the chi law.
    Ref:  Rahimi and Recht 2007; Yu et al. 2016.
    """

    kernel: Kernel = field(default_factory=Gaussian)
    n_features: int = 512
    orthogonal: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_features < 2 or self.n_features % 2:
            raise KbrError(f"n_features must be an even number >= 2; got {self.n_features}.")
        if isinstance(self.kernel, Linear):
            raise KbrError("RandomFourier needs a stationary kernel; got Linear. Use Identity().")

    def fit(self, points: Points) -> Features:
        kernel = self.kernel.fit(points)
        frequencies = self.frequencies(points.shape[-1]).to(points) / kernel.widths(points).mT

        def features(query: Tensor) -> Tensor:
            return fourier_features(query.to(points), frequencies)

        return Features(features(points), features, kernel)

    def frequencies(self, dim: int) -> Float[Tensor, "d m"]:
        """Frequencies at bandwidth 1, drawn from this map's own seeded generator."""
        generator = torch.Generator().manual_seed(self.seed)
        m = self.n_features // 2
        if not self.orthogonal:
            normal = torch.randn(dim, m, dtype=torch.float64, generator=generator)
        else:
            blocks = -(-m // dim)
            square = torch.randn(blocks, dim, dim, dtype=torch.float64, generator=generator)
            rotation = torch.linalg.qr(square).Q
            lengths = torch.randn(blocks, dim, dim, dtype=torch.float64, generator=generator)
            scaled = rotation * lengths.square().sum(-2, keepdim=True).sqrt()
            normal = scaled.permute(1, 0, 2).reshape(dim, -1)[:, :m]
        return normal * self.kernel.spectral_radius((m,), generator)


def fourier_features(
    points: Points, frequencies: Float[Tensor, "*b d m"]
) -> Float[Tensor, "*b n p"]:
    """Math: sqrt(1/m) [cos(x'W), sin(x'W)]; inner products average cos(W'(a - b))."""
    angle = points @ frequencies
    return torch.cat([angle.cos(), angle.sin()], -1) / math.sqrt(frequencies.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The points are the features: learned features, or the linear kernel."""

    def fit(self, points: Points) -> Features:
        return Features(points, lambda query: query.to(points), Linear())


def _over_roots(vectors: Tensor, values: Tensor, tolerance: float) -> Tensor:
    """Math: U diag(l)^-1/2, zero where l is at most `tolerance` of the largest."""
    floor = tolerance * values.amax(-1, keepdim=True)
    scale = torch.where(values > floor, values.clamp_min(floor).rsqrt(), 0.0)
    return vectors * scale.unsqueeze(-2)


def as_feature_map(kernel: Kernel | FeatureMap) -> FeatureMap:
    """A kernel becomes its pivoted-Cholesky features; the linear kernel is its own feature map."""
    if isinstance(kernel, Linear):
        return Identity()
    return PivotedCholesky(kernel=kernel) if isinstance(kernel, Kernel) else kernel


def take_rows(points: Points, index: Tensor) -> Tensor:
    """points[index] along the rows, for an index [*b r]."""
    return points.gather(-2, index.unsqueeze(-1).expand(*index.shape, points.shape[-1]))


def pivot_triangle(
    factor: Float[Tensor, "*b n r"], pivots: Int[Tensor, "*b r"]
) -> tuple[Float[Tensor, "*b r r"], Bool[Tensor, "*b r"]]:
    """The pivots' rows of a pivoted Cholesky factor, and which columns are in use.

    Batch members that finished early have zero columns: there the triangle's diagonal is one.
    """
    triangle = take_rows(factor, pivots).tril()
    used = triangle.diagonal(dim1=-2, dim2=-1) > 0
    filler = torch.diag_embed((~used).to(triangle.dtype))
    return triangle * used.unsqueeze(-1) + filler, used
