"""A linear correction of a filter's means, learned from steps that the filter did not see."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult
from kbr.core.filters.kernel.cross_fitting import even_blocks, pieces_inside, rows_outside
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storage import Stored
from kbr.core.filters.kernel.tuning import validation_start
from kbr.core.inputs import check_positive
from kbr.core.kernels import FEW_COORDINATES
from kbr.core.linalg import ridge_solve

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
        self,
        mean: Float[Tensor, "*s dz"],
        predicted: Float[Tensor, "*s dz"],
        x: Float[Tensor, "*s dx"],
        evidence: Bool[Tensor, "*s"],
    ) -> Float[Tensor, "*s dz"]:
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


def fit_readout(filt: KernelBayesFilter, *, ridge: float = RIDGE) -> Readout:
    """The readout of a fitted filter, from blocks of its training data filtered by the others.

    Data sets get none where one learned from the steps before the validation block alone does not
    lower the error there. (The blocks' own cross-validated error would mislead: residuals of the
    other blocks come from operators that hold the block that is left out.)
    """
    check_positive(ridge, name="ridge")
    stored = filt._get().stored
    n = stored.z.shape[-2]
    validation = range(validation_start(n), n)
    uses_x = stored.x.shape[-1] <= FEW_COORDINATES
    early = _without(filt, validation)
    rows, missed = _filtered(early, stored, validation, uses_x=uses_x)
    left = missed - rows @ _coefficients(early, ridge, uses_x=uses_x)
    helps = left.square().sum((-2, -1)) < missed.square().sum((-2, -1))
    return Readout(_coefficients(filt, ridge, uses_x=uses_x) * helps[..., None, None], uses_x)


def readout_without(
    filt: KernelBayesFilter, block: range, readout: Readout, *, ridge: float
) -> Readout:
    """The same readout, learned from the rows outside the block; none where it has none."""
    made = _coefficients(_without(filt, block), ridge, uses_x=readout.uses_x)
    used = (readout.coefficients != 0).any(-1, keepdim=True).any(-2, keepdim=True)
    return Readout(made * used, readout.uses_x)


def _coefficients(
    filt: KernelBayesFilter, ridge: float, *, uses_x: bool
) -> Float[Tensor, "*b c dz"]:
    """The regression on all of the filter's steps, each block filtered by the others' operators."""
    stored = filt._get().stored
    blocks = even_blocks(stored.z.shape[-2])
    parts = [_filtered(_without(filt, block), stored, block, uses_x=uses_x) for block in blocks]
    return _regress(parts, ridge)


def _without(filt: KernelBayesFilter, block: range) -> KernelBayesFilter:
    """A filter with the same values, fitted to the rows outside the block, x flat."""
    other = replace(filt)
    other._fitted = other._finish(rows_outside(filt._get().stored, block))
    return other


def _filtered(
    filt: KernelBayesFilter, stored: Stored, block: range, *, uses_x: bool
) -> tuple[Float[Tensor, "*b t c"], Float[Tensor, "*b t dz"]]:
    """Rows of the design and what the means miss, on a block of the stored rows."""
    designs, missed = [], []
    for start, stop in pieces_inside(stored.lengths, block):
        x, z = stored.x[..., start:stop, :], stored.z[..., start:stop, :]
        result = filt._filtered(x.double())
        there = result.evidence.unsqueeze(-1)
        before = predicted_means(filt.operators, result)
        made = design(result.mean, before, x if uses_x else x[..., :0])
        designs.append(made * there)
        missed.append((z - result.mean) * there)
    return torch.cat(designs, -2), torch.cat(missed, -2)


def _regress(parts: list[tuple[Tensor, Tensor]], ridge: float) -> Float[Tensor, "*b c dz"]:
    """Ridge regression with columns scaled to a mean square of one."""
    rows, missed = (torch.cat(tensors, -2) for tensors in zip(*parts, strict=True))
    size = rows.square().mean(-2, keepdim=True).sqrt()
    size = torch.where(size > 0, size, torch.ones_like(size))
    scaled = rows / size
    solved = ridge_solve(scaled.mT @ scaled, scaled.mT @ missed, ridge=ridge, name="ridge")
    return solved / size.mT
