"""What every filter returns: beliefs about the latent at each step, as named, frozen tensors."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class FilterResult:
    """Moments of the filtering distribution p(z_t | x_1..t) at every step.

    `evidence` is False at steps whose observation was missing or told nothing usable: there the
    belief is the prediction. `effective_sample_size` is None for filters without weights.
    """

    mean: Float[Tensor, "*s t dz"]
    cov: Float[Tensor, "*s t dz dz"]
    evidence: Bool[Tensor, "*s t"]
    effective_sample_size: Float[Tensor, "*s t"] | None = None


def mean_squared_error(
    mean: Float[Tensor, "*s t dz"], truth: Float[Tensor, "*s t dz"]
) -> Float[Tensor, "*s"]:
    """Squared Euclidean distance, summed over coordinates, averaged over time."""
    return (mean - truth).square().sum(-1).mean(-1)
