"""Mixtures of kernels and feature maps: several views of a point, side by side."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap, Features, as_feature_map
from kbr.core.inputs import check_positive
from kbr.core.kernels import Gaussian, Gram, Kernel, Others, Points

Columns = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Weighted features of several maps, concatenated.

    Math: k(a, b) = sum_i weight_i k_i(a_i, b_i),  psi = [weight_i^1/2 psi_i(a_i)]_i,
          with a_i the columns [start, stop) of a that map i sees.
    Weights are equal and sum to one unless given; `columns` are all of them unless given, e.g.
    learned features in front under one map and the raw vector behind them under another. Bandwidths
    are those of the parts, or the median rule's: filters tune none of them.
    """

    maps: Sequence[Kernel | FeatureMap] = (Gaussian(), Gaussian(scale=4.0))
    weights: Sequence[float] | None = None
    columns: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        if len(self.maps) == 0:
            raise KbrError("a mixture needs at least one map; got none. Set maps.")
        for name in ("weights", "columns"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.maps):
                raise KbrError(
                    f"{name} must hold one entry for each of the {len(self.maps)} maps; got "
                    f"{len(values)}. Set {name}."
                )
        for weight in self.weights or ():
            check_positive(weight, name="weights")

    def fit(self, points: Points) -> Features:
        spans = self._spans(points.shape[-1])
        shares = self.weights or [1 / len(self.maps)] * len(self.maps)
        parts = [
            as_feature_map(part).fit(points[..., start:stop])
            for part, (start, stop) in zip(self.maps, spans, strict=True)
        ]

        def features(query: Tensor) -> Tensor:
            seen = [
                math.sqrt(share) * part(query[..., start:stop]).to(train)
                for part, share, (start, stop) in zip(parts, shares, spans, strict=True)
            ]
            return torch.cat(seen, -1)

        dtypes = [part.train.dtype for part in parts]
        train = parts[0].train.new_empty(0, dtype=max(dtypes, key=lambda d: torch.finfo(d).bits))
        rows = [math.sqrt(s) * p.train.to(train) for p, s in zip(parts, shares, strict=True)]
        kernels = tuple(part.kernel for part in parts if part.kernel is not None)
        whole = len(kernels) == len(parts)
        kernel = _Sum(kernels=kernels, shares=tuple(shares), spans=spans) if whole else None
        return Features(torch.cat(rows, -1), features, kernel)

    def _spans(self, d: int) -> Columns:
        if self.columns is None:
            return ((0, d),) * len(self.maps)
        spans = tuple((int(part[0]), int(part[-1])) for part in self.columns)
        if not all(len(part) == 2 for part in self.columns) or not all(
            0 <= start < stop <= d for start, stop in spans
        ):
            raise KbrError(
                f"columns must hold pairs [start, stop] within the {d} coordinates, start < stop; "
                f"got {[list(part) for part in self.columns]}. Set columns."
            )
        return spans


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sum(Kernel):
    """The kernel that a mixture's features stand for."""

    kernels: tuple[Kernel, ...]
    shares: tuple[float, ...]
    spans: Columns

    def fit(self, points: Points) -> Kernel:
        return self

    def __call__(self, a: Points, b: Others) -> Gram:
        return self._sum(a, lambda kernel, part, span: kernel(part, b[..., span]))

    def diagonal(self, points: Points) -> Float[Tensor, "*b n"]:
        return self._sum(points, lambda kernel, part, _: kernel.diagonal(part))

    def _sum(self, points: Points, term: Callable[[Kernel, Tensor, slice], Tensor]) -> Tensor:
        """Math: sum_i weight_i term_i, of the columns that kernel i sees."""
        parts = [
            share * term(kernel, points[..., start:stop], slice(start, stop))
            for kernel, share, (start, stop) in zip(
                self.kernels, self.shares, self.spans, strict=True
            )
        ]
        return torch.stack(parts).sum(0)
