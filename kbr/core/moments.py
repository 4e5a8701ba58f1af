"""What the first moments of a prior tell, where there are too few points for its density.

In many dimensions a few hundred points do not show the ratio pi/p, but they do show the mean of the
prior and the size of its latents. Two ratios are made of these: `ShrunkenMean` takes the noise out
of the mean of another one, and `moment_ratio` carries errors from the training pairs to the prior.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.features import Features
from kbr.core.linalg import or_one, ridge_solve
from kbr.core.ratios import KuLSIF, Latents, Ratio, Values, kulsif
from kbr.core.rules import normalize_ratio

RIDGE = 1e-6  # of the covariance of z in units of its spread: for coordinates that repeat others
MOMENT_ETA = 0.01


def mean_share(
    points: Float[Tensor, "*b m d"], weights: Float[Tensor, "*b m"]
) -> Float[Tensor, "*b"]:
    """How much of the mean of a weighted sample is more than noise, from 0 to 1.

    Math: s = max(0, 1 - v / |mu|^2),  mu = sum_j a_j z_j,
          v = sum_k a_k^2 sum_j a_j |z_j - mu|^2, which is the variance that mu has as an estimate.
    Ref:  James and Stein 1961; Muandet et al. 2014 for means of features.
    Weights are nonnegative and sum to one. |mu|^2 - v estimates the squared length of the true mean
    without bias: s is near one where the mean is far from the origin.
    """
    mean = (weights.unsqueeze(-2) @ points).squeeze(-2)
    variance = (weights * (points - mean.unsqueeze(-2)).square().sum(-1)).sum(-1)
    noise = weights.square().sum(-1) * variance
    length = mean.square().sum(-1)
    return torch.where(length > noise, 1 - noise / or_one(length), 0.0)


def spread(points: Latents) -> Float[Tensor, "*b 1 d"]:
    """The standard deviation of every coordinate; one where it is constant."""
    return or_one((points - points.mean(-2, keepdim=True)).square().mean(-2, keepdim=True).sqrt())


@dataclass(frozen=True, kw_only=True, eq=False)
class ShrunkenMean:
    """Another ratio, tilted: the mean of z under it is drawn to the origin as far as it is noise.

    Math: r'_i = r_i (1 + b'(z_i - zbar)),  S b = (s - 1) zbar, with zbar and S the mean and
          covariance of z under max(r, 0), and s the `mean_share` of the prior; so that the mean of
          z under r' is s zbar.
    Ref:  Deville and Saerndal 1992: weights calibrated to known means, linear case.
    A ridge posterior is as far off as the mean that it shrinks to, and in many dimensions that is
    much. The tilt has a standard deviation of at most one. A prior whose mean is far from the
    origin, in units of its error, leaves the ratio as it is.
    """

    ratio: Ratio = field(default_factory=KuLSIF)

    def __call__(self, features: Features, points: Latents, prior: Embedding) -> Values:
        r = normalize_ratio(self.ratio(features, points, prior).to(torch.float64))
        unit = spread(points)
        z = (points / unit).to(torch.float64)
        proper = prior.nonnegative()
        there = (proper.points.to(points) / unit).to(torch.float64)
        share = mean_share(there, proper.weights.to(there).expand(there.shape[:-1]))
        w = (r / r.shape[-1]).unsqueeze(-1)
        mean = w.mT @ z
        centred = z - mean
        gap = ((share[..., None, None] - 1) * mean).mT
        tilt = ridge_solve(centred.mT @ (w * centred), gap, ridge=RIDGE, name="the covariance of z")
        slope = centred @ tilt
        size = (w * slope.square()).sum((-2, -1), keepdim=True).sqrt()
        return r * (1 + slope / size.clamp_min(1)).squeeze(-1)


def moment_ratio(points: Latents, prior: Embedding) -> Values:
    """Signed weights on the training latents that have the prior's mean of z and of |z|^2.

    Math: KuLSIF on phi(z) = (1, u, q): u is z centred and in units of its spread, q is |u|^2
          centred and in units of its spread.
    The weighted mean of any error e_i is then what a regression of e on phi(z) expects of it under
    the prior; a squared error of a linear estimate is such a function of z, but for its directions.
    Weights average 1 / (1 + eta) whatever the prior.
    """
    unit, centre = spread(points), points.mean(-2, keepdim=True)
    u = ((points - centre) / unit).to(torch.float64)
    square = u.square().sum(-1, keepdim=True)
    level, width = square.mean(-2, keepdim=True), spread(square)

    def phi(scaled: Tensor) -> Tensor:
        q = (scaled.square().sum(-1, keepdim=True) - level) / width
        return torch.cat([torch.ones_like(q), scaled, q], -1)

    proper = prior.nonnegative()
    there = phi(((proper.points.to(points) - centre) / unit).to(torch.float64))
    weights = proper.weights.to(there).expand(there.shape[:-1]).unsqueeze(-2)
    beta = kulsif(phi(u), (weights @ there).squeeze(-2), eta=MOMENT_ETA)
    return (phi(u) @ beta.unsqueeze(-1)).squeeze(-1)
