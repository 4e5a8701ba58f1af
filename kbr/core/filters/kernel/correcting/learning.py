"""The correction of a filter's means, learned from steps that the filter did not see."""

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.validation import data_outside, even_blocks, validation_block
from kbr.core.filters.kernel.correcting.correction import MeanCorrection, design, predicted_means
from kbr.core.filters.kernel.engines.large import is_large
from kbr.core.filters.kernel.engines.local import MEDIUM, Local
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.settings import AUTO, Settings
from kbr.core.filters.kernel.storing.storage import FittedData, together
from kbr.core.inputs import check_positive
from kbr.core.kernels import FEW_COORDINATES
from kbr.core.linalg import ridge_solve

Coefficients = Float[Tensor, "*b c dz"]
Early = dict[range, MeanCorrection]  # by the block that they were learned without
LEAST = 45  # training steps: of fewer, blocks and their filters are of a few steps


def with_correction(fitted: Fitted) -> tuple[Fitted, Early | None]:
    """The filter with its means corrected, as its settings say."""
    ridge, reason = fitted.settings.correcting, why_not(fitted)
    if ridge is None:
        return fitted, None
    if reason is None:
        correction, early = learn_correction(fitted, ridge=ridge)
        return fitted.changed(correction=correction), early
    if fitted.settings.correction != AUTO:
        raise KbrError(f"means cannot be corrected {reason}. Set correction to null (None).")
    return fitted, None


def why_not(fitted: Fitted) -> str | None:
    """What keeps a correction from being learned; None: nothing."""
    data = fitted.data
    if data.landmarks is not None or fitted.n > MEDIUM or is_large(fitted.n):
        return f"with more than {MEDIUM} training steps"
    if data.z.shape[-2] < LEAST:
        return f"with fewer than {LEAST} training steps"
    if data.controls:
        return "with control inputs"
    if data.sensors is not None:
        return "with sensors that may be absent"
    return "with engine=local" if isinstance(fitted.operators.update, Local) else None


def learn_correction(fitted: Fitted, *, ridge: float) -> tuple[MeanCorrection, Early]:
    """Of a fitted filter, from blocks of its training data filtered by the others.

    And of the filter of the rows before the validation block, for who measures there. Data sets get
    none where that one does not lower the error there. (The blocks' own cross-validated error would
    mislead: residuals of the other blocks come from operators that hold the block left out.)
    """
    check_positive(ridge, name="ridge")
    uses_x = fitted.data.x.shape[-1] <= FEW_COORDINATES
    validation = validation_block(fitted.n)
    each = [_learned(fitted.settings, one, validation, ridge, uses_x) for one in fitted.data.apart]
    batch = fitted.data.z.shape[:-2]
    after, before = (together(part, batch) for part in zip(*each, strict=True))
    return MeanCorrection(after, uses_x), {validation: MeanCorrection(before, uses_x)}


def _learned(
    settings: Settings, data: FittedData, validation: range, ridge: float, uses_x: bool
) -> tuple[Coefficients, Coefficients]:
    """Of all rows, and of those before the validation block; zeros where they do not help there."""
    early = _without(settings, data, validation)
    rows, missed = _missed(data, early, validation, uses_x=uses_x)
    before = _coefficients(settings, early.data, ridge, uses_x=uses_x)
    left = missed - rows @ before
    helps = (left.square().sum((-2, -1)) < missed.square().sum((-2, -1)))[..., None, None]
    return _coefficients(settings, data, ridge, uses_x=uses_x) * helps, before * helps


def correction_without(
    fitted: Fitted, block: range, early: Early | None = None
) -> MeanCorrection | None:
    """The filter's correction, learned from the rows outside the block; None where it has none.

    `early` are those that are known already.
    """
    if early is not None and block in early:
        return early[block]
    known, ridge = fitted.data.correction, fitted.settings.correcting
    if known is None or ridge is None:
        return None
    used = (known.coefficients != 0).any(-1, keepdim=True).any(-2, keepdim=True)
    if not bool(used.any()):
        return known
    rest = data_outside(fitted.data, block)
    coefficients = _coefficients(fitted.settings, rest, ridge, uses_x=known.uses_x)
    return MeanCorrection(coefficients * used, known.uses_x)


def _coefficients(
    settings: Settings, data: FittedData, ridge: float, *, uses_x: bool
) -> Coefficients:
    """The regression on all steps, each block filtered by operators of the others."""
    blocks = even_blocks(data.z.shape[-2])
    parts = [_missed(data, _without(settings, data, b), b, uses_x=uses_x) for b in blocks]
    rows, missed = (torch.cat(tensors, -2) for tensors in zip(*parts, strict=True))
    size = rows.square().mean(-2, keepdim=True).sqrt()  # columns are scaled to a mean square of one
    size = torch.where(size > 0, size, torch.ones_like(size))
    scaled = rows / size
    solved = ridge_solve(scaled.mT @ scaled, scaled.mT @ missed, ridge=ridge, name="ridge")
    return solved / size.mT


def _without(settings: Settings, data: FittedData, block: range) -> Fitted:
    return Fitted.build(settings, data_outside(data, block))


def _missed(
    data: FittedData, rest: Fitted, block: range, *, uses_x: bool
) -> tuple[Float[Tensor, "*b t c"], Float[Tensor, "*b t dz"]]:
    """Rows of the design and what means miss on a block, filtered by operators of the rest."""
    designs, missed = [], []
    for x, z in data.inside(block):
        result = rest.filtered(x)
        there = result.evidence.unsqueeze(-1)
        before = predicted_means(rest.operators, result)
        designs.append(design(result.mean, before, x, uses_x=uses_x) * there)
        missed.append((z - result.mean) * there)
    return torch.cat(designs, -2), torch.cat(missed, -2)
