"""The learned dynamics: an operator from phi(z_t) to phi(z_t+1), and the choice of its ridge.

Ref: Xu et al. 2022, section 4.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.errors import KbrError


def transition_pairs(lengths: Sequence[int]) -> tuple[Int[Tensor, "k"], Int[Tensor, "k"]]:
    """Rows (before, after) of every step inside a sequence; steps never cross a border."""
    before, start = [], 0
    for length in lengths:
        before.append(torch.arange(start, start + length - 1, device="cpu"))
        start += length
    previous = torch.cat(before)
    if previous.numel() == 0:
        raise KbrError(
            "the filter learns the dynamics from consecutive steps, so a training sequence needs "
            f"at least 2 of them; got sequences of lengths {list(lengths)}. Raise n_train."
        )
    return previous, previous + 1


def leave_one_out_score(
    phi: Float[Tensor, "*b n p"],
    before: Float[Tensor, "*b k p"],
    after: Float[Tensor, "*b k p"],
) -> Callable[[float | Tensor], Float[Tensor, "*b"]]:
    """Leave-one-out KuLSIF score of the predictive ratios p(z'|z_j) / p(z'), for lam' = eta.

    In a filter the ratio's numerator is a prediction, so KuLSIF is scored on predictions: for every
    step j the transition and the marginal are fitted without that step, and z_j+1 is the sample.
    A function of eta, a number or a tensor [*b 1]; both spectra are computed once.

    Math: J(eta) = mean_j [ b_j' C b_j / 2 - phi_j+1' b_j ],  b_j = (C_-j + eta I)^-1 E_-j' phi_j.
    Ref:  Kanamori et al. 2012, section 5, with the closed form of ridge regression's residuals.
    """
    n, k = phi.shape[-2], before.shape[-2]
    marginal, vectors = torch.linalg.eigh(phi.mT @ phi)
    rotated = after @ vectors
    spectrum, basis = torch.linalg.eigh(before.mT @ before)
    coords = before @ basis
    cross = coords.mT @ rotated

    def score(eta: float | Tensor) -> Tensor:
        shrunk = coords / (spectrum.clamp_min(0) + k * eta).unsqueeze(-2)
        leverage = (shrunk * coords).sum(-1, keepdim=True).clamp_max(1 - 1e-9)
        m = (shrunk @ cross - leverage * rotated) / (1 - leverage)
        inverse = 1 / (marginal.clamp_min(0) + (n - 1) * eta).unsqueeze(-2)
        own = (rotated.square() * inverse).sum(-1, keepdim=True).clamp_max(1 - 1e-9)
        half = m * inverse
        hit = (half * rotated).sum(-1, keepdim=True) / (1 - own)
        beta = (n - 1) * (half + inverse * rotated * hit)
        fit = (beta.square() * marginal.clamp_min(0).unsqueeze(-2)).sum(-1) / n
        loss: Tensor = fit / 2 - (n - 1) * hit.squeeze(-1)
        return loss.mean(-1)

    return score
