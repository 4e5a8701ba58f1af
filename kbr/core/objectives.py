"""The loss that trains features of observations: ridge regression of phi(z) on psi(x), solved.

The best linear operator from psi(x) to phi(z) is known, so the loss is a function of the features
alone, and it sees the data only through three sums. These give the exact loss and gradient of any
number of points in the memory of one chunk, or of points spread over several workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.linalg import ridge_cholesky, ridge_solve


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """What the loss needs from n points; sums over disjoint sets of points add up.

    Math: second = Psi'D Psi,  cross = Psi'D Phi,  energy = sum_i r_i |phi_i|^2,  D = diag(r).
    """

    second: Float[Tensor, "*b d d"]
    cross: Float[Tensor, "*b d p"]
    energy: Float[Tensor, "*b"]
    n: int

    def __add__(self, other: "FeatureSums") -> "FeatureSums":
        return FeatureSums(
            self.second + other.second,
            self.cross + other.cross,
            self.energy + other.energy,
            self.n + other.n,
        )

    def detach(self) -> "FeatureSums":
        return FeatureSums(self.second.detach(), self.cross.detach(), self.energy.detach(), self.n)


def feature_sums(
    psi: Float[Tensor, "*b n d"],
    phi: Float[Tensor, "*b n p"],
    ratio: Float[Tensor, "*b n"] | None = None,
) -> FeatureSums:
    """The sums in float64, whatever the features' dtype; no weights means r = 1."""
    psi, phi = psi.to(torch.float64), phi.to(torch.float64)
    squares = phi.square().sum(-1)
    if ratio is None:
        return FeatureSums(psi.mT @ psi, psi.mT @ phi, squares.sum(-1), psi.shape[-2])
    r = ratio.to(torch.float64)
    weighted = (r.unsqueeze(-1) * psi).mT
    return FeatureSums(weighted @ psi, weighted @ phi, (r * squares).sum(-1), psi.shape[-2])


def loss_from_sums(sums: FeatureSums, *, lam: float) -> Float[Tensor, "*b"]:
    """Math: (energy - tr(B' A^-1 B)) / n,  A = second + n lam I,  B = cross."""
    factor = ridge_cholesky(sums.second, ridge=sums.n * lam, name="n lam")
    half = torch.linalg.solve_triangular(factor, sums.cross, upper=False)
    loss: Tensor = (sums.energy - half.square().sum((-2, -1))) / sums.n
    return loss


def feature_loss(
    psi: Float[Tensor, "*b n d"],
    phi: Float[Tensor, "*b n p"],
    ratio: Float[Tensor, "*b n"] | None = None,
    *,
    lam: float,
) -> Float[Tensor, "*b"]:
    """The loss of features psi(x) for targets phi(z), with the best operator put in.

    Math: min_E (1/n) sum_i r_i |phi_i - E'psi_i|^2 + lam |E|^2
          = (sum_i r_i |phi_i|^2 - tr(B' A^-1 B)) / n,  A = Psi'D Psi + n lam I,  B = Psi'D Phi.
    Ref:  Xu et al. 2022, section 3.3 (weights r), section 5.3 (r = 1, for filtering).

    Sums and solves run in float64 and the loss is float64; gradients come back in psi's dtype.
    """
    return loss_from_sums(feature_sums(psi, phi, ratio), lam=lam)


def add_up(parts: Iterable[FeatureSums]) -> FeatureSums:
    total: FeatureSums | None = None
    for part in parts:
        total = part if total is None else total + part
    if total is None:
        raise KbrError("the loss needs at least one chunk of points; got none. Pass some points.")
    return total


def loss_and_cotangents(
    sums: FeatureSums, *, lam: float
) -> tuple[Float[Tensor, "*b"], FeatureSums]:
    """The loss of all points, and its derivatives by the sums, in their places.

    Math: dl/dA = E E'/n,  dl/dB = -2 E/n,  dl/d energy = 1/n,  E = A^-1 B.
    """
    ridge = sums.n * lam
    operator = ridge_solve(sums.second, sums.cross, ridge=ridge, name="n lam")
    loss = (sums.energy - (sums.cross * operator).sum((-2, -1))) / sums.n
    cotangents = FeatureSums(
        operator @ operator.mT / sums.n,
        -2 * operator / sums.n,
        torch.full_like(sums.energy, 1 / sums.n),
        sums.n,
    )
    return loss, cotangents


def share_of_loss(part: FeatureSums, cotangents: FeatureSums) -> Float[Tensor, "*b"]:
    """A function of some points' sums whose gradients, added over all parts, are the loss's own.

    Its value means nothing. On several workers: add the detached sums of all of them, take the
    cotangents of the total, and sum (not average) the gradients of the shares.
    """
    second = (cotangents.second * part.second).sum((-2, -1))
    cross = (cotangents.cross * part.cross).sum((-2, -1))
    return second + cross + cotangents.energy * part.energy
