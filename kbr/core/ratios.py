"""Density ratios r(z_i) = pi(z_i) / p(z_i) at the training points, from an embedding of the prior.

Values are raw (they may be negative) and average about 1; rules take the positive part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.features import Features
from kbr.core.inputs import check_positive, check_shares
from kbr.core.linalg import or_one, ridge_solve

Latents = Float[Tensor, "*b n dz"]
Values = Float[Tensor, "*b n"]

ETAS = tuple(10.0 ** (k / 2) for k in range(-14, 5))  # 1e-7 .. 1e2, two a decade


@runtime_checkable
class Ratio(Protocol):
    """Anything that gives the ratio at the training points of `features`."""

    def __call__(self, features: Features, points: Latents, prior: Embedding) -> Values: ...


def kulsif(
    phi: Float[Tensor, "*b n p"], m: Float[Tensor, "*b p"], *, eta: float | Tensor
) -> Float[Tensor, "*b p"]:
    """Kernel unconstrained least-squares importance fitting: beta of r~(z) = phi(z)' beta.

    Math: beta = (C_ZZ + eta I)^-1 m,  C_ZZ = Phi'Phi/n; at the training points
          Phi beta = n (G_Z + n eta I)^-1 g_Pi.
    Ref:  Kanamori, Suzuki and Sugiyama 2012; Xu et al. 2022, Algorithm 1, step 2.
    """
    phi = phi.to(torch.float64)
    second = phi.mT @ phi / phi.shape[-2]
    return ridge_solve(second, m.unsqueeze(-1), ridge=eta, name="eta").squeeze(-1)


def kulsif_leave_one_out(
    phi: Float[Tensor, "*b n p"],
    prior: Float[Tensor, "*b m p"],
    weights: Float[Tensor, "*b m"],
    etas: Sequence[float],
) -> Float[Tensor, "e *b"]:
    """Leave-one-out score of KuLSIF for every eta, from one eigendecomposition; smaller is better.

    Math: J(eta) = mean_l [ max(0, r_-l(z_l))^2 / 2 ] - sum_l a_l max(0, r_-l(z~_l)) / sum_l a_l,
          l = 1 .. min(n, m), where r_-l is fitted without z_l and without z~_l.
    Ref:  Kanamori et al. 2012, section 5 (leave-one-out cross-validation in closed form).
    The features stay as they are: the score is that of their kernel phi(z)'phi(z'). It is that of a
    kernel with infinitely many features where they span the training and the prior points.
    """
    phi, prior = phi.to(torch.float64), prior.to(torch.float64)
    weights = weights.to(torch.float64).expand(prior.shape[:-1])
    n, pairs = phi.shape[-2], min(phi.shape[-2], prior.shape[-2])
    if n < 2 or prior.shape[-2] < 2:
        raise KbrError(
            "leave-one-out needs at least 2 training points and 2 prior points; got "
            f"{n} and {prior.shape[-2]}. Set eta to a number."
        )
    values, vectors = torch.linalg.eigh(phi.mT @ phi)
    phi, prior = phi @ vectors, prior @ vectors
    left, right, share = phi[..., :pairs, :], prior[..., :pairs, :], weights[..., :pairs]
    total = weights.sum(-1, keepdim=True)
    rest = or_one(total - share).unsqueeze(-1)  # none where one prior point has all the weight
    m = (weights.unsqueeze(-2) @ prior - share.unsqueeze(-1) * right) / rest
    scores = []
    for eta in etas:
        inverse = 1 / (values.clamp_min(0) + (n - 1) * eta).unsqueeze(-2)
        leverage = (left.square() * inverse).sum(-1)
        fit = (left * inverse * m).sum(-1) / (1 - leverage)
        at_train = (n - 1) * fit
        at_prior = (n - 1) * (
            (right * inverse * m).sum(-1) + (right * inverse * left).sum(-1) * fit
        )
        gain = (share * at_prior.clamp_min(0)).sum(-1) / or_one(share.sum(-1))
        scores.append(at_train.clamp_min(0).square().mean(-1) / 2 - gain)
    return torch.stack(scores)


@dataclass(frozen=True, kw_only=True, eq=False)
class KuLSIF:
    """The paper's estimator. `eta=None` chooses the ridge by leave-one-out over `etas`."""

    eta: float | Tensor | None = None
    etas: Sequence[float] = ETAS

    def __post_init__(self) -> None:
        if self.eta is not None:
            check_positive(self.eta, name="eta")

    def __call__(self, features: Features, points: Latents, prior: Embedding) -> Values:
        return self._values(features.train, features, prior)

    def at(
        self, features: Features, points: Float[Tensor, "*b q dz"], prior: Embedding
    ) -> Float[Tensor, "*b q"]:
        """The ratio at any points, not only those of training.

        Math: r~(z) = phi(z)' (C_ZZ + eta I)^-1 m.
        """
        return self._values(features(points), features, prior)

    def _values(
        self, phi: Float[Tensor, "*b q p"], features: Features, prior: Embedding
    ) -> Float[Tensor, "*b q"]:
        tuned = self.select(features, prior)
        assert tuned.eta is not None
        beta = kulsif(features.train, prior.project(features), eta=tuned.eta)
        return (phi.to(torch.float64) @ beta.unsqueeze(-1)).squeeze(-1)

    def select(self, features: Features, prior: Embedding) -> "KuLSIF":
        """This estimator with eta a number for each batch member.

        Negative prior weights count as zero here. With a single training or prior point there is
        nothing to leave out, and eta is the middle of the grid.
        """
        if self.eta is not None:
            return self
        if features.train.shape[-2] < 2 or prior.points.shape[-2] < 2:
            return replace(self, eta=sorted(self.etas)[len(self.etas) // 2])
        weights = prior.nonnegative().weights
        scores = kulsif_leave_one_out(features.train, features(prior.points), weights, self.etas)
        grid = torch.as_tensor(self.etas, dtype=torch.float64, device=scores.device)
        return replace(self, eta=grid[scores.nan_to_num(nan=torch.inf).argmin(0)])


@dataclass(frozen=True, kw_only=True, eq=False)
class RuLSIF:
    """Relative ratio pi / (alpha pi + (1 - alpha) p): bounded by 1/alpha, so of smaller variance.

    Math: r~ = Phi (alpha C_Pi + (1 - alpha) C_ZZ + eta I)^-1 m,
          C_Pi = sum_j a_j phi(z~_j) phi(z~_j)'.
    Ref:  Yamada et al. 2011.
    """

    eta: float | Tensor
    alpha: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self.eta, name="eta")
        check_shares(alpha=self.alpha)

    def __call__(self, features: Features, points: Latents, prior: Embedding) -> Values:
        phi = features.train.to(torch.float64)
        proper = prior.nonnegative()  # keeps the mixture positive semi-definite
        there = features(proper.points).to(torch.float64)
        from_prior = there.mT @ (proper.weights.to(there).unsqueeze(-1) * there)
        second = self.alpha * from_prior + (1 - self.alpha) * phi.mT @ phi / phi.shape[-2]
        m = prior.project(features).unsqueeze(-1)
        return (phi @ ridge_solve(second, m, ridge=self.eta, name="eta")).squeeze(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactRatio:
    """The true ratio, where the densities are known: a function from points to r.

    Ref: "IW-TrueRatio" in Xu et al. 2022, section 5.1.
    """

    function: Callable[[Latents], Values]

    def __call__(self, features: Features, points: Latents, prior: Embedding) -> Values:
        values = self.function(points)
        if values.shape != points.shape[:-1]:
            raise KbrError(
                "the exact ratio must give one value for each of the points "
                f"{tuple(points.shape)}; got shape {tuple(values.shape)}. Change the function "
                "passed to ExactRatio."
            )
        if values.device.type != "meta" and not bool(torch.isfinite(values).all()):
            raise KbrError(
                "the exact ratio must be finite at every training point; got NaN or infinity. "
                "Change the function passed to ExactRatio (densities that underflow give 0/0)."
            )
        return values
