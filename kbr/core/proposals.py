"""Where to simulate next: draws of the prior near a posterior, with their importance ratio.

A proposal keeps draws of the prior with a probability proportional to a function g(z). Its density
over the prior's is g(z) / Z, Z the mean of g under the prior: no density is ever needed.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.inputs import ArrayLike, as_tensor, check_finite
from kbr.core.linalg import ridge_cholesky
from kbr.core.rules import normalize_ratio

Sampler = Callable[[int, torch.Generator], ArrayLike]
WIDEN = 4.0  # variance of the proposal over that of the posterior found so far
POOL = 50  # draws of the prior for each simulation of a proposal
CROWD = 2  # effective number of draws to choose from, for each simulation of a proposal
NARROWEST = 1e-12  # least variance of a proposal, in variances of the prior
LOWEST = -600.0  # exponents below this are rounding: g stays above zero


def propose(
    posterior: Embedding,
    pool: Float[Tensor, "m dz"],
    size: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "k dz"], Callable[[Tensor], Tensor]]:
    """`size` of the prior's draws `pool`, and the proposal's density over the prior's.

    Math: g(z) = exp(-a |z - m|^2 in (4 C)^-1 / 2) with the posterior's m and C; a = 1, halved
          until the pool holds enough draws near by.
    """
    middle, unit = centre_and_spread(pool, pool.new_ones(len(pool)))
    mean = (posterior.mean - middle) / unit
    cov = posterior.cov / unit / unit.unsqueeze(-1)
    root = ridge_cholesky(WIDEN * cov, ridge=NARROWEST, name="the proposal's variance")

    def exponent(points: Tensor) -> Tensor:
        away = (points - middle) / unit - mean
        white: Tensor = torch.linalg.solve_triangular(root, away.mT, upper=False)
        return -0.5 * white.square().sum(0)

    at_pool = exponent(pool)
    top, power = at_pool.max(), 1.0
    enough = min(CROWD * size, len(pool) / 2)
    while power > 1e-12 and _effective_size(power * (at_pool - top)) < enough:
        power /= 2

    def g(points: Tensor) -> Tensor:
        return (power * (exponent(points) - top)).clamp_min(LOWEST).exp()

    shares = g(pool)
    rows = torch.multinomial(shares.cpu(), size, replacement=False, generator=generator)
    total = shares.mean()
    return pool[rows.to(pool.device)], lambda points: g(points) / total


def _effective_size(logits: Tensor) -> float:
    g = torch.exp(logits)
    return float(g.sum().square() / g.square().sum())


def prior_draws(
    prior: Sampler | ArrayLike, generator: torch.Generator, n: int
) -> Callable[[int], Tensor]:
    """A function that gives draws of the prior [m dz]: fresh ones, or those not given before."""
    if callable(prior):

        def fresh(count: int) -> Tensor:
            return _rows(prior(count, generator))

        return fresh
    rows = _rows(prior)
    if len(rows) < n:
        raise KbrError(f"prior must hold at least n = {n} draws; got {len(rows)}. Lower n.")
    taken = 0

    def next_rows(count: int) -> Tensor:
        nonlocal taken
        part = rows[taken:] if taken else rows[:count]
        taken = taken or count
        return part

    return next_rows


def _rows(draws: ArrayLike) -> Tensor:
    z = as_tensor(draws, name="the prior's draws").to(torch.float64)
    z = z.unsqueeze(-1) if z.ndim == 1 else z
    if z.ndim != 2:
        raise KbrError(f"the prior must give draws of shape [m, dz]; got {list(z.shape)}.")
    check_finite(z, name="the prior's draws")
    return z


def centre_and_spread(values: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and spread of every column under the ratio; a constant column has spread one.

    Scaled by the largest value first: squares of huge and of tiny numbers stay in range.
    """
    share = (normalize_ratio(r) / len(r)).unsqueeze(-1)
    centre = (share * values).sum(0)
    size = (values - centre).abs().amax(0)
    size = torch.where(size > 0, size, torch.ones_like(size))
    spread = size * (share * ((values - centre) / size).square()).sum(0).sqrt()
    return centre, torch.where(spread > 0, spread, size)
