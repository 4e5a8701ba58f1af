"""How far off a sensor has been of late: what observations say against beliefs, averaged over rows.

New errors average out, and what remains is alike in all recordings of one kind. In a recording that
differs from training, with another load, place or season, a sensor is off in one direction for
long. A belief follows it, and its points do not spread; but the average tells.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.filters.moving.lasting import MOST
from kbr.core.linalg import or_one
from kbr.core.uncertainty.calibration import LEVEL, LONGEST

KEPT = 1 - 1 / LONGEST  # of the average from row to row

Errors = Float[Tensor, "*s c"]  # of a row, over their standard deviations; zero where absent
Average = Float[Tensor, "*s c"]


def one_row_on(average: Average, errors: Errors) -> Average:
    """Math: a <- k a + (1 - k) e."""
    return KEPT * average + (1 - KEPT) * errors.clamp(-MOST, MOST)


def averages(errors: Float[Tensor, "*s t c"]) -> Float[Tensor, "*s t c"]:
    """After each row of sequences, from their start, where it is zero."""
    average, found = torch.zeros_like(errors[..., 0, :]), []
    for row in errors.unbind(-2):
        average = one_row_on(average, row)
        found.append(average)
    return torch.stack(found, -2)


def usual_of(several: Float[Tensor, "n c"]) -> Float[Tensor, "c"]:
    """Sizes of each column within which LEVEL of these averages, of held-out rows, have lain."""
    size = or_one(several.square().mean(0).sqrt())
    return size * or_one(_size(several, size).quantile(LEVEL))


def surprise(average: Average, usual: Float[Tensor, "c"]) -> Float[Tensor, "*s"]:
    """What covariances are multiplied by: held-out rows say nothing of errors beyond the usual.

    There they are taken to grow in proportion, as a linear filter's do with a sensor's offset.
    Math: max(1, mean over columns of (a / usual)^2).
    """
    return _size(average, usual).square().clamp_min(1.0)


def _size(average: Average, unit: Float[Tensor, "c"]) -> Float[Tensor, "*s"]:
    return (average / unit).square().mean(-1).sqrt()
