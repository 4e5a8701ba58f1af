"""Likelihood-free inference: the posterior of a simulator's parameters given what was observed.

Only a prior and a simulator z -> x are needed (approximate Bayesian computation). One run:

1. Simulate from the prior; regress z on x among the simulations nearest the observation,
   importance-weighted, ridge and bandwidth by leave-one-out.
2. Move every simulated z to the observation, m(x) + e_i, by its residual e_i = z_i - m(x_i). A
   second regression, of log e^2 on x, scales the residuals to their size at x, and the weights of
   a third, of their products on x, weigh them: their law may depend on x.
3. Spend the rest of the budget where this posterior is, widened, and correct by the importance
   ratio. Draws there are draws of the prior, kept with a probability proportional to a function
   g(z): the ratio is known without the prior's density.

Ref: Beaumont, Zhang and Balding 2002 and Blum and François 2010 (regression adjustment); Veach and
     Guibas 1995 (the ratio of a mixture of proposals); Xu et al. 2022 (importance-weighted rule).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.features import as_feature_map
from kbr.core.inputs import ArrayLike, as_tensor, check_finite, check_level, check_sizes
from kbr.core.kernels import Gaussian, Kernel
from kbr.core.proposals import Sampler, centre_and_spread, prior_draws, propose
from kbr.core.ratios import KuLSIF
from kbr.core.regression import KernelRegression, kernel_regression
from kbr.core.rules import normalize_ratio

Simulator = Callable[[Tensor], ArrayLike]
Summary = Callable[[Tensor], Tensor]

ONE_X = "x must have one simulation for each of the {n} rows of z"
ONE_SUMMARY = "summary must give one row of statistics for each of the {n} simulations"
ONE_SIMULATED = "the simulator must give one x for each of the {n} rows of z"
MINIMUM = 10  # simulations, below which nothing can be left out
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)  # wide bandwidths with small ridges are polynomials
MEAN_LAMS = tuple(10.0**k for k in range(-9, 1))
SHAPE_LAMS = tuple(10.0**k for k in range(-3, 4))
NEAR = 0.5  # share of the simulations, the nearest to the observation, that is used
SLACK = 1.01  # the window ends a little beyond the last of them
FLOOR = 1e-3  # of the mean squared residual, added before its logarithm
LARGEST_CHANGE = 4.0  # of a residual's log variance between two simulations
FIRST = 0.3  # share of the budget that is simulated from the prior


@dataclass(frozen=True, eq=False, repr=False)
class SimulationPosterior:
    """The posterior as weighted samples, and the simulations it comes from.

    `embedding` has weights that are not negative and sum to one; `z`, `x` and `ratio` are the
    simulations and their importance ratios prior / proposal, averaging about one.
    """

    embedding: Embedding
    z: Float[Tensor, "n dz"]
    x: Float[Tensor, "n dx"]
    ratio: Float[Tensor, "n"]

    def __repr__(self) -> str:
        sd = self.cov.diagonal().sqrt().tolist()
        mean, spread = (", ".join(f"{v:.4g}" for v in part) for part in (self.mean.tolist(), sd))
        return (
            f"SimulationPosterior(mean [{mean}], sd [{spread}]; {len(self.z)} simulations, "
            f"effective sample size {float(self.effective_sample_size):.0f})"
        )

    @property
    def mean(self) -> Float[Tensor, "dz"]:
        return self.embedding.mean

    @property
    def cov(self) -> Float[Tensor, "dz dz"]:
        return self.embedding.cov

    @property
    def effective_sample_size(self) -> Float[Tensor, ""]:
        return self.embedding.effective_sample_size

    def interval(self, level: float = 0.9) -> Float[Tensor, "dz 2"]:
        """Central credible interval of every coordinate: quantiles of the weighted samples."""
        check_level(level)
        points, order = self.embedding.points.sort(0)
        below = self.embedding.weights[order].cumsum(0)
        ends = below.new_tensor([(1 - level) / 2, (1 + level) / 2]).expand(points.shape[1], 2)
        at = torch.searchsorted(below.mT.contiguous(), ends.contiguous())
        return points.mT.gather(1, at.clamp_max(len(points) - 1))

    def sample(self, n: int, *, seed: int = 0) -> Float[Tensor, "m dz"]:
        """n equally weighted draws."""
        check_sizes(n=n)
        generator = torch.Generator().manual_seed(seed)
        rows = torch.multinomial(
            self.embedding.weights.cpu(), n, replacement=True, generator=generator
        )
        return self.embedding.points[rows.to(self.embedding.points.device)]


def posterior_from_simulations(
    z: ArrayLike,
    x: ArrayLike,
    observed: ArrayLike,
    *,
    prior: Embedding | None = None,
    ratio: ArrayLike | None = None,
    summary: Summary | None = None,
    kernel: Kernel | None = None,
) -> SimulationPosterior:
    """The posterior at `observed` from finished simulations z [n dz], x [n ...].

    The z are draws of the prior, unless `ratio` gives prior / proposal at each of them, or `prior`
    the prior itself as an embedding: then KuLSIF estimates the ratio. `summary` maps x [n ...] to
    statistics [n k]; without one, x is used as it is. Both are standardised. Simulations that are
    not finite are left out: they are not what was observed.

    Math: points m(x) + e_i - sum_j w_j e_j,  e_i = (z_i - m(x_i)) exp((v(x) - v(x_i)) / 2), m and v
          the regressions of z and of the residuals' log squares on s(x), w the weights at s(x) of
          the regression of e e'.
    """
    latents = as_tensor(z, name="z").to(torch.float64)
    latents = latents.unsqueeze(-1) if latents.ndim == 1 else latents
    if latents.ndim != 2 or latents.shape[1] == 0:
        raise KbrError(f"z must have shape [n, dz] (or [n]); got {list(latents.shape)}.")
    data = _rows(x, len(latents), name="x", must=ONE_X)
    seen = as_tensor(observed, name="observed").to(torch.float64)
    if seen.shape != data.shape[1:]:
        raise KbrError(
            f"observed must have the shape of one simulation, {list(data.shape[1:])}; got "
            f"{list(seen.shape)}."
        )
    if summary is not None:
        data, seen = (
            _rows(summary(rows), len(rows), name="the summary", must=ONE_SUMMARY)
            for rows in (data, seen.unsqueeze(0))
        )
    data, seen = data.flatten(1), seen.flatten()
    good = data.isfinite().all(-1) & latents.isfinite().all(-1)
    check_finite(seen, name="observed")
    if int(good.sum()) < MINIMUM:
        raise KbrError(
            f"inference needs at least {MINIMUM} finite simulations; got {int(good.sum())} of "
            f"{len(good)}. Raise n, or look at what the simulator returns."
        )
    r = _ratio(latents, ratio, prior)[good]
    latents, data = latents[good], data[good]
    embedding = _posterior(latents, data, seen, r, Gaussian() if kernel is None else kernel)
    return SimulationPosterior(embedding, latents, data, r)


def posterior_from_simulator(
    simulator: Simulator,
    observed: ArrayLike,
    prior: Sampler | ArrayLike,
    *,
    n: int = 1000,
    rounds: int = 2,
    summary: Summary | None = None,
    kernel: Kernel | None = None,
    seed: int = 0,
) -> SimulationPosterior:
    """The posterior at `observed` from n simulations in all.

    `prior` draws z [m dz] when called with (m, generator), or is a tensor of draws: n of them for
    one round, for more rounds five times as many as they simulate; none is simulated twice.
    `simulator` maps z [m dz] to x [m ...]; its randomness is its own. The first of `rounds`
    simulates from the prior, each further one around the posterior of those before.

    Math: round k proposes prior(z) g_k(z) / Z_k,  g_k = exp(-|z - m_k|^2 in (4 C_k)^-1 / 2), so the
          ratio of all rounds together is n / (n_1 + sum_k n_k g_k(z) / Z_k), at most n / n_1.
    """
    if n < MINIMUM or rounds < 1:
        raise KbrError(f"n must be at least {MINIMUM} and rounds 1; got n={n}, rounds={rounds}.")
    generator = torch.Generator().manual_seed(seed)
    first = n if rounds == 1 else max(int(FIRST * n), MINIMUM)
    each = (n - first) // max(rounds - 1, 1)
    sizes = [each] * (rounds - 2) + [n - first - each * (rounds - 2)] if rounds > 1 else []
    pools = prior_draws(prior, generator, first, sizes)

    def simulated(z: Tensor) -> Tensor:
        return _rows(simulator(z), len(z), name="the simulator's x", must=ONE_SIMULATED)

    z = next(pools)
    x = simulated(z)
    tilts: list[tuple[int, Callable[[Tensor], Tensor]]] = []

    def posterior() -> SimulationPosterior:
        over_prior = first + sum(
            (size * tilt(z) for size, tilt in tilts), torch.zeros_like(z[:, 0])
        )
        return posterior_from_simulations(
            z, x, observed, ratio=len(z) / over_prior, summary=summary, kernel=kernel
        )

    for size, pool in zip(sizes, pools, strict=True):
        fresh, tilt = propose(posterior().embedding, pool, size, generator)
        tilts.append((size, tilt))
        z, x = torch.cat([z, fresh]), torch.cat([x, simulated(fresh)])
    return posterior()


def _posterior(z: Tensor, x: Tensor, seen: Tensor, r: Tensor, kernel: Kernel) -> Embedding:
    """Weighted samples of the posterior, in the units of z."""
    centre, spread = centre_and_spread(x, r)
    x, seen = (x - centre) / spread, (seen - centre) / spread
    middle, unit = centre_and_spread(z, r)

    local = r * _window(x, seen)
    used = local > 0
    x, local = x[used], local[used]

    def regression(target: Tensor, lams: Sequence[float]) -> KernelRegression:
        return kernel_regression(kernel, x, target, local, scales=SCALES, lams=lams)

    mean = regression(((z - middle) / unit)[used], MEAN_LAMS)
    errors = mean.residuals(power=0.5)
    small = FLOOR * errors.square().mean(0) + torch.finfo(errors.dtype).tiny
    sizes = regression((errors.square() + small).log(), SHAPE_LAMS)
    change = sizes.predict(seen) - (sizes.target - sizes.residuals(power=0.0))
    errors = errors * (0.5 * change.clamp(-LARGEST_CHANGE, LARGEST_CHANGE)).exp()
    i, j = torch.triu_indices(z.shape[1], z.shape[1], device=z.device)
    products = errors[:, i] * errors[:, j]
    shape = regression(products / centre_and_spread(products, local)[1], SHAPE_LAMS)
    weights = shape.weights(seen).clamp_min(0)
    weights = weights / weights.sum()  # before clipping they sum to one: some are positive
    moved = mean.predict(seen) + errors - weights @ errors
    return Embedding(middle + unit * moved, weights)


def _window(x: Tensor, seen: Tensor) -> Tensor:
    """One minus the squared distance from the observation, zero outside the nearest simulations.

    Any function of x may multiply the ratio: it leaves the law of z given x as it is.
    """
    distance: Tensor = torch.linalg.vector_norm(x - seen, dim=-1)
    reach = distance.kthvalue(max(int(NEAR * len(x)), MINIMUM)).values
    window = 1 - (distance / (SLACK * reach).clamp_min(torch.finfo(x.dtype).tiny)).square()
    return window.clamp_min(0)


def _ratio(z: Tensor, ratio: ArrayLike | None, prior: Embedding | None) -> Tensor:
    """prior / proposal at the simulations, positive part, averaging one."""
    if ratio is not None and prior is not None:
        raise KbrError("pass either ratio or prior, not both: the prior is there to estimate it.")
    if ratio is not None:
        values = as_tensor(ratio, name="ratio").to(z)
        if values.shape != z.shape[:1]:
            raise KbrError(
                f"ratio must hold one value for each of the {len(z)} simulations; got shape "
                f"{tuple(values.shape)}."
            )
        check_finite(values, name="ratio")
        return normalize_ratio(values)
    if prior is None:
        return z.new_ones(len(z))
    check_finite(z, name="z")
    centre, unit = centre_and_spread(z, z.new_ones(len(z)))
    if prior.points.ndim != 2 or prior.points.shape[1] != z.shape[1]:
        raise KbrError(
            f"the prior needs points of shape [m, {z.shape[1]}], like z; got "
            f"{list(prior.points.shape)}."
        )
    rows = (z - centre) / unit
    there = Embedding((prior.points.to(z) - centre) / unit, prior.weights.to(z))
    return normalize_ratio(KuLSIF()(as_feature_map(Gaussian()).fit(rows), rows, there))


def _rows(values: ArrayLike, n: int, *, name: str, must: str) -> Tensor:
    """A row for each of n simulations, in float64; `must` says so where there is not."""
    rows = as_tensor(values, name=name).to(torch.float64)
    if rows.ndim < 1 or len(rows) != n or rows[:1].numel() == 0:
        raise KbrError(f"{must.format(n=n)}; got shape {list(rows.shape)}.")
    return rows
