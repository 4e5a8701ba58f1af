"""A filter on few weighted points: what remains of a large training set once it is compressed.

Everything a step sums over the training pairs is an average of smooth functions of (x, z). A few
pairs with masses c give the same averages, and a step then costs what it costs with so few pairs.
The dynamics are estimated from all the data and kept as a small matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import moments_table
from kbr.core.filters.engine import Update
from kbr.core.filters.operators import FilterOperators, Step
from kbr.core.filters.transition import transition_pairs
from kbr.core.kernels import Gaussian, Kernel, Linear
from kbr.core.linalg import pivoted_cholesky, ridge_cholesky
from kbr.core.rules import Rule

RESIDUAL = 1e-12  # the pairs' features stop here: fewer landmarks are then as good
LATENT_SHARE = 0.1  # of eta: what the span of the latent features may leave out
ROUNDING = 1e-13
LATENT_RANK = 144  # at most so many latent features
DYNAMICS_RANK = 28  # of the dynamics in them: the file holds two factors of this width


def landmark_tolerance(lam: float) -> float:
    """Of the factor of G_X: the masses are good to a few digits, so more would be of no use."""
    return min(max(1e-2 * lam**2, 1e-12), 1e-6)


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Masses c of the landmark pairs, and the dynamics in whitened latent features, factored.

    The latent features are spanned by the first p landmarks. In white features the singular values
    of the transition are the correlations of z_t and z_t+1, of which few are far from zero.
    """

    mass: Float[Tensor, "m"]
    left: Float[Tensor, "p k"]
    right: Float[Tensor, "k p"]

    @property
    def transition(self) -> Float[Tensor, "p p"]:
        return self.left @ self.right


@dataclass(frozen=True, eq=False)
class LandmarkOperators(FilterOperators):
    """Filter operators on weighted points.

    Math: with phi white, (C + eta I)^-1/2 phi(z):  r~ = phi m,  m+ = S'u,  u = phi'w,
          S = (C + lam' I)^-1/2 C_prev,post (C + eta I)^-1/2;  sums over points carry the masses c.
    """

    mass: Float[Tensor, "m"]

    def start(self, sequences: int) -> Step:
        none = torch.zeros(sequences, dtype=torch.bool, device=self.phi.device)
        return self._step(self.mass.expand(sequences, self.n), none)

    def ratio(self, m: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s n"]:
        return m @ self.phi.mT

    def weigh(self, ratio: Float[Tensor, "*b s n"]) -> Float[Tensor, "*b s n"]:
        return ratio * (self.mass * self.n)

    def predict(self, state: Float[Tensor, "*b s p"]) -> Step:
        m = state @ self.transition
        weights = self.ratio(m) * self.mass
        if self.normalize:
            total = weights.sum(-1, keepdim=True)
            weights = torch.where(total > 0, weights / total, self.mass)
            m = torch.where(total > 0, m / total, self.mass @ self.phi)
        none = torch.zeros(state.shape[:-1], dtype=torch.bool, device=state.device)
        return Step(weights, m, weights @ self.readout, none)

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "LandmarkOperators":
        """Time running backwards: in white features, the transposed transition."""
        return replace(self, transition=self.transition.mT)


def landmark_operators(
    rule: Rule, update: Update, z: Float[Tensor, "m dz"], landmarks: Landmarks, *, eta: float
) -> LandmarkOperators:
    """Operators from landmark pairs; `rule.kernel_z` has its bandwidth."""
    assert isinstance(rule.kernel_z, Kernel)
    mass, rank = landmarks.mass, landmarks.left.shape[0]
    phi = _white(rule.kernel_z, z, z[:rank], z, mass, eta)
    identity = torch.eye(rank, dtype=z.dtype, device=z.device)
    return LandmarkOperators(
        rule=rule,
        update=update,
        normalize=getattr(rule, "normalize", False),
        points=z,
        phi=phi,
        marginal=identity,
        transition=landmarks.transition,
        prediction=identity,
        after=torch.arange(rank, device=z.device),
        readout=moments_table(z),
        mass=mass,
    )


def choose_landmarks(
    kernel_x: Kernel,
    kernel_z: Kernel,
    x: Float[Tensor, "n dx"],
    z: Float[Tensor, "n dz"],
    lengths: Sequence[int],
    *,
    n_landmarks: int,
    eta: float,
    lam_transition: float,
) -> tuple[Int[Tensor, "m"], Landmarks]:
    """Which pairs to keep, in order, their masses and the dynamics of all pairs.

    Pairs and masses integrate the leading features of k_X k_Z exactly as all n pairs do.
    """
    if n_landmarks < 2:
        raise KbrError(f"n_landmarks must be at least 2; got {n_landmarks}.")
    n = z.shape[-2]
    wide_x, wide_z = _stationary(kernel_x, x), _stationary(kernel_z, z)

    def column(index: Tensor) -> Tensor:
        at = index.reshape(1)
        return (wide_x(x, x[at]) * wide_z(z, z[at])).squeeze(-1)

    features, _ = pivoted_cholesky(
        z.new_ones(n), column, tolerance=RESIDUAL, max_rank=n_landmarks - 1
    )
    moments = torch.cat([torch.ones_like(z[:, :1]), features], 1)
    kept, mass = recombine(moments, z.new_full((n,), 1 / n))
    # The latents' pivots come first: their span holds the beliefs, best where the mass is.
    root, few_z = mass.sqrt(), z[kept]
    few, order = pivoted_cholesky(
        mass * kernel_z.diagonal(few_z),
        lambda at: root * root[at] * kernel_z(few_z, few_z[at.reshape(1)]).squeeze(-1),
        tolerance=LATENT_SHARE * eta,
        max_rank=LATENT_RANK,
    )
    rest = torch.ones(len(kept), dtype=torch.bool, device=z.device)
    rest[order] = False
    order = torch.cat([order, rest.nonzero().squeeze(-1)])
    # Rounded as a file holds them, so that the dynamics fit the features made from the file.
    kept = kept[order]
    mass, points = (t.to(torch.float32).to(torch.float64) for t in (mass[order], z[kept]))
    mass = mass / mass.sum()
    early, late = (rows.to(z.device) for rows in transition_pairs(lengths))
    before, after = (
        _white(kernel_z, z, points[: few.shape[-1]], points, mass, ridge)
        for ridge in (lam_transition, eta)
    )
    transition = before[early].mT @ after[late] / len(early)
    left, values, right = torch.linalg.svd(transition, full_matrices=False)
    half = values[:DYNAMICS_RANK].sqrt()
    factors = left[:, : len(half)] * half, half.unsqueeze(-1) * right[: len(half)]
    return kept, Landmarks(mass, *factors)


def recombine(
    moments: Float[Tensor, "n k"], mass: Float[Tensor, "n"]
) -> tuple[Int[Tensor, "m"], Float[Tensor, "m"]]:
    """At most k of n points, with positive masses that keep all k moments sum_i c_i f_i.

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


def _white(
    kernel: Kernel, z: Tensor, span: Tensor, points: Tensor, mass: Tensor, ridge: float
) -> Float[Tensor, "n p"]:
    """(C + ridge I)^-1/2 phi(z), phi spanned by k(span, .) and C from the weighted points."""
    gram = kernel(span, span)
    jitter = float(ROUNDING * gram.diagonal().max().clamp_min(1e-300))
    triangle = ridge_cholesky(gram, ridge=jitter, name="the latents' span")
    features = _solve(triangle, kernel(points, span))
    second = features.mT @ (mass.unsqueeze(-1) * features)
    return _solve(
        ridge_cholesky(second, ridge=ridge, name="eta"), _solve(triangle, kernel(z, span))
    )


def _solve(triangle: Tensor, rows: Tensor) -> Tensor:
    solved: Tensor = torch.linalg.solve_triangular(triangle, rows.mT, upper=False)
    return solved.mT


def _stationary(kernel: Kernel, points: Tensor) -> Kernel:
    """The kernel that tells pairs apart; a linear one tells too little."""
    return Gaussian().fit(points) if isinstance(kernel, Linear) else kernel
