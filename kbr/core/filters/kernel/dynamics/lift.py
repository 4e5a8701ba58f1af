"""Features of a latent joined with the control that moves it, linear in the latent's own features.

A transition p(z' | z, u) is then a ridge regression like p(z' | z), and a belief is lifted by its
coordinates alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.features import pivot_triangle, take_rows
from kbr.core.filters.kernel.engine import State
from kbr.core.kernels import Kernel
from kbr.core.linalg import pivoted_cholesky
from kbr.core.tables import blocks, extended

Control = Float[Tensor, "*b s du"]
PAIRS = 20_000  # evenly spaced steps among which landmarks are found
RANK = 512  # landmarks at most
UNKNOWN = 1e-6  # a control whose kernel with every landmark is less is unlike any of training


def lift_tolerance(ridge: float) -> float:
    """Of the factor: what it leaves out is compared with the ridge of the transition."""
    return min(max(1e-2 * ridge, 1e-10), 1e-5)


@dataclass(frozen=True, eq=False)
class Lift:
    """Features of (z, u) from a pivoted Cholesky factor of the product of both kernels.

    Math: chi(z, u) = L^-1 (k_Z(z_l, z) k_U(u_l, u))_l,  (z_l, u_l) the landmarks among the training
          steps, k_Z(z_l, z) = phi(z_l)'phi(z); a belief with coordinates m = E phi(z) has
          E chi(z, u) = L^-1 (phi(z_l)'m k_U(u_l, u))_l.
    Of a control unlike any of training it is zero: the prediction is then that of the start.
    `u` are the controls of all training steps, `rows` their features.
    """

    kernel: Kernel
    u: Float[Tensor, "*b k du"]
    tolerance: float
    latents: Float[Tensor, "*b q p"]
    near: Callable[[Control], Tensor]
    whiten: Float[Tensor, "*b q q"]
    rows: Float[Tensor, "*b k q"]

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether the rank was cut."""
        full = self.whiten.shape[-1] == RANK
        return (f"rank of the dynamics with controls cut at {RANK}",) if full else ()

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        phi: Float[Tensor, "*b k p"],
        u: Float[Tensor, "*b k du"],
        *,
        tolerance: float,
    ) -> "Lift":
        """For training steps that begin at latents with features phi and are moved by u."""
        k = phi.shape[-2]
        some = torch.linspace(0, k - 1, min(k, PAIRS), device=phi.device).round().long()
        few, few_u = phi.index_select(-2, some).double(), u.index_select(-2, some)

        def column(index: Tensor) -> Tensor:
            at = index.unsqueeze(-1)
            return (few @ take_rows(few, at).mT * kernel(few_u, take_rows(few_u, at))).squeeze(-1)

        factor, pivots = pivoted_cholesky(
            few.square().sum(-1), column, tolerance=tolerance, max_rank=RANK
        )
        triangle, used = pivot_triangle(factor, pivots)
        unit = torch.diag_embed(used.to(triangle.dtype))
        inverse: Tensor = torch.linalg.solve_triangular(triangle, unit, upper=False)
        empty = cls(
            kernel,
            u[..., :0, :],
            tolerance,
            take_rows(few, pivots).contiguous(),
            kernel.anchored(take_rows(few_u, pivots)),
            inverse.mT.contiguous(),
            phi.new_empty(*phi.shape[:-2], 0, pivots.shape[-1]),
        )
        return empty.of_steps(phi, u)

    def of_steps(self, phi: Float[Tensor, "*b k p"], u: Float[Tensor, "*b k du"]) -> "Lift":
        """The same landmarks for other training steps."""
        rows = extended(self.rows[..., :0, :], phi.shape[-2])
        for part in blocks(phi.shape[-2]):
            rows[..., part, :] = self(phi[..., part, :].double(), u[..., part, :])
        return replace(self, u=u, rows=rows)

    def joined(self, more: "Lift") -> "Lift":
        """With the steps of another lift of the same landmarks."""
        u, rows = torch.cat([self.u, more.u], -2), torch.cat([self.rows, more.rows], -2)
        return replace(self, u=u, rows=rows)

    def __call__(self, state: State, u: Control) -> Float[Tensor, "*b s q"]:
        near = self.near(u)
        near = torch.where(near.amax(-1, keepdim=True) > UNKNOWN, near, 0.0)
        return (state @ self.latents.mT * near) @ self.whiten

    def starting(self, phi: Float[Tensor, "*b k p"]) -> "Lift":
        """The same controls for steps that begin at other latents: with time running backwards."""
        return Lift.of(self.kernel, phi, self.u, tolerance=self.tolerance)

    def sums(self, phi: Float[Tensor, "*b n p"], ends: Int[Tensor, "k"]) -> dict[str, Tensor]:
        """Second moments of the steps' features, alone and with those of the latents they end at.

        Math: sum_i chi_i chi_i',  sum_i chi_i phi_i+1'.
        """
        *batch, _, q = self.rows.shape
        early = self.whiten.new_zeros(*batch, q, q)
        cross = self.whiten.new_zeros(*batch, q, phi.shape[-1])
        for part in blocks(len(ends)):
            chi = self.rows[..., part, :].double()
            early += chi.mT @ chi
            cross += chi.mT @ phi.index_select(-2, ends[part]).double()
        return {"early": early, "cross": cross}
