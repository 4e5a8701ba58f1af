"""A linear correction of a filter's means, learned from steps that the filter did not see."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult
from kbr.core.filters.kernel.choosing.validation import even_blocks, validation_block
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.step import Operators
from kbr.core.inputs import check_positive
from kbr.core.kernels import FEW_COORDINATES
from kbr.core.linalg import ridge_solve

Mean = Float[Tensor, "*s dz"]
RIDGE = 1.0  # in steps: columns are scaled to a mean square of one


@dataclass(frozen=True, eq=False)
class Readout:
    """Adds to a filter's mean what a ridge regression says that it misses.

    Math: z_t ~ m_t + B' (m_t, p_t, x_t, 1),  m_t the filtered mean, p_t the predicted one, before
          x_t was seen. x_t is left out where it has many coordinates (images).
    A kernel filter's gain, how far x_t moves the prediction, is shrunk by its ridges: the
    regression on the prediction and the observation corrects it.
    """

    coefficients: Float[Tensor, "*b c dz"]
    uses_x: bool

    def __call__(
        self, mean: Mean, predicted: Mean, x: Tensor, evidence: Bool[Tensor, "*s"]
    ) -> Mean:
        """Corrected means; where there was no evidence the prediction stands as it is."""
        rows = design(mean, predicted, x if self.uses_x else x[..., :0])
        batch = self.coefficients.shape[:-2]
        moved = rows.reshape(*batch, -1, rows.shape[-1]) @ self.coefficients
        return torch.where(evidence.unsqueeze(-1), mean + moved.reshape(mean.shape), mean)


def design(mean: Tensor, predicted: Tensor, x: Tensor) -> Tensor:
    """Rows (m_t, p_t, x_t, 1)."""
    x = x.to(mean).nan_to_num(0.0, 0.0, 0.0)  # a missing x: these rows are not used
    return torch.cat([mean, predicted, x, torch.ones_like(mean[..., :1])], -1)


def predicted_means(operators: Operators, result: KernelFilterResult) -> Float[Tensor, "*s t dz"]:
    """Means of the predictions before each step of a filtered sequence."""
    assert result.states is not None
    dz, batch = operators.points.shape[-1], operators.points.shape[:-2]
    states = result.states[..., :-1, :]
    ahead = operators.predict(states.reshape(*batch, -1, states.shape[-1])).moments
    later = operators.readout.mean(ahead).reshape(*states.shape[:-1], dz)
    first = operators.readout.mean(operators.start(1).moments)
    shape = (*batch, *(1,) * (later.ndim - len(batch) - 1), dz)
    return torch.cat([first.reshape(shape).expand(*later.shape[:-2], 1, dz), later], -2)


def corrected(
    readout: Readout, operators: Operators, result: KernelFilterResult, x: Tensor
) -> Float[Tensor, "*s t dz"]:
    """The means of a filtered sequence with the readout's correction; x are its observations."""
    flat = x.reshape(*result.mean.shape[:-1], -1)
    return readout(result.mean, predicted_means(operators, result), flat, result.evidence)


def fit_readout(fitted: Fitted, *, ridge: float = RIDGE) -> Readout:
    """The readout of a fitted filter, from blocks of its training data filtered by the others.

    Data sets get none where one learned from the steps before the validation block alone does not
    lower the error there. (The blocks' own cross-validated error would mislead: residuals of the
    other blocks come from operators that hold the block that is left out.)
    """
    check_positive(ridge, name="ridge")
    uses_x = fitted.data.x.shape[-1] <= FEW_COORDINATES
    validation = validation_block(fitted.n)
    early = fitted.without(validation)
    rows, missed = _missed(fitted, early, validation, uses_x=uses_x)
    left = missed - rows @ _coefficients(early, ridge, uses_x=uses_x)
    helps = left.square().sum((-2, -1)) < missed.square().sum((-2, -1))
    return Readout(_coefficients(fitted, ridge, uses_x=uses_x) * helps[..., None, None], uses_x)


def readout_without(fitted: Fitted, block: range, readout: Readout, *, ridge: float) -> Readout:
    """The same readout, learned from the rows outside the block; none where it has none."""
    coefficients = _coefficients(fitted.without(block), ridge, uses_x=readout.uses_x)
    used = (readout.coefficients != 0).any(-1, keepdim=True).any(-2, keepdim=True)
    return Readout(coefficients * used, readout.uses_x)


def _coefficients(fitted: Fitted, ridge: float, *, uses_x: bool) -> Float[Tensor, "*b c dz"]:
    """The regression on all of the filter's steps, each block filtered by the others' operators."""
    blocks = even_blocks(fitted.n)
    parts = [_missed(fitted, fitted.without(block), block, uses_x=uses_x) for block in blocks]
    rows, missed = (torch.cat(tensors, -2) for tensors in zip(*parts, strict=True))
    size = rows.square().mean(-2, keepdim=True).sqrt()  # columns are scaled to a mean square of one
    size = torch.where(size > 0, size, torch.ones_like(size))
    scaled = rows / size
    solved = ridge_solve(scaled.mT @ scaled, scaled.mT @ missed, ridge=ridge, name="ridge")
    return solved / size.mT


def _missed(
    fitted: Fitted, rest: Fitted, block: range, *, uses_x: bool
) -> tuple[Float[Tensor, "*b t c"], Float[Tensor, "*b t dz"]]:
    """Rows of the design and what means miss on a block, filtered by operators of the rest."""
    designs, missed, data = [], [], fitted.data
    for x, z in data.inside(block):
        result = rest.filtered(x)
        there = result.evidence.unsqueeze(-1)
        before = predicted_means(rest.operators, result)
        designs.append(design(result.mean, before, x if uses_x else x[..., :0]) * there)
        missed.append((z - result.mean) * there)
    return torch.cat(designs, -2), torch.cat(missed, -2)
