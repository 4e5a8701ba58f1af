"""What every filter returns: beliefs about the latent at each step, as named, frozen tensors."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Means = Float[Tensor, "*s t dz"]


@dataclass(frozen=True, eq=False, repr=False)
class FilterResult:
    """Moments of the filtering distribution p(z_t | x_1..t) at every step.

    cov        calibrated where the filter has something to calibrate with; then `raw_cov` is the
               covariance as the algorithm defines it, else None;
    evidence   False at steps whose observation was missing or told nothing usable: there the belief
               is the prediction. `since` counts the steps since the last evidence;
    stretch    what adaptive regions have multiplied `cov` by;
    effective_sample_size   None for filters without weights.
    """

    mean: Means
    cov: Float[Tensor, "*s t dz dz"]
    evidence: Bool[Tensor, "*s t"]
    effective_sample_size: Float[Tensor, "*s t"] | None = None
    raw_cov: Float[Tensor, "*s t dz dz"] | None = None
    since: Tensor | None = None
    stretch: Float[Tensor, "*s t"] | None = None

    def __repr__(self) -> str:
        *several, steps, dz = self.mean.shape
        lead = "".join(f"{size} x " for size in several)
        evidence = int(self.evidence.sum())
        last = self.mean.reshape(-1, dz)[-1].tolist()
        answer = ", ".join(f"{value:.4g}" for value in last[:4])
        return (
            f"{type(self).__name__}({lead}{steps} steps of {dz} latent(s), {evidence} with "
            f"evidence; fields mean, cov, evidence, ...; last mean [{answer}"
            f"{', ...' if dz > 4 else ''}])"
        )

    @property
    def sd(self) -> Float[Tensor, "*s t dz"]:
        """Standard deviations: the roots of the diagonal of `cov`."""
        return self.cov.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()


def mean_squared_error(mean: Means, truth: Means) -> Float[Tensor, "*s"]:
    """Squared Euclidean distance, summed over coordinates, averaged over time."""
    return (mean - truth).square().sum(-1).mean(-1)


AXES = {  # of the steps
    "mean": -2,
    "cov": -3,
    "evidence": -1,
    "effective_sample_size": -1,
    "raw_cov": -3,
    "since": -1,
    "stretch": -1,
}


def joined(parts: list[FilterResult], order: Tensor | None = None) -> FilterResult:
    """Results of consecutive pieces as one, the steps in another order where one is given."""
    if len(parts) == 1 and order is None:
        return parts[0]
    fields = {}
    for name, axis in AXES.items():
        values = [getattr(part, name) for part in parts]
        if all(value is not None for value in values):
            whole = torch.cat(values, axis)
            fields[name] = (
                whole if order is None else whole.index_select(axis, order.to(whole.device))
            )
    return FilterResult(**fields)
