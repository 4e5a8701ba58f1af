"""The bootstrap particle filter, for many sequences at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.classical.known_model import KnownModelFilter
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.result import FilterResult
from kbr.core.inputs import ArrayLike


@dataclass(frozen=True, kw_only=True, eq=False)
class ParticleFilter(KnownModelFilter):
    """Sequential importance resampling with the transition as proposal.

    Math: z_t^i ~ p(. | z_t-1^i),  log w_t^i = log w_t-1^i + log p(x_t | z_t^i) - const;
          resampled (systematically) where 1 / sum_i w_i^2 < resample_threshold n_particles.
    Ref:  Gordon et al. 1993; Doucet & Johansen 2009; a baseline of Xu et al. 2022, section 5.2.

    Every call of `filter` starts a fresh generator from `seed`, so results repeat.
    """

    model: StateSpaceModel
    n_particles: int = 1000
    resample_threshold: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_particles < 1:
            raise KbrError(
                f"n_particles must be at least 1; got {self.n_particles}. Set n_particles."
            )
        if not 0 <= self.resample_threshold <= 1:
            raise KbrError(
                "resample_threshold is a fraction of n_particles between 0 (never) and 1 (always); "
                f"got {self.resample_threshold}. Set resample_threshold."
            )

    @torch.no_grad()
    def filter(self, x: ArrayLike) -> FilterResult:
        """Beliefs about z_t given x_1..t, for x [*s T ...], in x's dtype and on its device.

        Where x_t is missing (NaN), or every particle has likelihood zero (a log-likelihood that is
        not finite), the belief is the prediction and `evidence` is False.
        """
        steps, observed = self.model.observations(x)
        dtype = torch.promote_types(steps.dtype, torch.float32)
        model = self.model.to(device=steps.device, dtype=dtype)
        generator = Generator(steps.device).manual_seed(self.seed)
        time = observed.ndim - 1
        lead, count = tuple(observed.shape[:-1]), self.n_particles
        z = model.draw_initial((*lead, count), generator)
        log_w = z.new_zeros((*lead, count), dtype=torch.float64)
        weights, history = log_w.softmax(-1), []
        for t, x_t in enumerate(steps.unbind(time)):
            if t > 0:
                ancestors = systematic_resample(weights, generator)
                degenerate = _sample_size(weights) < self.resample_threshold * count
                if bool(degenerate.any()):
                    stay = torch.arange(count, device=z.device).expand_as(ancestors)
                    chosen = torch.where(degenerate.unsqueeze(-1), ancestors, stay)
                    z = z.gather(-2, chosen.unsqueeze(-1).expand_as(z))
                    log_w = torch.where(degenerate.unsqueeze(-1), 0.0, log_w)
                z = model.draw_transition(z, generator)
            log_p = model.log_density(x_t.to(dtype), z).double()
            # A zero-weight particle stays at zero: -inf survives both the sum and the softmax.
            log_p = torch.where(torch.isfinite(log_p), log_p, -torch.inf)
            updated = log_w + log_p
            seen = observed[..., t] & (updated.amax(-1) > -torch.inf)
            log_w = torch.where(seen.unsqueeze(-1), updated, log_w).log_softmax(-1)
            weights = log_w.exp()
            history.append((*_moments(z, weights.to(dtype)), seen, _sample_size(weights)))
        mean, cov, evidence, size = zip(*history, strict=True)
        return FilterResult(
            mean=torch.stack(mean, dim=time).to(steps.dtype),
            cov=torch.stack(cov, dim=time).to(steps.dtype),
            evidence=torch.stack(evidence, dim=time),
            effective_sample_size=torch.stack(size, dim=time).to(steps.dtype),
        )


def systematic_resample(
    weights: Float[Tensor, "*s n"], generator: Generator
) -> Int[Tensor, "*s n"]:
    """Ancestors drawn with one uniform number per sequence.

    Math: ancestor_i = min{j : w_1 + .. + w_j > (i - 1 + U) / n},  U ~ U[0, 1).
    Ref:  Kitagawa 1996; Doucet & Johansen 2009, section 3.4.

    A particle of weight w has floor(n w) or ceil(n w) children; one of weight zero has none.
    """
    draw = torch.rand(
        (*weights.shape[:-1], 1), generator=generator, device=weights.device, dtype=weights.dtype
    )
    return ladder_ancestors(weights, draw, weights.shape[-1])


def ladder_ancestors(
    weights: Float[Tensor, "*s n"], draw: Tensor, count: int
) -> Int[Tensor, "*s _"]:
    """So many ancestors by the same rule, from a number U between 0 and 1, one or one a sequence.

    There may be more or fewer of them than particles.
    """
    ladder = (torch.arange(count, device=weights.device) + draw) / count
    ladder = ladder.expand(*weights.shape[:-1], count).contiguous()
    total = weights.cumsum(-1)
    below_one = 1 - torch.finfo(weights.dtype).eps
    return torch.searchsorted(total / total[..., -1:], ladder.clamp_max(below_one), right=True)


def _sample_size(weights: Float[Tensor, "*s n"]) -> Float[Tensor, "*s"]:
    """Effective sample size, 1 / sum_i w_i^2."""
    return 1 / weights.square().sum(-1)


def _moments(
    z: Float[Tensor, "*s n dz"], weights: Float[Tensor, "*s n"]
) -> tuple[Float[Tensor, "*s dz"], Float[Tensor, "*s dz dz"]]:
    mean = (weights.unsqueeze(-2) @ z).squeeze(-2)
    centred = z - mean.unsqueeze(-2)
    return mean, centred.mT @ (weights.unsqueeze(-1) * centred)
