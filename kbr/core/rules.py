"""Kernel Bayes' rules: from training pairs, a prior embedding and an observation to the posterior.

A rule is one class with its formula in two forms that are equal: from finite features, and from
Gram matrices where there are more features than points. What ratio and weights are scaled to, and
what is answered without evidence, stands once, in `Rule` and `normalized`.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap, Features, as_feature_map
from kbr.core.inputs import ArrayLike, as_pairs, as_tensor, check_finite, check_positive
from kbr.core.kernels import Gaussian, Kernel
from kbr.core.linalg import general_ridge_solve, ridge_solve, squared_ridge_solve
from kbr.core.ratios import KuLSIF, Ratio

Form = Literal["auto", "gram", "feature"]
Square = Float[Tensor, "*b d d"]
Columns = Float[Tensor, "*b d q"]
Gram = Float[Tensor, "*#b k k"]  # one may serve several ratios
Weights = Float[Tensor, "*b k q"]
NEGLIGIBLE = 0.1  # weights with sum w <= NEGLIGIBLE * sum |w| carry no usable evidence


def normalize_ratio(ratio: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """max(r, 0) scaled to average one; uniform where no entry is positive."""
    positive = ratio.clamp_min(0)
    mean = positive.mean(-1, keepdim=True)
    usable = mean > 0
    traced = usable.device.type == "meta" or torch.compiler.is_compiling()
    if not traced and bool(usable.all()):
        return positive / mean
    return torch.where(usable, positive / mean, 1.0)


def has_evidence(weights: Float[Tensor, "*b n"], total: Float[Tensor, "*b"]) -> Bool[Tensor, "*b"]:
    """Whether the total weight is more than rounding and cancellation."""
    size: Tensor = torch.linalg.vector_norm(weights, 1, -1)
    return total > NEGLIGIBLE * size


def normalized(
    values: Float[Tensor, "*b k"],
    total: Float[Tensor, "*b"],
    usable: Bool[Tensor, "*b"],
    otherwise: float | Tensor,
) -> Float[Tensor, "*b k"]:
    """Values over the total weight where that is usable, else what stands without it."""
    there = usable.unsqueeze(-1)
    return torch.where(there, values / torch.where(there, total.unsqueeze(-1), 1.0), otherwise)


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedRule:
    """A rule with its training pairs: posteriors for any observation and any prior."""

    rule: "Rule"
    x: Features
    z: Features
    points: Float[Tensor, "*b n dz"]
    shape: tuple[int, ...]  # of one observation

    def posterior(self, x: ArrayLike, prior: Embedding) -> Embedding:
        """The posterior at observations x [*b q ...], or at a single one [*b ...].

        The result's weights on the training latents are [*b q n], or [*b n].
        """
        batch = self.points.shape[:-2]
        query = as_tensor(x, name="the observation x").to(torch.float64)
        lead = query.shape[: query.ndim - len(self.shape)]
        good = query.shape[len(lead) :] == self.shape and lead[: len(batch)] == batch
        if not good or len(lead) > len(batch) + 1:
            raise KbrError(
                f"observations x must have shape {[*batch, 'q', *self.shape]} (q of them) or "
                f"{[*batch, *self.shape]} (one), as in training; got {list(query.shape)}."
            )
        check_finite(query, name="the observation x")
        query = query.reshape(*batch, -1, math.prod(self.shape))
        ratio = self.rule.ratio(self.z, self.points, self._checked(prior))
        weights = self.rule.weights(self.x.train, self.x(query), ratio).mT
        if len(lead) == len(batch):
            return Embedding(self.points, weights.squeeze(-2))
        return Embedding(self.points.unsqueeze(-3), weights)

    def _checked(self, prior: Embedding) -> Embedding:
        """The prior, checked to be in the space of z and repeated for every batch member."""
        batch, dim = self.points.shape[:-2], self.points.shape[-1]
        if prior.points.shape[-1] != dim or prior.points.shape[:-2] not in (batch, ()):
            raise KbrError(
                f"the prior needs points of shape {[*batch, 'm', dim]}, like the latents z of "
                f"training; got {list(prior.points.shape)}. Change the prior."
            )
        if prior.weights.shape[:-1] not in (batch, ()):
            raise KbrError(
                f"the prior needs weights of shape {[*batch, 'm']}; got "
                f"{list(prior.weights.shape)}. Pass one prior for each batch member."
            )
        points = prior.points.expand(*batch, *prior.points.shape[-2:])
        return Embedding(points, prior.weights.expand(points.shape[:-1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """What the rules share: kernels or feature maps for x and z, a ratio and a ridge.

    A new rule is a subclass with two methods, its formula in both forms: `coefficients` from
    features and `gram_weights` from Gram matrices. It may also set LAMS, SPARSE and `normalize`.
    """

    kernel_x: Kernel | FeatureMap = field(default_factory=Gaussian)
    kernel_z: Kernel | FeatureMap = field(default_factory=Gaussian)
    ratio: Ratio = field(default_factory=KuLSIF)
    lam: float | Tensor | None = None
    form: Form = "auto"
    LAMS: ClassVar[tuple[float, ...]] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # tried by filters
    SPARSE: ClassVar[bool] = True  # max(r, 0) is used: points with a ratio of zero drop out

    def __post_init__(self) -> None:
        if self.lam is not None:
            check_positive(self.lam, name="lam")

    @property
    def normalize(self) -> bool:
        """Whether weights are scaled to sum to one, with the prior where there is no evidence."""
        return True

    def coefficients(self, second: Square, query: Columns, n: int, lam: Tensor) -> Columns:
        """s in w_i = r_i psi_i's at observations psi(x), given second = Psi' diag(r) Psi."""
        raise NotImplementedError

    def gram_weights(
        self, gram: Gram, cross: Weights, ratio: Float[Tensor, "*b k"], n: int, lam: Tensor
    ) -> Weights:
        """The same weights from G_X and g_x, for k points chosen among n (those with a ratio)."""
        raise NotImplementedError

    def effective_ratio(self, ratio: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """The ratio as this rule uses it: as it is, or its positive part, scaled to average one."""
        if not self.SPARSE:
            return ratio
        return normalize_ratio(ratio) if self.normalize else ratio.clamp_min(0)

    def weights(
        self,
        psi: Float[Tensor, "*b n d"],
        query: Float[Tensor, "*b q d"],
        ratio: Float[Tensor, "*b n"],
    ) -> Float[Tensor, "*b n q"]:
        """Posterior weights from features of the training points and of the observations."""
        assert self.lam is not None
        psi, query = psi.to(torch.float64), query.to(torch.float64)
        n, d = psi.shape[-2:]
        lam = torch.as_tensor(self.lam, dtype=torch.float64, device=psi.device)
        r = self.effective_ratio(ratio.to(torch.float64))
        if self.form == "gram" or (self.form == "auto" and d > n):
            w = self.gram_weights(psi @ psi.mT, psi @ query.mT, r, n, lam)
        else:
            rows = r.unsqueeze(-1) * psi
            w = rows @ self.coefficients(psi.mT @ rows, query.mT, n, lam)
        if not self.normalize:
            return w
        total = w.sum(-2)
        return normalized(w.mT, total, has_evidence(w.mT, total), r.unsqueeze(-2) / n).mT

    def fit(self, x: ArrayLike, z: ArrayLike) -> FittedRule:
        """Features of the training pairs x [*b n ...], z [*b n dz]."""
        if self.lam is None:
            raise KbrError("lam is not set: pass lam=..., or let tune_rule choose it.")
        x_, z_, shape = as_pairs(x, z)
        x_, z_ = x_.to(torch.float64), z_.to(torch.float64)
        return FittedRule(
            rule=self,
            x=as_feature_map(self.kernel_x).fit(x_),
            z=as_feature_map(self.kernel_z).fit(z_),
            points=z_,
            shape=shape,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportanceWeightedRule(Rule):
    """Importance-weighted kernel Bayes' rule (IW-KBR).

    Math: w = D Psi (Psi' D Psi + n lam I)^-1 psi(x),  D = diag(max(r, 0)); Gram form:
          w = D^.5 (D^.5 G_X D^.5 + n lam I)^-1 D^.5 g_x.
    Ref:  Xu et al. 2022, Algorithm 1, step 3, and section 3.3.

    `normalize=True` scales the ratio to average one and the weights to sum to one, and answers with
    the prior where the observation carries no usable evidence; `normalize=False` is Algorithm 1 of
    Xu et al. 2022 to the letter. Ratios of less than `floor` times the largest are taken as zero:
    what a ridge leaves far from the prior is more noise than prior.
    """

    normalize: bool = True
    floor: float | Tensor = 0.0  # of a batch of filters, [*b]

    def effective_ratio(self, ratio: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        floor = self.floor
        if isinstance(floor, Tensor):
            floor = floor.to(ratio)[..., None, None]
        elif floor == 0:
            return super().effective_ratio(ratio)
        above = ratio >= floor * ratio.amax(-1, keepdim=True)
        return super().effective_ratio(torch.where(above, ratio, 0.0))

    def coefficients(self, second: Square, query: Columns, n: int, lam: Tensor) -> Columns:
        return ridge_solve(second, query, ridge=n * lam, name="n lam")

    def gram_weights(
        self, gram: Gram, cross: Weights, ratio: Float[Tensor, "*b k"], n: int, lam: Tensor
    ) -> Weights:
        root = ratio.sqrt().unsqueeze(-1)
        system = root * gram * root.mT
        return root * ridge_solve(system, root * cross, ridge=n * lam, name="n lam")


@dataclass(frozen=True, kw_only=True, eq=False)
class OriginalRule(Rule):
    """The original kernel Bayes' rule; the ratio keeps its sign, and weights stand as they are.

    Math: w = L Psi (C^2 + lam I)^-1 C psi(x),  L = diag(r)/n, C = Psi' L Psi; Gram form:
          w = L G_X ((L G_X)^2 + lam I)^-1 L g_x.
    Ref:  Fukumizu, Song and Gretton 2013; Xu et al. 2022, equation for the original estimator.
    """

    # lam here is added to a squared operator, so its useful range is the square of the other's.
    LAMS: ClassVar[tuple[float, ...]] = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
    SPARSE: ClassVar[bool] = False

    @property
    def normalize(self) -> bool:
        return False

    def coefficients(self, second: Square, query: Columns, n: int, lam: Tensor) -> Columns:
        return squared_ridge_solve(second / n, query, ridge=lam) / n

    def gram_weights(
        self, gram: Gram, cross: Weights, ratio: Float[Tensor, "*b k"], n: int, lam: Tensor
    ) -> Weights:
        weight = ratio.unsqueeze(-1) / n
        product = weight * gram  # L G_X: not symmetric, so a general solve
        right = weight * cross
        return product @ general_ridge_solve(product @ product, right, ridge=lam, name="lam")
