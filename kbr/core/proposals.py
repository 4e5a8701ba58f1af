"""Where to simulate next: draws of the prior near a posterior, with their importance ratio.

A proposal keeps draws of the prior with a probability proportional to a function g(z). Its density
over the prior's is g(z) / Z, Z the mean of g under the prior: no density is ever needed. No draw is
kept twice, so the probabilities must be those of a choice without replacement: systematic sampling
has exactly these.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.inputs import ArrayLike, as_tensor, check_finite
from kbr.core.linalg import or_one, ridge_cholesky
from kbr.core.rules import normalize_ratio

Sampler = Callable[[int, torch.Generator], ArrayLike]
WIDEN = 4.0  # variance of the proposal over that of the posterior found so far
POOL = 50  # draws of the prior for each simulation of a proposal
LEAST = 5  # of a prior given as a tensor: draws for each simulation of a proposal at least
CROWD = 2  # effective number of draws to choose from, for each simulation of a proposal
NARROWEST = 1e-12  # least variance of a proposal, in variances of the prior
LOWEST = -600.0  # exponents below this are rounding: g stays above zero


def propose(
    posterior: Embedding, pool: Float[Tensor, "m dz"], size: int, generator: torch.Generator
) -> tuple[Float[Tensor, "k dz"], Callable[[Tensor], Tensor]]:
    """`size` different draws of the prior's `pool`, and the proposal's density over the prior's.

    Math: g(z) = exp(-a |z - m|^2 in (4 C)^-1 / 2) with the posterior's m and C; a = 1, halved
          until the pool holds enough draws near by. Draw i is kept with probability
          size g(z_i) / sum_j g(z_j), which must be at most one.
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
    top = at_pool.max()
    enough = min(float(CROWD * size), len(pool) / 2)
    powers = (2.0**-k for k in range(41))
    power = next((a for a in powers if _holds(a * (at_pool - top), size, enough)), 0.0)

    def g(points: Tensor) -> Tensor:
        return (power * (exponent(points) - top)).clamp_min(LOWEST).exp()

    shares = g(pool)
    rows = systematic_sample(shares, size, generator)
    total = shares.mean()
    return pool[rows], lambda points: g(points) / total


def _holds(logits: Tensor, size: int, enough: float) -> bool:
    """Whether that many effective draws are there, and none would have to be kept twice."""
    g = logits.exp()
    total = float(g.sum())
    return total >= size * float(g.max()) and total**2 >= enough * float(g.square().sum())


def systematic_sample(
    shares: Float[Tensor, "m"], size: int, generator: torch.Generator
) -> Int[Tensor, "k"]:
    """`size` rows, row i with probability size share_i / sum_j share_j; none twice if all are <= 1.

    Math: in random order, the rows in whose part of [0, size) the points u, u + 1, ... fall, the
          parts as long as the probabilities and u uniform on [0, 1).
    Ref:  Madow 1949.
    """
    device = shares.device
    order = torch.randperm(len(shares), generator=generator).to(device)
    start = torch.rand((), dtype=torch.float64, generator=generator).to(device)
    ends = shares[order].to(torch.float64).cumsum(0)
    marks = start + torch.arange(size, dtype=torch.float64, device=device)
    at = torch.searchsorted(ends, marks * (ends[-1] / size), right=True)
    return order[at.clamp_max(len(shares) - 1)]


def prior_draws(
    prior: Sampler | ArrayLike, generator: torch.Generator, first: int, later: Sequence[int]
) -> Iterator[Float[Tensor, "m dz"]]:
    """`first` draws of the prior, then a pool of others for each later round of that many.

    Of a tensor every row is in one part alone: none is simulated twice.
    """
    if callable(prior):
        for count in (first, *(POOL * size for size in later)):
            draws = _rows(prior(count, generator))
            if len(draws) != count:
                raise KbrError(f"the prior was asked for {count} draws; got {len(draws)}.")
            yield draws
        return
    rows = _rows(prior)
    needed = first + LEAST * len(later) * max(later, default=0)
    if len(rows) < needed:
        raise KbrError(
            f"prior must hold at least {needed} draws for n = {first + sum(later)} simulations in "
            f"{1 + len(later)} round(s); got {len(rows)}. Pass more of them or a function that "
            "draws, or lower n, or set rounds=1."
        )
    yield rows[:first]
    if later:
        yield from rows[first:].tensor_split(len(later))


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
    size = or_one((values - centre).abs().amax(0))
    spread = size * (share * ((values - centre) / size).square()).sum(0).sqrt()
    return centre, torch.where(spread > 0, spread, size)
