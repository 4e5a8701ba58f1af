"""Fit without a block of the training sequence, filter that block, and score it.

Tuning, refining, the correction of means and calibration all measure errors this way.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Features
from kbr.core.filters.kernel.building import TOLERANCE, Builder, Scale
from kbr.core.filters.kernel.choosing.climb import Cell, Score
from kbr.core.filters.kernel.choosing.search import Row, RowOf
from kbr.core.filters.kernel.dynamics.lift import Lift
from kbr.core.filters.kernel.engine import ActiveSet, Compressed, LowRank, Update
from kbr.core.filters.kernel.engines.local import LEAST, MEDIUM, Local
from kbr.core.filters.kernel.run import run_filter
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storing.storage import APART, FittedData
from kbr.core.filters.result import mean_squared_error
from kbr.core.filters.sequences import (
    Pair,
    Sequences,
    excerpts,
    held_sequences,
    lengths_outside,
    outside,
    pieces_inside,
    split,
)
from kbr.core.units.sensors import Sensors

VALIDATION_STEPS = 200
USED = 0.98  # share of the observations that must be evidence
TUNED_STEPS = 720  # of whole sequences, in few and long pieces: a track is lost late
MINIMUM_STEPS = 6
FOLDS = 3
LEAST_ERROR = 1e-300  # of a block that is told exactly


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


def held_out_block(lengths: Sequence[int]) -> range:
    """What many rows are tuned and calibrated on: whole sequences at the end, if there are enough.

    A piece of a sequence is too easy where the rest of it is known: neighbouring rows are alike.
    """
    n, count = sum(lengths), held_sequences(lengths)
    rows = sum(lengths[len(lengths) - count :])
    return range(n - rows, n) if n > MEDIUM and 0 < rows <= n // 3 else validation_block(n)


def even_blocks(n: int, count: int = FOLDS) -> list[range]:
    """Rows 0 .. n - 1 in so many blocks."""
    return [range(k * n // count, (k + 1) * n // count) for k in range(count)]


def blocks_over(n: int) -> list[range]:
    """What settings are chosen on: three blocks as long as the validation block, which is the last.

    On one alone, choices from few rows follow its noise. Of more rows than three blocks the last
    one serves: more of them were not worth their time.
    """
    last = validation_block(n)
    if n > FOLDS * VALIDATION_STEPS:
        return [last]
    starts = (round(k * last.start / (FOLDS - 1)) for k in range(FOLDS - 1))
    return [*(range(start, start + len(last)) for start in starts), last]


def split_lengths(lengths: Sequence[int], cut: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Sequence lengths before row `cut`, and the (start, stop) rows of the pieces after it."""
    block = range(cut, sum(lengths))
    return lengths_outside(lengths, block), pieces_inside(lengths, block)


def data_outside(data: FittedData, block: range) -> FittedData:
    """The training data without the rows of a block, observations flat."""
    rest = data.outside(block)
    return FittedData(**vars(rest), shape=(rest.observed.shape[-1],), choice=data.choice)


def squared_errors(
    operators: Operators, lam: Float[Tensor, "*b l"], held_out: Iterable[Pair], rates: int = 0
) -> Float[Tensor, "*b l"]:
    """Squared errors of the filter with every lam, summed over the steps held out.

    So many `rates` at the end of the latents do not count.
    """
    total = torch.zeros_like(lam)
    for x, truth in held_out:
        query = operators.observe(x).unsqueeze(-3)
        mean = run_filter(operators, query.expand(*lam.shape, *query.shape[-2:]), lam).mean
        exact, kept = truth.unsqueeze(-3).expand_as(mean), truth.shape[-1] - rates
        error = mean_squared_error(mean[..., :kept], exact[..., :kept])
        total = total + truth.shape[-2] * error
    return total


def errors_on(builder: Builder, data: Sequences, blocks: Sequence[range]) -> RowOf:
    """Mean squared errors of blocks, each filtered by operators of the rest: their geometric mean.

    So each block has a say, also beside one in which all settings err more.
    """
    if data.sensors is not None:
        return _errors_of_one(builder, data, blocks)
    x, z = (rows.reshape(-1, *rows.shape[-2:]) for rows in (data.x, data.z))
    whole = replace(data.outside(range(0)), x=x, z=z)
    builders = [builder.measured(whole.outside(block)) for block in blocks]

    def row_of(members: Int[Tensor, "m"], scale: Scale, scale_u: Scale = 1.0) -> Row:
        if APART < z.shape[-2] <= MEDIUM and len(members) > 1:
            each = [row_of(one, _of(scale, k), _of(scale_u, k)) for k, one in _numbered(members)]
            return lambda lam: torch.cat([row(lam[k : k + 1]) for k, row in enumerate(each)])
        every = len(members) == len(x)  # then no copy
        some = whole if every else replace(whole, x=x[members], z=z[members])
        rows = []
        for measured, block in zip(builders, blocks, strict=True):
            rest, held_out = some.outside(block), some.inside(block)
            own = replace(measured.of_members(members), scale_u=scale_u)
            rows.append(block_errors(own, rest, held_out, scale))
        return lambda lam: _mean_of_blocks([row(lam) for row in rows], blocks)

    return row_of


def _numbered(members: Int[Tensor, "m"]) -> Iterable[tuple[int, Int[Tensor, "1"]]]:
    return enumerate(torch.split(members, 1))


def _of(scale: Scale, k: int) -> Scale:
    """That of one data set."""
    return scale[k : k + 1] if isinstance(scale, Tensor) and scale.ndim else scale


def _mean_of_blocks(
    errors: Sequence[Float[Tensor, "*b w l"]], blocks: Sequence[range]
) -> Float[Tensor, "*b w l"]:
    """The geometric mean of mean squared errors, from the sums of each block."""
    each = torch.stack([total / len(block) for total, block in zip(errors, blocks, strict=True)])
    return each[0] if len(blocks) == 1 else each.clamp_min(LEAST_ERROR).log().mean(0).exp()


def _errors_of_one(builder: Builder, data: Sequences, blocks: Sequence[range]) -> RowOf:
    """The same for one data set, whose sensors may be tried in other forms."""
    parts = [(data.outside(block), data.inside(block)) for block in blocks]
    builders = [builder.measured(rest) for rest, _ in parts]

    def row_of(
        members: Tensor, scale: Scale, scale_u: Scale = 1.0, sensors: Sensors | None = None
    ) -> Row:
        one, moves = (s[0] if isinstance(s, Tensor) else s for s in (scale, scale_u))
        rows = []
        for measured, (rest, held_out) in zip(builders, parts, strict=True):
            own = replace(measured, scale_u=moves, sensors=sensors or measured.sensors)
            rows.append(block_errors(own, rest, held_out, one))
        return lambda lam: _mean_of_blocks([row(lam[0]) for row in rows], blocks).unsqueeze(0)

    return row_of


def block_errors(builder: Builder, rest: Sequences, held_out: Sequence[Pair], scale: Scale) -> Row:
    """Squared errors, summed over the steps held out, of filters fitted to the other steps.

    A function of lam [*b l] that gives errors [*b w l] for every width of the settings. The factors
    of the latents belong to the scale, those of the observations to scale and width: they are made
    once, whatever lams are asked for.
    """
    x, z, lengths = rest.observed, rest.z, rest.lengths
    latents, lift, ridges = builder.ridged_latents(rest, scale)
    known: dict[float, tuple[float, Operators]] = {}

    def operators(width: float, least: float) -> Operators:
        """Those of this width, made again where a lam is less than any before."""
        if width not in known or least < known[width][0]:
            update = builder.update(x, scale * width, TOLERANCE, lam=least, rough=True)
            made = builder.operators(update, latents, z, lengths, lift=lift, **ridges)
            known[width] = (least, made)
        return known[width][1]

    def errors(lam: Float[Tensor, "*b l"]) -> Float[Tensor, "*b w l"]:
        widths, least = builder.settings.tried_widths, float(lam.min())
        made = (operators(width, least) for width in widths)
        each = [squared_errors(one, lam, held_out, rest.rates) for one in made]
        return torch.stack(each, -2)

    return errors


def cell_errors(builder: Builder, data: Sequences, block: range) -> Score:
    """The mean squared error on the block, of one setting at a time.

    A setting that finds no evidence in many observations follows its dynamics alone, which may do
    well where they are regular and fails where they are not: its error is infinite. Factors are
    kept for the next setting, only the last ones: of many points they are large. Once the error is
    above the limit of use, it is no longer added up: infinite too.
    """
    rest, held_out = data.outside(block), excerpts(data, block, TUNED_STEPS)
    builder, kept = builder.measured(rest), rest.z.shape[-1] - rest.rates
    given = builder.settings.lam_transition
    scored = [split(piece.x[..., piece.lead :, :], rest.controls)[0] for piece in held_out]
    there = sum(int(x.isfinite().any(-1).sum()) for x in scored)

    @lru_cache(maxsize=1)
    def latents(scale: float) -> tuple[Features, Lift | None]:
        features = builder.latents(rest.z, scale, TOLERANCE)
        return features, builder.lift(features.train, rest, 10 * TOLERANCE)

    @lru_cache(maxsize=1)
    def update(scale: float, lam: float) -> Update:
        return builder.update(rest.observed, scale, TOLERANCE, lam=lam, rough=True)

    def score(cell: Cell, limit: float) -> float:
        features, lift = latents(cell.scale_z)
        ridges = {"eta": cell.eta, "lam_transition": cell.eta if given is None else given}
        floored = builder.floored(rest.z.new_tensor(cell.floor))
        now = update(cell.scale_x, cell.lam)
        operators = floored.operators(now, features, rest.z, rest.lengths, lift=lift, **ridges)
        lam, total, used = rest.z.new_tensor([cell.lam]), 0.0, 0.0
        steps = sum(piece.z.shape[-2] - piece.lead for piece in held_out)
        for piece in held_out:
            if total > limit * steps:
                return math.inf
            result = run_filter(operators, operators.observe(piece.x).unsqueeze(-3), lam)
            error = (result.mean.squeeze(-3) - piece.z)[..., piece.lead :, :kept]
            total += float(error.square().sum())
            used += float(result.evidence[..., piece.lead :].sum())
        return total / steps if used >= USED * there else math.inf

    return score


def leave_out(builder: Builder, data: FittedData, own: Update) -> Callable[[range], Operators]:
    """Operators of all steps but a block's, with the filter's own hyper-parameters.

    Features are computed once for all rows; a block's rows are then left out of them. They are as
    rough as those that settings are chosen with, as errors need fewer digits than answers; the
    filter's `own` update is kept where the kernel has full rank.
    """
    choice, x = data.choice, data.observed.double()
    builder = builder.measured(replace(data, x=data.x.double())).floored(choice.floor)
    latents = builder.latents(data.z, choice.scale_z, TOLERANCE)

    def rough(rows: Tensor) -> Update:
        lam = float(choice.lam.min())
        return builder.update(rows, choice.scale_x, TOLERANCE, lam=lam, rough=True)

    is_named = isinstance(builder.settings.engine, str) and data.sensors is None
    update = rough(x) if is_named and not isinstance(own, ActiveSet | Local) else own

    def operators(block: range) -> Operators:
        rest = data_outside(data, block)
        rest_update = _outside(update, block) if is_named else rough(rest.observed.double())
        features = replace(latents, train=outside(latents.train, block))
        dynamics = {
            "eta": choice.eta,
            "lam_transition": choice.lam_transition,
            "lift": builder.lift(features.train, rest, 10 * TOLERANCE),
        }
        return builder.operators(rest_update, features, rest.z, rest.lengths, **dynamics)

    return operators


def _outside(update: Update, block: range) -> Update:
    """The update of the training rows outside the block."""
    if isinstance(update, ActiveSet):
        gram = outside(outside(update.gram, block), block, -1)
        return replace(update, points=outside(update.points, block), gram=gram)
    if isinstance(update, Local):
        return replace(update, points=outside(update.points, block), limit=LEAST)
    assert isinstance(update, LowRank)
    features = replace(update.features, train=outside(update.features.train, block))
    if isinstance(update, Compressed):
        return replace(update, features=features, mixing=outside(update.mixing, block))
    return replace(update, features=features)
