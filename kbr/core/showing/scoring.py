"""Answers against the truth: errors, coverage and likelihood in one small value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import as_tensor
from kbr.core.linalg import or_one
from kbr.core.uncertainty.regions import credible_region, gaussian_log_likelihood
from kbr.core.units.columns import is_table
from kbr.core.units.outside import Outside
from kbr.core.units.scaling import Scaling
from kbr.core.units.training_range import truths_outside
from kbr.core.units.units import Units

LEVEL = 0.9

Means = Float[Tensor, "*s dz"]
Rows = Float[Tensor, "n dz"]
Trials = Float[Tensor, "*s n dz"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors of a filter's answers, in the units of z; angles count by the nearest turn.

    mse              squared error, summed over the latents and averaged over the steps;
    mae              absolute error, the same way;
    rmse             root mean square error of each latent, by its name;
    coverage         share of the steps whose truth lies in the 90 % region;
    log_likelihood   mean log density of the truth, under a Gaussian with the answers' moments;
    steps            how many had a truth;
    outside          which latents left the range of training; None where that is not known.
    """

    mse: float
    mae: float
    rmse: Mapping[str, float]
    coverage: float
    log_likelihood: float
    steps: int
    outside: Outside | None = None

    def __repr__(self) -> str:
        said = f"\n  {self.outside}" if self.outside else ""
        return (
            f"Score(mse {self.mse:.4g}, mae {self.mae:.4g}, 90 % region holds "
            f"{100 * self.coverage:.1f} %, log-likelihood {self.log_likelihood:.4g} a step; "
            f"{self.steps} steps){said}"
        )


def score_of(mean: Means, cov: Float[Tensor, "*s dz dz"], truth: Any, units: Units) -> Score:
    """The score of moments; steps whose truth is missing (NaN) do not count."""
    z = truth_like(truth, mean, units)
    there, outside = known_steps(z), truths_outside(units, z)
    mean, cov, z = mean[there].double(), cov[there].double(), z[there].double()
    error, density = z - mean, gaussian_log_likelihood(mean, cov, z)
    inside = credible_region(mean, cov, level=LEVEL).contains(z)
    roots = error.square().mean(0).sqrt().tolist()
    return Score(
        mse=float(error.square().sum(-1).mean()),
        mae=float(error.abs().sum(-1).mean()),
        rmse=dict(zip(units.latent_names(z.shape[-1]), roots, strict=True)),
        coverage=float(inside.double().mean()),
        log_likelihood=float(density.mean()),
        steps=len(z),
        outside=outside,
    )


def truth_like(truth: Any, mean: Means, units: Units) -> Means:
    """Truths in the shape of the answers, angles by the turn nearest to them.

    An array, or a table whose columns are found by the names of z.
    """
    values = units.latents(truth) if is_table(truth) and units.z_names else truth
    z = as_tensor(values, name="z").to(mean)
    z = z.unsqueeze(-1) if z.shape == mean.shape[:-1] else z
    if z.shape != mean.shape:
        raise KbrError(f"the truth z must have shape {list(mean.shape)}; got {list(z.shape)}.")
    return units.z.nearest(z, mean)


def known_steps(z: Means) -> Bool[Tensor, "*s"]:
    """Which truths are there; none at all is an error."""
    there = z.isfinite().all(-1)
    if not bool(there.any()):
        raise KbrError("no step has a truth z to compare with: all are missing (NaN).")
    return there


def r_squared(mean: Rows, z: Rows, scaling: Scaling) -> float:
    """Share of the variance that the means explain, averaged over the latents."""
    return float(explained(mean, z, scaling).mean())


def explained(mean: Trials, z: Trials, scaling: Scaling) -> Float[Tensor, " dz"]:
    """Share of the variance of each latent that the means explain, over all trials.

    Math: 1 - sum_t (z_t - m_t)^2 / sum_t (z_t - c)^2, c the mean of z in its trial; of an angle its
          circular mean, and differences by the nearest turn.
    A latent that is constant has no variance to explain: 1 where it is met exactly, else 0.
    """
    centre = z.mean(-2, keepdim=True)
    for k, mark in enumerate(scaling.circular):
        if mark:
            turns = z[..., k] * (2 * math.pi / scaling.turn)
            angle = torch.atan2(turns.sin().mean(-1), turns.cos().mean(-1))
            centre[..., 0, k] = angle * scaling.turn / (2 * math.pi)
    dz, centre = z.shape[-1], centre.expand(z.shape)
    errors = (scaling.nearest(z, mean) - mean).square().reshape(-1, dz).sum(0)
    total = (scaling.nearest(z, centre) - centre).square().reshape(-1, dz).sum(0)
    flat = torch.where(errors > 0, 0.0, 1.0).to(errors)
    return torch.where(total > 0, 1 - errors / or_one(total), flat)
