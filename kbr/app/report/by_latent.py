"""Errors of a run by latent: size, offset, and whether each latent's own band holds them."""

import math
from dataclasses import dataclass

from torch import Tensor

from kbr.app.models.outcome import Outcome
from kbr.core.showing.scoring import explained
from kbr.core.uncertainty.regions import chi2_quantile
from kbr.core.units.scaling import Scaling

LEVEL = 0.9


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Over all trials and steps, in the unit of the latent.

    explained   share of its variance over the test steps; coverage, of its own 90 % band.
    """

    name: str
    rmse: float
    mae: float
    bias: float
    worst: float
    explained: float
    coverage: float | None


def latents_of(outcome: Outcome, scaling: Scaling | None = None) -> list[Latent]:
    """`scaling` tells which of the latents are angles; None: none is."""
    dz = outcome.mean.shape[-1]
    names = outcome.labels or tuple(f"z_{k + 1}" for k in range(dz))
    error = (outcome.mean - outcome.truth).double().reshape(-1, dz)
    square = error.square().mean(0)
    mean, truth = outcome.mean.double(), outcome.truth.double()
    shares = explained(mean, truth, scaling or Scaling.none(truth))
    return [
        Latent(
            name=names[k],
            rmse=math.sqrt(float(square[k])),
            mae=float(error[:, k].abs().mean()),
            bias=float(error[:, k].mean()),
            worst=float(error[:, k].abs().max()),
            explained=float(shares[k]),
            coverage=_covered(outcome, error[:, k], k),
        )
        for k in range(dz)
    ]


def _covered(outcome: Outcome, error: Tensor, k: int) -> float | None:
    if outcome.cov is None:
        return None
    variance = outcome.cov[..., k, k].double().reshape(-1)
    inside = error.square() <= chi2_quantile(LEVEL, 1) * variance
    return float(inside.double().mean())
