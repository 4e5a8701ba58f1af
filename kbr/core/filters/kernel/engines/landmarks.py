"""A filter on few weighted points: what remains of a large training set once it is compressed.

Everything a step sums over the training pairs is an average of smooth functions of (x, z). A few
pairs with masses c give the same averages, and a step then costs what it costs with so few pairs.
The dynamics are estimated from all the data and kept as a small matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.kernel.engine import State, Update, Weights
from kbr.core.filters.kernel.operators import FeatureOperators, transition_pairs
from kbr.core.filters.kernel.step import Move, Step
from kbr.core.filters.sequences import Sequences
from kbr.core.kernels import Gaussian, Kernel, Linear
from kbr.core.linalg import pivoted_cholesky, ridge_cholesky
from kbr.core.rules import Rule

RESIDUAL = 1e-12  # the pairs' features stop here: fewer landmarks are then as good
LATENT_SHARE = 0.1  # of the smaller ridge: what the span of the latent features may leave out
ROUNDING = 1e-13
LATENT_RANK = 144  # at most so many latent features
DYNAMICS_RANK = 28  # of the dynamics in them: the file holds two factors of this width


def landmark_tolerance(lam: float) -> float:
    """Of the factor of G_X: the masses are good to a few digits, so more would be of no use."""
    return min(max(1e-2 * lam**2, 1e-12), 1e-6)


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Masses c of the landmark pairs, and the dynamics in whitened latent features, factored.

    Math: left right = R^-1 C_prev,post L'^-1 with L L' = C + eta I and R R' = C + lam' I: its
          singular values are the correlations of z_t and z_t+1, of which few are far from zero.
    The latent features are spanned by the first p landmarks.
    """

    mass: Float[Tensor, "m"]
    left: Float[Tensor, "p k"]
    right: Float[Tensor, "k p"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LandmarkOperators(FeatureOperators):
    """Filter operators on weighted points.

    Math: with white phi = L^-1 phi(z), L L' = C + eta I:  r~ = phi m,  u = phi'w,  m+ = E'u,
          E = L' (C + lam' I)^-1 C_prev,post L'^-1, and C_post,prev in `backward`, where time runs
          backwards;  sums over points carry the masses c.
    """

    mass: Float[Tensor, "m"]
    backward: Float[Tensor, "p p"]

    def start(self, sequences: int) -> Step:
        return self.belief(self.mass.expand(sequences, self.n), first=True)

    def ratio(self, m: State, weights: Callable[[], Weights] | None = None) -> Weights:
        return m @ self.phi.mT

    def weigh(self, ratio: Weights) -> Weights:
        return ratio * (self.mass * self.n)

    def ahead(self, state: State, u: Move = None) -> Step:
        m = self.advance(state)
        return self.belief(self.ratio(m) * self.mass, m)

    def forecast_table(self) -> Float[Tensor, "p c"]:
        return self.transition @ (self.phi.mT * self.mass) @ self.readout.columns

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "LandmarkOperators":
        """Time running backwards, with the ridge of the transition forwards."""
        return replace(self, transition=self.backward, backward=self.transition)


def landmark_operators(
    rule: Rule,
    update: Update,
    z: Float[Tensor, "m dz"],
    landmarks: Landmarks,
    *,
    eta: float,
    lam_transition: float,
) -> tuple[LandmarkOperators, Callable[[Tensor], Tensor]]:
    """Operators from landmark pairs, and the features of latents; `kernel_z` has its bandwidth."""
    assert isinstance(rule.kernel_z, Kernel)
    mass, rank = landmarks.mass, landmarks.left.shape[0]
    span = _Span(rule.kernel_z, z[:rank], z, mass)
    root = span.root(eta, "eta")
    # With A = R^-1 L:  E = A' S  and, as C_prev,post = R S L',  E backwards = A'A S' A'^-1.
    turn = _lower_solve(span.root(lam_transition, "lam_transition"), root)
    dynamics = landmarks.left @ landmarks.right

    def latents(points: Tensor) -> Tensor:
        return _lower_solve(root, span(points).mT).mT

    operators = LandmarkOperators(
        rule=rule,
        update=update,
        points=z,
        readout=MomentsTable.of(z),
        phi=latents(z),
        mass=mass,
        transition=turn.mT @ dynamics,
        backward=turn.mT @ turn @ _lower_solve(turn, dynamics).mT,
    )
    return operators, latents


def choose_landmarks(
    kernels: tuple[Kernel, Kernel],
    data: Sequences,
    n_landmarks: int,
    *,
    eta: float,
    lam_transition: float,
) -> tuple[Int[Tensor, "m"], Landmarks]:
    """Which pairs to keep, in order, their masses and the dynamics of all pairs.

    Pairs and masses integrate the leading features of k_X k_Z exactly as all n pairs do.
    """
    if n_landmarks < 2:
        raise KbrError(f"n_landmarks must be at least 2; got {n_landmarks}.")
    x, z, (_, kernel_z) = data.x.to(torch.float64), data.z, kernels
    n = len(z)
    wide_x, wide_z = (  # a linear kernel would tell pairs too little apart
        Gaussian().fit(points) if isinstance(kernel, Linear) else kernel
        for kernel, points in zip(kernels, (x, z), strict=True)
    )

    def column(index: Tensor) -> Tensor:
        at = index.reshape(1)
        return (wide_x(x, x[at]) * wide_z(z, z[at])).squeeze(-1)

    most = n_landmarks - 1
    features, _ = pivoted_cholesky(z.new_ones(n), column, tolerance=RESIDUAL, max_rank=most)
    moments = torch.cat([torch.ones_like(z[:, :1]), features], 1)
    kept, mass = recombine(moments, z.new_full((n,), 1 / n))
    # The latents' pivots come first: their span holds the beliefs, best where the mass is.
    root, few_z = mass.sqrt(), z[kept]
    few, order = pivoted_cholesky(
        mass * kernel_z.diagonal(few_z),
        lambda at: root * root[at] * kernel_z(few_z, few_z[at.reshape(1)]).squeeze(-1),
        tolerance=LATENT_SHARE * min(eta, lam_transition),
        max_rank=LATENT_RANK,
    )
    rest = torch.ones(len(kept), dtype=torch.bool, device=z.device)
    rest[order] = False
    order = torch.cat([order, rest.nonzero().squeeze(-1)])
    # Rounded as a file holds them, so that the dynamics fit the features made from the file.
    kept = kept[order]
    mass, points = (t.to(torch.float32).to(torch.float64) for t in (mass[order], z[kept]))
    mass = mass / mass.sum()
    early, late = (rows.to(z.device) for rows in transition_pairs(data.lengths))
    span = _Span(kernel_z, points[: few.shape[-1]], points, mass)
    before = _lower_solve(span.root(lam_transition, "lam_transition"), span(z[early]).mT)
    after = _lower_solve(span.root(eta, "eta"), span(z[late]).mT)
    left, values, right = torch.linalg.svd(before @ after.mT / len(early), full_matrices=False)
    half = values[:DYNAMICS_RANK].sqrt()
    factors = left[:, : len(half)] * half, half.unsqueeze(-1) * right[: len(half)]
    return kept, Landmarks(mass, *factors)


def recombine(moments: Float[Tensor, "n k"], mass: Float[Tensor, "n"]) -> tuple[Tensor, Tensor]:
    """At most k of n points, and positive masses that keep all k moments sum_i c_i f_i.

    Groups of points are thinned to half along the null space of their moments, until no group has
    more than one point.
    Ref: Caratheodory's theorem; Litterer and Lyons 2012; Tchernychova 2016.
    """
    size = moments.shape[-1]
    kept = torch.arange(len(mass), device=mass.device)
    while len(kept) > size:
        groups = min(2 * size, len(kept))
        member = torch.arange(len(kept), device=mass.device) * groups // len(kept)
        total = mass.new_zeros(groups).index_add(0, member, mass)
        inside = mass.unsqueeze(-1) * moments[kept]
        centre = moments.new_zeros(groups, size).index_add(0, member, inside)
        share = _thin(centre / total.unsqueeze(-1), total) / total
        alive = share[member] > 0
        if bool(alive.all()):
            break
        kept, mass = kept[alive], (mass * share[member])[alive]
    return kept, mass


def _thin(points: Float[Tensor, "g k"], mass: Float[Tensor, "g"]) -> Float[Tensor, "g"]:
    """Masses of equal moments with at most k of them positive."""
    k = points.shape[-1]
    null = torch.linalg.qr(points, mode="complete").Q[:, k:].mT.contiguous()
    mass = mass.clone()
    for j in range(len(null)):
        v = null[j].clone()
        v = v if bool((v > 0).any()) else -v
        reach = torch.where(v > 1e-14 * v.abs().max(), mass / v, torch.inf)
        pivot = int(reach.argmin())
        mass = (mass - reach[pivot] * v).clamp_min(0)
        mass[pivot] = 0
        null[j + 1 :] -= (null[j + 1 :, pivot] / v[pivot]).unsqueeze(-1) * v
        null[j + 1 :, pivot] = 0
    return mass


class _Span:
    """Latent features spanned by k(points, .), and their second moment C under the masses."""

    def __init__(self, kernel: Kernel, points: Tensor, z: Tensor, mass: Tensor) -> None:
        gram = kernel(points, points)
        jitter = float(ROUNDING * gram.diagonal().max().clamp_min(1e-300))
        self.kernel, self.points = kernel, points
        self.triangle = ridge_cholesky(gram, ridge=jitter, name="the latents' span")
        phi = self(z)
        self.second = phi.mT @ (mass.unsqueeze(-1) * phi)

    def __call__(self, z: Float[Tensor, "n dz"]) -> Float[Tensor, "n p"]:
        return _lower_solve(self.triangle, self.kernel(z, self.points).mT).mT

    def root(self, ridge: float, name: str) -> Float[Tensor, "p p"]:
        """The lower factor of C + ridge I."""
        return ridge_cholesky(self.second, ridge=ridge, name=name)


def _lower_solve(triangle: Tensor, right: Tensor) -> Tensor:
    solved: Tensor = torch.linalg.solve_triangular(triangle, right, upper=False)
    return solved
