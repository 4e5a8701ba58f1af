"""Weighted embeddings: a distribution as weights on points, m = sum_i w_i k(z_i, .)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Features
from kbr.core.inputs import ArrayLike, as_tensor, check_finite, check_sizes, owned
from kbr.core.kernels import Gaussian, Kernel, Points
from kbr.core.linalg import or_one


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """Points [*b n d] with weights [*c n]; the batch dimensions *b and *c broadcast.

    Weights of kernel posteriors may be negative and need not sum to one: `nonnegative` gives a
    proper distribution on the same points.
    """

    points: Points
    weights: Float[Tensor, "*c n"]

    def __post_init__(self) -> None:
        if self.points.ndim < 2 or self.points.shape[-2] != self.weights.shape[-1]:
            raise KbrError(
                "an embedding needs points [..., n, d] and weights [..., n]; got points of shape "
                f"{tuple(self.points.shape)} and weights of shape {tuple(self.weights.shape)}."
            )
        if self.points.shape[-2] == 0:
            raise KbrError("an embedding needs at least one point; got none. Pass some samples.")

    def __repr__(self) -> str:
        *batch, d = self.mean.shape
        lead = "".join(f"{size} x " for size in batch)
        return f"{type(self).__name__}({lead}{self.weights.shape[-1]} points in {d} dimension(s))"

    @classmethod
    def from_samples(cls, samples: ArrayLike, weights: ArrayLike | None = None) -> "Embedding":
        """The empirical embedding: weights 1/n unless given."""
        points = owned(as_tensor(samples, name="samples"), samples)
        if points.ndim == 0:
            raise KbrError("samples must have shape [n, d] (or [n]); got a single number.")
        points = points.unsqueeze(-1) if points.ndim == 1 else points
        check_finite(points, name="samples")
        if weights is None:
            n = max(points.shape[-2], 1)
            return cls(points, points.new_full(points.shape[:-1], 1 / n))
        values = owned(as_tensor(weights, name="weights").to(points), weights)
        check_finite(values, name="weights")
        return cls(points, values)

    @property
    def mean(self) -> Float[Tensor, "*e d"]:
        """Math: sum_i w_i z_i."""
        return self._average(self.points)

    @property
    def cov(self) -> Float[Tensor, "*e d d"]:
        """Covariance with the weights scaled to sum to one, negative eigenvalues set to zero.

        Math: sum_i w_i (z_i - mu)(z_i - mu)' / sum_i w_i,  mu = sum_i w_i z_i / sum_i w_i.
        """
        total = or_one(self.weights.sum(-1))
        centred = self.points - self.points.mean(-2, keepdim=True)  # offsets cost no digits
        unit = or_one(centred.abs().amax((-2, -1), keepdim=True))
        centred = centred / unit  # squares of the huge or tiny: in range
        mean = self._average(centred) / total.unsqueeze(-1)
        outer = centred.unsqueeze(-1) * centred.unsqueeze(-2)
        second = self._average(outer.flatten(-2)).reshape(*mean.shape, mean.shape[-1])
        raw = second / total[..., None, None] - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return unit * positive_part(raw) * unit  # one unit for all: the positive part is the same

    @property
    def effective_sample_size(self) -> Float[Tensor, "*c"]:
        """Math: (sum_i w_i)^2 / sum_i w_i^2, between 0 and n."""
        share = self.weights / or_one(self.weights.abs().amax(-1, keepdim=True))
        squares = share.square().sum(-1)
        ratio = share.sum(-1).square() / squares.clamp_min(torch.finfo(squares.dtype).tiny)
        return torch.where(squares > 0, ratio, torch.zeros_like(ratio))

    def expect(self, function: Callable[[Points], Tensor]) -> Tensor:
        """Math: E f(z) = sum_i w_i f(z_i), for f from [*b n d] to [*b n] or [*b n k].

        An f with values True and False gives a probability.
        """
        values = function(self.points).to(self.weights)
        if values.shape[: self.points.ndim - 1] != self.points.shape[:-1]:
            raise KbrError(
                f"the function must give one value, or one row, for each of the points "
                f"{tuple(self.points.shape)}; got shape {tuple(values.shape)}."
            )
        if values.shape == self.points.shape[:-1]:
            return self._average(values.unsqueeze(-1)).squeeze(-1)
        return self._average(values)

    def inner(self, other: "Embedding", kernel: Kernel | None = None) -> Tensor:
        """Math: <m, m'> = sum_ij w_i w'_j k(z_i, z'_j)."""
        one, two = self._in_one_precision(other)
        gram = one._kernel(kernel)(one.points, two.points)
        return (one.weights.unsqueeze(-2) @ gram @ two.weights.unsqueeze(-1))[..., 0, 0]

    def mmd(self, other: "Embedding", kernel: Kernel | None = None) -> Tensor:
        """Maximum mean discrepancy; without a kernel, a Gaussian one fitted to this one's points.

        Math: |m - m'| = (<m, m> + <m', m'> - 2 <m, m'>)^1/2.
        Ref:  Gretton et al. 2012.
        """
        one, two = self._in_one_precision(other)
        fitted = one._kernel(kernel)
        squared = one.inner(one, fitted) + two.inner(two, fitted) - 2 * one.inner(two, fitted)
        return squared.clamp_min(0).sqrt()

    def nonnegative(self) -> "Embedding":
        """The same points with weights max(w, 0) scaled to sum to one (uniform where all are 0)."""
        clipped = self.weights.clamp_min(0)
        total = clipped.sum(-1, keepdim=True)
        proper = torch.where(total > 0, clipped / total, 1 / clipped.shape[-1])
        return Embedding(self.points, proper)

    def sample(self, n: int, kernel: Kernel | None = None) -> Float[Tensor, "*e m d"]:
        """n samples by kernel herding: greedily chosen points whose uniform embedding tracks this.

        Math: z_t = argmax_i m(z_i) - (1/t) sum_{s<t} k(z_i, z_s), over this embedding's points.
        Ref:  Chen, Welling and Smola 2010. Deterministic: no random numbers are drawn.
        """
        check_sizes(n=n)
        proper = self.nonnegative()
        gram = self._kernel(kernel)(self.points, self.points)
        witness = (gram @ proper.weights.unsqueeze(-1)).squeeze(-1)
        wide = gram.expand(*witness.shape[:-1], *gram.shape[-2:])
        crowd = torch.zeros_like(witness)
        picks = []
        for step in range(1, n + 1):
            pick = (witness - crowd / step).argmax(-1)
            index = pick[..., None, None].expand(*pick.shape, 1, wide.shape[-1])
            crowd = crowd + wide.gather(-2, index).squeeze(-2)
            picks.append(pick)
        chosen = torch.stack(picks, -1)
        points = self.points.expand(*chosen.shape[:-1], *self.points.shape[-2:])
        return points.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, points.shape[-1]))

    def project(self, features: Features) -> Float[Tensor, "*e p"]:
        """Coordinates in a finite feature space: m = sum_i w_i phi(z_i)."""
        phi = features(self.points)
        return (self.weights.to(phi).unsqueeze(-2) @ phi).squeeze(-2)

    def _average(self, values: Float[Tensor, "*b n k"]) -> Tensor:
        if values.ndim > 2 and values.shape[-3] == 1 and self.weights.ndim > 1:
            return self.weights @ values.squeeze(-3)  # one product, without a copy for each row
        return (self.weights.unsqueeze(-2) @ values).squeeze(-2)

    def _in_one_precision(self, other: "Embedding") -> tuple["Embedding", "Embedding"]:
        """Both in the finest type among them: terms that cancel need the same digits."""
        kinds = (self.points.dtype, self.weights.dtype, other.points.dtype, other.weights.dtype)
        dtype = reduce(torch.promote_types, kinds)
        one = Embedding(self.points.to(dtype), self.weights.to(dtype))
        return one, Embedding(other.points.to(dtype), other.weights.to(dtype))

    def _kernel(self, kernel: Kernel | None) -> Kernel:
        return (Gaussian() if kernel is None else kernel).fit(self.points)


def positive_part(cov: Float[Tensor, "*b d d"]) -> Float[Tensor, "*b d d"]:
    """The nearest positive semi-definite matrix: negative eigenvalues become zero."""
    symmetric = 0.5 * (cov + cov.mT)
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(symmetric)
    return (vectors * values.clamp_min(0).unsqueeze(-2)) @ vectors.mT
