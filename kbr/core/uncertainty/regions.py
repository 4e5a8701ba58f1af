"""How sure a belief is, and whether it may be: regions, scores against the truth, calibration.

Functions take moments (mean [*s dz], cov [*s dz dz]) or weights on points; `z` is the truth.
Smaller scores are better. PIT values of a calibrated filter are uniform.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.inputs import check_level
from kbr.core.kernels import Gaussian, Kernel
from kbr.core.linalg import or_one

Mean = Float[Tensor, "*s dz"]  # and the truth
Cov = Float[Tensor, "*s dz dz"]
Number = Float[Tensor, "*s"]
NARROW = 1e-9  # share of a coordinate's variance added to it: no region is flat


@dataclass(frozen=True, eq=False)
class Ellipsoid:
    """Credible sets {z : (z - centre)' shape^-1 (z - centre) <= radius2}."""

    centre: Mean
    shape: Cov
    radius2: Float[Tensor, "*r"]

    def contains(self, z: Mean) -> Bool[Tensor, "*s"]:
        return self.distance(z) <= self.radius2

    def distance(self, z: Mean) -> Number:
        """Squared distances from the centres, in the shapes' own units."""
        return squared_mahalanobis(self.centre, self.shape, z)

    @property
    def log_volume(self) -> Number:
        """Math: log V_d + (d log radius2 + log det shape) / 2, V_d the unit ball's volume."""
        d = self.centre.shape[-1]
        unit = d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)
        spread = torch.linalg.slogdet(widened(self.shape)).logabsdet
        volume: Tensor = unit + (d * self.radius2.log() + spread) / 2
        return volume


def credible_region(mean: Mean, cov: Cov, *, level: float) -> Ellipsoid:
    """The ellipsoid that holds `level` of a Gaussian with these moments."""
    return Ellipsoid(mean, cov, mean.new_tensor(chi2_quantile(level, mean.shape[-1])))


def squared_mahalanobis(mean: Mean, cov: Cov, z: Mean) -> Number:
    """Math: (z - m)' C^-1 (z - m), C widened by a rounding's worth where it is singular.

    Every coordinate is divided by its own spread first: units may be far apart.
    """
    wide = widened(cov)
    sd = wide.diagonal(dim1=-2, dim2=-1).sqrt()
    error = ((z - mean) / sd).unsqueeze(-1)
    solved: Tensor = torch.linalg.solve(wide / sd.unsqueeze(-1) / sd.unsqueeze(-2), error)
    return (error * solved).sum((-2, -1))


def widened(cov: Cov) -> Cov:
    """The covariance with a little of its own variance added to every coordinate."""
    variance = cov.diagonal(dim1=-2, dim2=-1).clamp_min(0)
    return cov + torch.diag_embed(NARROW * variance + 1e3 * torch.finfo(cov.dtype).tiny)


def coverage(
    mean: Float[Tensor, "*s t dz"],
    cov: Float[Tensor, "*s t dz dz"],
    z: Float[Tensor, "*s t dz"],
    *,
    level: float = 0.9,
) -> Number:
    """Share of the steps whose truth lies in the region of this level."""
    return credible_region(mean, cov, level=level).contains(z).to(mean).mean(-1)


def gaussian_crps(mean: Mean, cov: Cov, z: Mean) -> Number:
    """Continuous ranked probability score of Gaussian marginals, summed over coordinates.

    Math: s (t (2 F(t) - 1) + 2 f(t) - pi^-1/2),  t = (z - m) / s, F and f standard normal.
    Ref:  Gneiting and Raftery 2007, equation 21 (negated).
    """
    sd = widened(cov).diagonal(dim1=-2, dim2=-1).sqrt()
    t = (z - mean) / sd
    density = torch.exp(-0.5 * t.square()) / math.sqrt(2 * math.pi)
    inside = t * torch.erf(t / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)
    return (sd * inside).sum(-1)


def gaussian_log_likelihood(mean: Mean, cov: Cov, z: Mean) -> Number:
    """Of the truth, summed over coordinates; here larger is better.

    Math: -((z - m)' C^-1 (z - m) + log det C + d log 2 pi) / 2.
    """
    spread = torch.linalg.slogdet(widened(cov)).logabsdet
    constant = mean.shape[-1] * math.log(2 * math.pi)
    value: Tensor = -0.5 * (squared_mahalanobis(mean, cov, z) + spread + constant)
    return value


def crps(belief: Embedding, z: Mean) -> Number:
    """CRPS of the weighted points' marginals, summed over coordinates; weights as a distribution.

    Math: sum_i w_i |z_i - z| - 1/2 sum_ij w_i w_j |z_i - z_j|, each coordinate by itself.
    """
    proper = belief.nonnegative()
    distance = (proper.points - z.unsqueeze(-2)).abs()
    near = (proper.weights.unsqueeze(-1) * distance).sum(-2)
    points, order = proper.points.expand(distance.shape).sort(-2)
    w = proper.weights.unsqueeze(-1).expand(distance.shape).gather(-2, order)
    below = w.cumsum(-2) - w / 2  # mass below each point: sum_ij w_i w_j |.| in sorted order
    return (near - (w * points * (2 * below - 1)).sum(-2)).sum(-1)


def energy_score(belief: Embedding, z: Mean) -> Number:
    """Math: sum_i w_i |z_i - z| - 1/2 sum_ij w_i w_j |z_i - z_j|, Euclidean distances.

    Ref: Gneiting and Raftery 2007, section 4.2.
    """
    proper = belief.nonnegative()
    w = proper.weights
    size = or_one(torch.maximum(proper.points.abs().amax(), z.abs().amax()))
    points, z = proper.points / size, z / size  # squares of what is huge or tiny: in range
    near: Tensor = (w * torch.linalg.vector_norm(points - z.unsqueeze(-2), dim=-1)).sum(-1)
    apart = torch.cdist(points, points)
    score: Tensor = near - 0.5 * (w.unsqueeze(-2) @ apart @ w.unsqueeze(-1))[..., 0, 0]
    return size * score


def gaussian_energy_score(mean: Mean, cov: Cov, z: Mean, *, n: int = 256) -> Number:
    """Energy score of a Gaussian from n antithetic draws, the same ones at every call."""
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(widened(cov))
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(n // 2, mean.shape[-1], dtype=torch.float64, generator=generator).to(mean)
    draws = torch.cat([half, -half]) @ root.mT
    shifted = draws + (mean - z).unsqueeze(-2)
    near: Tensor = torch.linalg.vector_norm(shifted, dim=-1).mean(-1)
    apart = torch.linalg.vector_norm(draws - draws.roll(n // 4, -2), dim=-1).mean(-1)
    score: Tensor = near - 0.5 * apart
    return score


def gaussian_pit(mean: Mean, cov: Cov, z: Mean) -> Mean:
    """Probability integral transform of every coordinate under its Gaussian marginal."""
    sd = widened(cov).diagonal(dim1=-2, dim2=-1).sqrt()
    return 0.5 * (1 + torch.erf((z - mean) / (sd * math.sqrt(2))))


def pit(belief: Embedding, z: Mean) -> Mean:
    """Math: sum_i w_i [z_i < z] + 1/2 sum_i w_i [z_i = z], each coordinate by itself."""
    proper = belief.nonnegative()
    gap = proper.points - z.unsqueeze(-2)
    below = (gap < 0).to(gap) + 0.5 * (gap == 0).to(gap)
    return (proper.weights.unsqueeze(-1) * below).sum(-2)


def marginal_density(
    belief: Embedding, grid: Float[Tensor, "g"], *, coordinate: int, kernel: Kernel | None = None
) -> Float[Tensor, "*s g"]:
    """Density of one coordinate on a grid: the weighted points smoothed by the kernel, area one.

    Without a kernel, a Gaussian one with a fifth of the points' median distance.
    """
    proper = belief.nonnegative()
    points = proper.points[..., coordinate].unsqueeze(-1)
    fitted = (Gaussian(scale=0.2) if kernel is None else kernel).fit(points)
    where = grid.to(points).unsqueeze(-1).expand(*points.shape[:-2], -1, 1)
    raw = (fitted(where, points) @ proper.weights.unsqueeze(-1)).squeeze(-1).clamp_min(0)
    area = torch.trapezoid(raw, grid.to(raw)).unsqueeze(-1)
    return raw / or_one(area)


def modes(density: Float[Tensor, "g"], grid: Float[Tensor, "g"]) -> Float[Tensor, "m"]:
    """Where a density on a grid peaks, the highest first."""
    padded = torch.nn.functional.pad(density, (1, 1), value=-torch.inf)
    peak = (density > padded[:-2]) & (density >= padded[2:]) & (density > 0)
    order = density[peak].argsort(descending=True)
    return grid[peak][order]


@lru_cache
def chi2_quantile(level: float, dof: int) -> float:
    """Quantile of the chi-square distribution, by bisection of the incomplete gamma function."""
    check_level(level)
    half = torch.tensor(dof / 2, dtype=torch.float64, device="cpu")
    low, high = 0.0, dof + 20 * math.sqrt(2.0 * dof) + 200.0
    for _ in range(100):
        middle = (low + high) / 2
        below = float(torch.special.gammainc(half, half.new_tensor(middle / 2)))
        low, high = (middle, high) if below < level else (low, middle)
    return (low + high) / 2
