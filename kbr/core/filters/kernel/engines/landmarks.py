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
from kbr.core.filters.kernel.engines.recombination import recombine
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
    span = Span(rule.kernel_z, z[:rank], z, mass)
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
    x, z = data.x.to(torch.float64), data.z
    moments, _ = pair_moments(wide_kernels(kernels, x, z), x, z, n_landmarks)
    kept, mass = recombine(moments, z.new_full((len(z),), 1 / len(z)))
    ridge = min(eta, lam_transition)
    order, mass, span = spanned(kernels[1], z[kept], mass, ridge)
    early, late = (span(z[rows.to(z.device)]) for rows in transition_pairs(data.lengths))
    cross = early.mT @ late / len(early)
    return kept[order], span.dynamics(mass, cross, eta=eta, lam_transition=lam_transition)


def wide_kernels(
    kernels: tuple[Kernel, Kernel], x: Float[Tensor, "n dx"], z: Float[Tensor, "n dz"]
) -> tuple[Kernel, Kernel]:
    """The kernels that tell pairs apart; a linear one would tell them too little."""
    first, second = (
        Gaussian().fit(points) if isinstance(kernel, Linear) else kernel
        for kernel, points in zip(kernels, (x, z), strict=True)
    )
    return first, second


def pair_moments(
    kernels: tuple[Kernel, Kernel],
    x: Float[Tensor, "n dx"],
    z: Float[Tensor, "n dz"],
    n_landmarks: int,
    tolerance: float = RESIDUAL,
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "r"]]:
    """One and the leading features of k_X k_Z at all pairs, as columns, and the features' pivots.

    Math: k = r + 1 <= n_landmarks: so many moments are kept by as many pairs of positive mass.
    """
    if n_landmarks < 2:
        raise KbrError(f"n_landmarks must be at least 2; got {n_landmarks}.")
    kernel_x, kernel_z = kernels

    def column(index: Tensor) -> Tensor:
        at = index.reshape(1)
        return (kernel_x(x, x[at]) * kernel_z(z, z[at])).squeeze(-1)

    features, pivots = pivoted_cholesky(
        z.new_ones(len(z)), column, tolerance=tolerance, max_rank=n_landmarks - 1
    )
    return torch.cat([torch.ones_like(z[:, :1]), features], 1), pivots


def spanned(
    kernel_z: Kernel, z: Float[Tensor, "m dz"], mass: Float[Tensor, "m"], ridge: float
) -> tuple[Int[Tensor, "m"], Float[Tensor, "m"], "Span"]:
    """An order of landmarks with the latents' pivots first, masses in it, and the pivots' span.

    That span holds the beliefs, best where the mass is.
    """
    root = mass.sqrt()
    few, order = pivoted_cholesky(
        mass * kernel_z.diagonal(z),
        lambda at: root * root[at] * kernel_z(z, z[at.reshape(1)]).squeeze(-1),
        tolerance=LATENT_SHARE * ridge,
        max_rank=LATENT_RANK,
    )
    rest = torch.ones(len(z), dtype=torch.bool, device=z.device)
    rest[order] = False
    order = torch.cat([order, rest.nonzero().squeeze(-1)])
    # Rounded as a file holds them, so that the dynamics fit the features made from the file.
    mass, points = (t.to(torch.float32).to(torch.float64) for t in (mass[order], z[order]))
    mass = mass / mass.sum()
    return order, mass, Span(kernel_z, points[: few.shape[-1]], points, mass)


class Span:
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

    def quick(self) -> Callable[[Tensor], Tensor]:
        """The same function for very many points: a product in the place of a solve."""
        unit = torch.eye(len(self.points), dtype=self.points.dtype, device=self.points.device)
        whiten = _lower_solve(self.triangle, unit).mT.contiguous()
        at_points = self.kernel.anchored(self.points)
        return lambda z: at_points(z) @ whiten

    def root(self, ridge: float, name: str) -> Float[Tensor, "p p"]:
        """The lower factor of C + ridge I."""
        return ridge_cholesky(self.second, ridge=ridge, name=name)

    def dynamics(
        self, mass: Tensor, cross: Float[Tensor, "p p"], *, eta: float, lam_transition: float
    ) -> Landmarks:
        """Masses, and the dynamics of C_prev,post = `cross`, the mean of phi_t phi_t+1'."""
        before = _lower_solve(self.root(lam_transition, "lam_transition"), cross)
        whole = _lower_solve(self.root(eta, "eta"), before.mT).mT
        left, values, right = torch.linalg.svd(whole, full_matrices=False)
        half = values[:DYNAMICS_RANK].sqrt()
        factors = left[:, : len(half)] * half, half.unsqueeze(-1) * right[: len(half)]
        return Landmarks(mass, *factors)


def _lower_solve(triangle: Tensor, right: Tensor) -> Tensor:
    solved: Tensor = torch.linalg.solve_triangular(triangle, right, upper=False)
    return solved
