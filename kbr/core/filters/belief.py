"""What the kernel Bayes filter believes: an embedding on the training latents, frozen."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.embedding import Embedding, positive_part
from kbr.core.filters.result import FilterResult


@dataclass(frozen=True, eq=False)
class Belief:
    """Belief after an observation (or before any): weights on the training latents.

    `state` are the embedding's coordinates in the latent features: all the next prediction needs.
    `evidence` is False where the belief is a prediction. `steps` counts the observations.
    """

    points: Float[Tensor, "*b n dz"]
    weights: Float[Tensor, "*e n"]
    state: Float[Tensor, "*e p"]
    evidence: Bool[Tensor, "*e"]
    steps: int = 0

    @property
    def embedding(self) -> Embedding:
        """The belief as a weighted embedding: expectations, samples, densities."""
        extra = self.weights.ndim - 1 - (self.points.ndim - 2)
        shape = (*self.points.shape[:-2], *(1,) * extra, *self.points.shape[-2:])
        return Embedding(self.points.reshape(shape), self.weights)

    @property
    def mean(self) -> Float[Tensor, "*e dz"]:
        return self.embedding.mean

    @property
    def cov(self) -> Float[Tensor, "*e dz dz"]:
        return self.embedding.cov

    @property
    def effective_sample_size(self) -> Float[Tensor, "*e"]:
        return self.embedding.effective_sample_size


def moments_table(z: Float[Tensor, "*b n dz"]) -> Float[Tensor, "*b n c"]:
    """Columns 1, z and z z': one product with the weights gives mass, mean and second moment."""
    outer = (z.unsqueeze(-1) * z.unsqueeze(-2)).flatten(-2)
    return torch.cat([torch.ones_like(z[..., :1]), z, outer], -1)


@dataclass(frozen=True)
class KernelFilterResult(FilterResult):
    """Beliefs at every step, with the embeddings' coordinates that smoothing starts from."""

    states: Float[Tensor, "*s t p"] | None = None


def result_from_moments(
    moments: Float[Tensor, "*s t c"],
    evidence: Bool[Tensor, "*s t"],
    norms: Float[Tensor, "*s t"],
    states: Float[Tensor, "*s t p"],
    dz: int,
) -> KernelFilterResult:
    """Mean as it is, covariance with the weights scaled to sum to one, positive semi-definite.

    `norms` are those of the weights, |w|: the effective sample size is (sum w / |w|)^2.
    """
    mass = moments[..., :1]
    sizes = (moments[..., 0] / norms.clamp_min(torch.finfo(norms.dtype).tiny)).square()
    mass = torch.where(mass > 0, mass, torch.ones_like(mass))
    mean = moments[..., 1 : 1 + dz]
    second = moments[..., 1 + dz :].reshape(*mean.shape, dz) / mass.unsqueeze(-1)
    centre = mean / mass
    cov = positive_part(second - centre.unsqueeze(-1) * centre.unsqueeze(-2))
    return KernelFilterResult(mean, cov, evidence, sizes, states)
