"""A linear correction of a filter's means: what its gain gets wrong, on average."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult
from kbr.core.filters.kernel.run import Ahead
from kbr.core.filters.kernel.step import Operators

Mean = Float[Tensor, "*s dz"]


@dataclass(frozen=True, eq=False)
class MeanCorrection:
    """Adds to a filter's mean what a ridge regression says that it misses.

    Math: z_t ~ m_t + B' (m_t, p_t, x_t, 1),  m_t the filtered mean, p_t the predicted one, before
          x_t was seen. x_t is left out where it has many coordinates (images).
    A kernel filter's gain, how far x_t moves the prediction, is shrunk by its ridges: the
    regression on the prediction and the observation corrects it.
    """

    coefficients: Float[Tensor, "*b c dz"]
    uses_x: bool

    def member(self, index: tuple[int, ...]) -> "MeanCorrection":
        """That of one of several data sets."""
        return MeanCorrection(self.coefficients[index], self.uses_x)

    def shift(self, mean: Mean, predicted: Mean, x: Tensor, evidence: Bool[Tensor, "*s"]) -> Mean:
        """What is added to the means; where there was no evidence the prediction stands."""
        rows = design(mean, predicted, x, uses_x=self.uses_x)
        batch = self.coefficients.shape[:-2]
        moved = rows.reshape(*batch, -1, rows.shape[-1]) @ self.coefficients
        return torch.where(evidence.unsqueeze(-1), moved.reshape(mean.shape), 0.0)


def design(mean: Tensor, predicted: Tensor, x: Tensor, *, uses_x: bool) -> Tensor:
    """Rows (m_t, p_t, x_t, 1)."""
    one = torch.ones_like(mean[..., :1])
    if not uses_x:
        return torch.cat([mean, predicted, one], -1)
    x = x.to(mean).nan_to_num(0.0, 0.0, 0.0)  # a missing x: these rows are not used
    return torch.cat([mean, predicted, x, one], -1)


def predicted_means(operators: Operators, result: KernelFilterResult) -> Float[Tensor, "*s t dz"]:
    """Means of the predictions before each step of a filtered sequence."""
    assert result.states is not None
    dz, batch = operators.points.shape[-1], operators.points.shape[:-2]
    states, ahead = result.states[..., :-1, :], Ahead.of(operators)
    moments, _ = ahead(states.reshape(*batch, -1, states.shape[-1]))
    later = operators.readout.mean(moments).reshape(*states.shape[:-1], dz)
    first = operators.readout.mean(ahead.start.moments)
    shape = (*batch, *(1,) * (later.ndim - len(batch) - 1), dz)
    return torch.cat([first.reshape(shape).expand(*later.shape[:-2], 1, dz), later], -2)


def moved(
    correction: MeanCorrection | None,
    operators: Operators,
    result: KernelFilterResult,
    x: Tensor,
    smoothed: KernelFilterResult | None = None,
) -> Float[Tensor, "*s t dz"]:
    """The means of a filtered sequence with its correction; x are its observations.

    Those of the `smoothed` one move by the same: what lacks is how far an observation moves them.
    """
    mean = result.mean if smoothed is None else smoothed.mean
    if correction is None:
        return mean
    flat = x.reshape(*mean.shape[:-1], -1)
    before = predicted_means(operators, result)
    return mean + correction.shift(result.mean, before, flat, result.evidence)
