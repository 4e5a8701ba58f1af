"""Fit without a block of the training sequence, filter that block, and score it.

Tuning, refining, the correction of means and calibration all measure errors this way.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.building import TOLERANCE, Builder
from kbr.core.filters.kernel.engine import ActiveSet, Compressed, LowRank, Update
from kbr.core.filters.kernel.run import run_filter
from kbr.core.filters.kernel.search import Row, RowOf
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storage import FittedData
from kbr.core.filters.result import mean_squared_error

VALIDATION_STEPS = 200
MINIMUM_STEPS = 6
FOLDS = 3

Pair = tuple[Float[Tensor, "*b _ dx"], Float[Tensor, "*b _ dz"]]


def validation_start(n: int) -> int:
    """First row of the validation block: the last 200 steps, a third where there are under 600."""
    if n < MINIMUM_STEPS:
        raise KbrError(
            f"tuning needs at least {MINIMUM_STEPS} training steps to hold some out; got {n}. "
            "Raise n_train, or set the bandwidths, eta and lam so that nothing is tuned."
        )
    return n - (VALIDATION_STEPS if n >= 3 * VALIDATION_STEPS else n // 3)


def validation_block(n: int) -> range:
    """The end of the training sequence, which settings are chosen for."""
    return range(validation_start(n), n)


def even_blocks(n: int, count: int = FOLDS) -> list[range]:
    """Rows 0 .. n - 1 in so many blocks."""
    return [range(k * n // count, (k + 1) * n // count) for k in range(count)]


def outside(rows: Tensor, block: range, dim: int = -2) -> Tensor:
    """The rows that are not in the block; no copy where it is the last."""
    n = rows.shape[dim]
    early, late = rows.narrow(dim, 0, block.start), rows.narrow(dim, block.stop, n - block.stop)
    return early if block.stop == n else torch.cat([early, late], dim)


def lengths_outside(lengths: Sequence[int], block: range) -> list[int]:
    """Sequence lengths of the rows that are not in the block: what it cuts falls in two."""
    kept, start = [], 0
    for length in lengths:
        stop = start + length
        parts = (min(stop, block.start) - start, stop - max(start, block.stop))
        kept += [part for part in parts if part > 0]
        start = stop
    return kept


def pieces_inside(lengths: Sequence[int], block: range) -> list[tuple[int, int]]:
    """(start, stop) rows of the sequences' parts inside the block."""
    pieces, start = [], 0
    for length in lengths:
        stop = start + length
        if start < block.stop and stop > block.start:
            pieces.append((max(start, block.start), min(stop, block.stop)))
        start = stop
    return pieces


def split_lengths(lengths: Sequence[int], cut: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Sequence lengths before row `cut`, and the (start, stop) rows of the pieces after it."""
    block = range(cut, sum(lengths))
    return lengths_outside(lengths, block), pieces_inside(lengths, block)


def pairs_inside(x: Tensor, z: Tensor, lengths: Sequence[int], block: range) -> list[Pair]:
    """Observations and latents of the sequences' parts inside the block."""
    return [(x[..., a:b, :].double(), z[..., a:b, :]) for a, b in pieces_inside(lengths, block)]


def data_outside(data: FittedData, block: range) -> FittedData:
    """The training data without the rows of a block, observations flat."""
    return FittedData(
        outside(data.x, block),
        outside(data.z, block),
        lengths_outside(data.lengths, block),
        (data.x.shape[-1],),
        data.choice,
    )


def squared_errors(
    operators: Operators, lam: Float[Tensor, "*b l"], held_out: Iterable[Pair]
) -> Float[Tensor, "*b l"]:
    """Squared errors of the filter with every lam, summed over the steps held out."""
    total = torch.zeros_like(lam)
    for x, truth in held_out:
        query = operators.update.observe(x).unsqueeze(-3)
        mean = run_filter(operators, query.expand(*lam.shape, *query.shape[-2:]), lam).mean
        error = mean_squared_error(mean, truth.unsqueeze(-3).expand_as(mean))
        total = total + truth.shape[-2] * error
    return total


def errors_on(
    builder: Builder,
    x: Float[Tensor, "*b n dx"],
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    blocks: Sequence[range],
) -> RowOf:
    """Mean squared errors over all steps of the blocks, each filtered by operators of the rest."""
    flat_x, flat_z = x.reshape(-1, *x.shape[-2:]), z.reshape(-1, *z.shape[-2:])
    builders = [builder.measured(outside(flat_x, b), outside(flat_z, b)) for b in blocks]
    steps = sum(len(block) for block in blocks)

    def row_of(members: Int[Tensor, "m"], scale: float) -> Row:
        everyone = len(members) == len(flat_x)  # then no copy
        some_x, some_z = (rows if everyone else rows[members] for rows in (flat_x, flat_z))
        rows = [
            block_errors(
                measured.of_members(members),
                (outside(some_x, block), outside(some_z, block)),
                lengths_outside(lengths, block),
                pairs_inside(some_x, some_z, lengths, block),
                scale,
            )
            for measured, block in zip(builders, blocks, strict=True)
        ]
        return lambda lam: torch.stack([row(lam) for row in rows]).sum(0) / steps

    return row_of


def block_errors(
    builder: Builder,
    fitted: Pair,
    lengths: Sequence[int],
    held_out: Sequence[Pair],
    scale: float,
) -> Row:
    """Squared errors, summed over the steps held out, of filters fitted to the other steps.

    A function of lam [*b l] that gives errors [*b w l] for every width of the settings. The factors
    of the latents belong to the scale, those of the observations to scale and width: they are made
    once, whatever lams are asked for.
    """
    x, z = fitted
    latents, ridges = builder.ridged_latents(z, scale, lengths)
    known: dict[float, tuple[float, Operators]] = {}

    def operators(width: float, least: float) -> Operators:
        """Those of this width, made again where a lam is less than any before."""
        if width not in known or least < known[width][0]:
            update = builder.update(x, scale * width, TOLERANCE, lam=least, rough=True)
            known[width] = (least, builder.operators(update, latents, z, lengths, **ridges))
        return known[width][1]

    def errors(lam: Float[Tensor, "*b l"]) -> Float[Tensor, "*b w l"]:
        widths, least = builder.settings.tried_widths, float(lam.min())
        each = [squared_errors(operators(width, least), lam, held_out) for width in widths]
        return torch.stack(each, -2)

    return errors


def leave_out(builder: Builder, data: FittedData, own: Update) -> Callable[[range], Operators]:
    """Operators of all steps but a block's, with the filter's own hyper-parameters.

    Features are computed once for all rows; a block's rows are then left out of them. They are as
    rough as those that settings are chosen with, as errors need fewer digits than answers; the
    filter's `own` update is kept where the kernel has full rank.
    """
    choice, x = data.choice, data.x.double()
    builder = builder.measured(x, data.z)
    latents = builder.latents(data.z, choice.scale_z, TOLERANCE)

    def rough(rows: Tensor) -> Update:
        lam = float(choice.lam.min())
        return builder.update(rows, choice.scale_x, TOLERANCE, lam=lam, rough=True)

    is_named = isinstance(builder.settings.engine, str)
    update = rough(x) if is_named and not isinstance(own, ActiveSet) else own

    def operators(block: range) -> Operators:
        return builder.operators(
            _outside(update, block) if is_named else rough(outside(x, block)),
            replace(latents, train=outside(latents.train, block)),
            outside(data.z, block),
            lengths_outside(data.lengths, block),
            eta=choice.eta,
            lam_transition=choice.lam_transition,
        )

    return operators


def _outside(update: Update, block: range) -> Update:
    """The update of the training rows outside the block."""
    if isinstance(update, ActiveSet):
        gram = outside(outside(update.gram, block), block, -1)
        return replace(update, points=outside(update.points, block), gram=gram)
    assert isinstance(update, LowRank)
    features = replace(update.features, train=outside(update.features.train, block))
    if isinstance(update, Compressed):
        return replace(update, features=features, mixing=outside(update.mixing, block))
    return replace(update, features=features)
