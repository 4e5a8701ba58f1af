"""Calibration: covariances and credible regions that hold the share of truths they promise."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.uncertainty import Ellipsoid, chi2_quantile, squared_mahalanobis, widened

BLENDS = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
LEVEL = 0.9


@dataclass(frozen=True, eq=False)
class Calibration:
    """What held-out errors say about a filter's covariances.

    Math: B_t = (1 - a) C_t + a V,  V the held-out errors' mean outer product; C_t alone may be flat
          (weights of either sign) and then no factor mends it. The region of level p is
          {z : |z - m|^2 in B_t^-1 <= s_p}, s_p the ceil((k + 1) p)-th smallest of k held-out
          distances; the calibrated covariance is B_t s_.9 / chi2_.9.
    Ref:  Vovk, Gammerman and Shafer 2005 (conformal prediction); a by profile likelihood.
    """

    blend: Float[Tensor, "*b"]
    errors: Float[Tensor, "*b dz dz"]
    scores: Float[Tensor, "*b k"]

    @property
    def factor(self) -> Float[Tensor, "*b"]:
        """What the blended covariance is multiplied by."""
        return self.radius2(LEVEL) / chi2_quantile(LEVEL, self.errors.shape[-1])

    def radius2(self, level: float) -> Float[Tensor, "*b"]:
        """The squared radius of the region; the largest held-out one where k is too small."""
        if not 0 < level < 1:
            raise KbrError(f"level must lie strictly between 0 and 1; got {level}. Try level=0.9.")
        k = self.scores.shape[-1]
        return self.scores[..., min(math.ceil((k + 1) * level), k) - 1]

    def blended(self, cov: Float[Tensor, "*s dz dz"]) -> Float[Tensor, "*s dz dz"]:
        a, errors = self._wide(self.blend, cov, 2), self._wide(self.errors, cov, 0)
        return (1 - a) * cov + a * errors

    def cov(self, cov: Float[Tensor, "*s dz dz"]) -> Float[Tensor, "*s dz dz"]:
        """The calibrated covariance: its Gaussian 90 % region holds 90 % of held-out truths."""
        return self._wide(self.factor, cov, 2) * self.blended(cov)

    def region(
        self, mean: Float[Tensor, "*s dz"], cov: Float[Tensor, "*s dz dz"], *, level: float = LEVEL
    ) -> Ellipsoid:
        """Credible sets of any level."""
        radius2 = self._wide(self.radius2(level), cov, 2)[..., 0, 0]
        return Ellipsoid(mean, self.blended(cov), radius2)

    def _wide(self, value: Tensor, cov: Tensor, trailing: int) -> Tensor:
        """A value for each data set, repeated for its sequences and steps."""
        batch = self.blend.ndim
        extra = cov.ndim - 2 - batch
        shape = (*value.shape[:batch], *(1,) * extra, *value.shape[batch:], *(1,) * trailing)
        return value.reshape(shape).to(cov)


def calibrate(
    mean: Float[Tensor, "*b t dz"], cov: Float[Tensor, "*b t dz dz"], z: Float[Tensor, "*b t dz"]
) -> Calibration:
    """Fit the calibration to beliefs at held-out steps and the truth there."""
    error = z - mean
    errors = widened(error.mT @ error / error.shape[-2])
    dz = z.shape[-1]
    fits, likelihoods = [], []
    for a in BLENDS:
        mixed = (1 - a) * cov + a * errors.unsqueeze(-3)
        distance = squared_mahalanobis(mean, mixed, z)
        spread = distance.mean(-1).clamp_min(torch.finfo(z.dtype).tiny).log()
        volume = torch.linalg.slogdet(widened(mixed)).logabsdet.mean(-1)
        fits.append(distance.sort(-1).values)
        likelihoods.append(-(volume + dz * spread))
    best = torch.stack(likelihoods).nan_to_num(nan=-torch.inf).argmax(0)
    blend = z.new_tensor(BLENDS)[best]
    index = best[None, ..., None].expand(1, *fits[0].shape)
    return Calibration(blend, errors, torch.stack(fits).gather(0, index).squeeze(0))
