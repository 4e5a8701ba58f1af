"""Beliefs at steps that a filter did not see, by horizon: what calibration is fitted to.

Operators of the other steps filter a block. From each of its steps the belief is predicted on, as
in a gap of observations, and at some of its steps a filter is started anew, as after one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choosing.validation import (
    MINIMUM_STEPS,
    held_out_block,
    leave_out,
    validation_block,
)
from kbr.core.filters.kernel.correcting.correction import MeanCorrection, moved
from kbr.core.filters.kernel.correcting.learning import Early, correction_without
from kbr.core.filters.kernel.engines.large import is_large
from kbr.core.filters.kernel.engines.local import Local
from kbr.core.filters.kernel.engines.sensors import SensorOperators
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.run import Queries, run_filter, run_forecast, run_smoother
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storing.storage import FittedData, together
from kbr.core.filters.lifting import windows
from kbr.core.filters.sequences import (
    LEAD,
    Piece,
    Sequences,
    blocks_all_over,
    excerpts,
    outside,
    split,
)
from kbr.core.uncertainty.calibration import (
    BLENDS,
    LONGEST,
    WAKING,
    Calibration,
    HeldOut,
    bridges_of,
    calibrate,
)
from kbr.core.uncertainty.growth import distances, places_of
from kbr.core.units.scaling import Scaling

# Distances from evidence, as those of a Brownian bridge, that smoothing tells apart.
BRIDGES = (0.0, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 20.0, 30.0)
GAPS = (1, 2, 4, 8, 14, 20)  # lengths of the gaps that smoothing is tried on
BETWEEN = 6  # observations between two of them
MEASURED, BLOCKS = 600, len(GAPS)  # steps in so many blocks of a long recording
SMOOTHED = 80  # steps in each of them that smoothing is measured on with the local engine
STARTS = 50  # times in a block, or in a few pieces together, at which a filter is started anew

Each = Float[Tensor, "*b"]
Rows = dict[float, list[HeldOut]]  # inner moments and truths of each horizon
Measured = tuple[Rows, Tensor | None]  # of a block, and the latents that are known there


def measured(fitted: Fitted, early: Early | None = None, *, first_too: bool = True) -> Fitted:
    """The filter with its covariances measured on steps that operators of the others filter.

    Settings were chosen for the validation block, so its errors are a little too small: the first
    block of the data is taken too, unless observations are features that have seen it. Of very
    many training points a block is so small a part that the filter itself stands for the one
    without it. Steps that were added after the fit are not among those held out.
    `early` are corrections without a block that are known already.
    """
    rows = held_out_rows(fitted, early, first_too=first_too)
    if not rows:
        return fitted
    return fitted.changed(calibration=calibrated(fitted.founding, rows), known=not first_too)


def held_out_rows(
    fitted: Fitted,
    early: Early | None = None,
    *,
    first_too: bool = True,
    parts: int | None = None,
) -> list[Measured]:
    """Filtered beliefs at the steps of each block that `measured` measures on.

    `parts` as in `filter_rows`: filters of different engines have the same steps with the same.
    """
    rows, first, lam = [], fitted.founding, fitted.data.choice.lam
    several = first.data.apart
    if len(several) > 1:
        return _one_by_one(first, several, early, first_too=first_too, parts=parts)
    for block, operators, pieces in _held_out(first, first_too=first_too):
        mend = correction_without(first, block, early)
        found = filter_rows(operators, lam, pieces, mend, fitted.data.history, parts)
        rows.append((found, _places(first, block)))
    return rows


def _one_by_one(
    fitted: Fitted, several: Sequence[FittedData], early: Early | None, **how: Any
) -> list[Measured]:
    """The same of data sets apart."""
    batch, known = fitted.data.z.shape[:-2], early or {}
    indices = product(*map(range, batch))
    each = [
        held_out_rows(
            Fitted.build(fitted.settings, one),
            {block: correction.member(index) for block, correction in known.items()},
            **how,
        )
        for one, index in zip(several, indices, strict=True)
    ]

    found: list[Measured] = []
    for blocks in zip(*each, strict=True):
        rows, places = zip(*blocks, strict=True)
        horizons = {
            h: [
                cast(HeldOut, tuple(together(parts, batch) for parts in zip(*pieces, strict=True)))
                for pieces in zip(*(row[h] for row in rows), strict=True)
            ]
            for h in rows[0]
        }
        found.append((horizons, None if places[0] is None else together(places, batch)))
    return found


def smoothing_measured(fitted: Fitted) -> Fitted:
    """The same for smoothed beliefs; what is known already stays."""
    if fitted.data.smoothing is not None or fitted.n < MINIMUM_STEPS:
        return fitted
    rows = smoothed_rows(fitted)
    return fitted.changed(smoothing=calibrated(fitted.founding, rows)) if rows else fitted


def smoothed_rows(fitted: Fitted, *, most: int | None = None) -> list[Measured]:
    """Smoothed beliefs at the steps of each block that `smoothing_measured` measures on.

    `most` as in `smoother_rows`.
    """
    first, choice, both = fitted.founding, fitted.data.choice, not fitted.data.known
    local = isinstance(first.operators.update, Local)  # each block has gaps of a length of its own
    return [
        (
            smoother_rows(
                operators,
                choice.lam_transition,
                choice.lam,
                pieces,
                correction_without(first, block),
                history=fitted.data.history,
                gaps=GAPS[k::BLOCKS] if local and both else GAPS,
                most=most,
            ),
            _places(first, block),
        )
        for k, (block, operators, pieces) in enumerate(_held_out(first, first_too=both))
    ]


def _held_out(fitted: Fitted, *, first_too: bool) -> Iterator[tuple[range, Operators, list[Piece]]]:
    """The validation block, and one as long at the start, with operators of the other steps."""
    data, own = fitted.data, fitted.operators
    if data.landmarks is not None or fitted.n < MINIMUM_STEPS:
        return  # compressed, a filter no longer has the steps to hold out
    # Locally the point itself would be found, so there its block is always left out.
    local = isinstance(own.update, Local)
    large = is_large(fitted.n) and not local
    without = (lambda _: own) if large else leave_out(Builder(fitted.settings), data, own.update)
    if local and first_too:
        yield from _all_over(data, without)
        return
    last = held_out_block(data.lengths)
    whole = last != validation_block(fitted.n)
    for block in [last, range(len(last))] if first_too and not (whole or large) else [last]:
        yield block, without(block), _pieces(data, block)


def _pieces(data: Sequences, block: range) -> list[Piece]:
    """Those to measure on: of whole sequences, which are more rows than a block, of all parts."""
    if held_out_block(data.lengths) != validation_block(data.z.shape[-2]):
        return excerpts(data, block, MEASURED)
    return [Piece(*pair) for pair in data.inside(block)]


def measured_on(fitted: Fitted, data: Sequences) -> Fitted:
    """A filter of very many pairs, of which these are some, with both calibrations."""
    if data.z.shape[-2] < MINIMUM_STEPS:
        return fitted
    choice, own = fitted.data.choice, fitted.operators
    pieces, ridge = _pieces(data, held_out_block(data.lengths)), choice.lam_transition
    filtered = filter_rows(own, choice.lam, pieces)
    smoothed = smoother_rows(own, ridge, choice.lam, pieces)
    both = (filtered, smoothed)
    calibration, smoothing = (calibrated(fitted, [(rows, None)]) for rows in both)
    return fitted.changed(calibration=calibration, smoothing=smoothing)


def _all_over(
    data: FittedData, without: Callable[[range], Operators]
) -> Iterator[tuple[range, Operators, list[Piece]]]:
    """Blocks of the whole recording: its parts differ, and settings were chosen for one of them."""
    blocks = blocks_all_over(data.lengths, BLOCKS, MEASURED // BLOCKS + LEAD)
    for k, block in enumerate(blocks):
        place = k / (BLOCKS - 1)
        yield block, without(block), excerpts(data, block, MEASURED // BLOCKS, [place])


def filter_rows(
    operators: Operators,
    lam: Each,
    pieces: Sequence[Piece],
    correction: MeanCorrection | None = None,
    history: int = 1,
    parts: int | None = None,
) -> Rows:
    """Inner beliefs and truths at held-out steps, by horizon.

    `parts` says of how many calls this is one; None: of one, or of several with the local engine.
    """
    rows: Rows = {}

    def add(
        horizon: int, mean: Tensor, cov: Tensor, truth: Tensor, kept: Tensor | None = None
    ) -> None:
        if kept is not None:
            mean, cov, truth = mean[kept], cov[kept], truth[kept]
        if truth.shape[-2]:
            rows.setdefault(float(horizon), []).append((mean, cov, truth))

    if parts is None:
        parts = BLOCKS if isinstance(operators.update, Local) else 1
    starts = max(STARTS // max(len(pieces), parts), 5)
    for piece in pieces:
        x, truth, lead = piece.x, piece.z, piece.lead
        query, steps = operators.observe(x), truth.shape[-2]
        result = _run(operators, query.unsqueeze(-3), lam)
        mean = moved(correction, operators, result, x.unsqueeze(-3))
        mean, cov = mean.squeeze(-3), result.cov.squeeze(-4)
        awake, seen = max(lead, WAKING), None
        if isinstance(operators, SensorOperators):  # without any, a step is not of this horizon
            seen = result.evidence.squeeze(-2)
        now = None if seen is None else seen[awake:]
        add(0, mean[..., awake:, :], cov[..., awake:, :, :], truth[..., awake:, :], now)
        assert result.states is not None
        states, longest = result.states.squeeze(-3), min(LONGEST, steps - lead - 1)
        forecasts = run_forecast(operators, states, longest, query)
        for h, moments in enumerate(forecasts, start=1):
            ahead = operators.readout.mean_cov(moments[..., lead:-h, :])
            begun = None if seen is None else seen[lead:-h]
            add(h, *ahead, truth[..., lead + h :, :], begun)
        if steps >= WAKING:
            begun = _again(_starts(x, starts), history, operators.controls)
            exact = _starts(truth, starts)
            query = _starts(query, starts) if history == 1 else _observed(operators, begun)
            result = _run(operators, query, lam)
            mean = moved(correction, operators, result, begun)
            for k in range(WAKING):
                add(k - WAKING, mean[..., k, :], result.cov[..., k, :, :], exact[..., k, :])
    return rows


def _places(fitted: Fitted, block: range) -> Tensor | None:
    """Latents that operators of the steps outside the block know; None: error bars do not grow.

    A filter of very many points is measured as it is, without a new place.
    """
    if is_large(fitted.n):
        return None
    answered = fitted.data.z.shape[-1] - fitted.data.rates
    return places_of(outside(fitted.data.z, block)[..., :answered])


def calibrated(fitted: Fitted, several: Sequence[Measured]) -> Calibration:
    """What these beliefs at held-out steps say about the covariances of the filter."""
    places = _places(fitted, range(0)) if any(known is not None for _, known in several) else None
    return calibration_of(fitted.units.z, several, places)


def calibration_of(
    scaling: Scaling,
    several: Sequence[Measured],
    places: Tensor | None,
    blends: Sequence[float] = BLENDS,
    *,
    alike: bool = False,
) -> Calibration:
    """The calibration of all blocks together, each with the places that were known there.

    `places` are those that the filter of all rows knows; `blends` as in `calibrate`; with `alike`,
    steps of one piece count for less, as they err alike.
    """
    horizons = sorted({h for rows, _ in several for h in rows})
    joined, away, sizes = [], [], []
    for h in horizons:
        parts, far = [], []
        for rows, known in several:
            for part in rows.get(h, ()):
                parts.append(answers(scaling, *part))
                if known is not None:
                    inner = scaling.centred().apply(parts[-1][0])
                    far.append(distances(inner, known))
        mean, cov, z = zip(*parts, strict=True)
        sizes.append([truth.shape[-2] for truth in z])
        joined.append((torch.cat(mean, -2), torch.cat(cov, -3), torch.cat(z, -2)))
        away += [torch.cat(far, -1)] if far else []
    return calibrate(
        joined,
        horizons,
        away=away or None,
        places=places if away else None,
        blends=blends,
        pieces=sizes if alike else None,
    )


def _starts(rows: Float[Tensor, "*b t c"], most: int) -> Float[Tensor, "*b s w c"]:
    """The first rows of sequences begun at evenly spaced rows, `most` of them."""
    every = rows.unfold(-2, WAKING, 1).movedim(-1, -2)
    return every[..., :: math.ceil(every.shape[-3] / most), :, :]


def _again(x: Float[Tensor, "*b t c"], history: int, controls: int) -> Float[Tensor, "*b t c"]:
    """Windows of the newest rows of windows: of a sequence that begins here, and has these gaps.

    So many controls at the end of every row stay as they are.
    """
    seen, moves = split(x, controls)
    again = windows(seen[..., : seen.shape[-1] // history], history)
    return again if moves is None else torch.cat([again, moves], -1)


def _observed(operators: Operators, x: Float[Tensor, "*b s t dx"]) -> Queries:
    query = operators.observe(x.flatten(-3, -2))
    return query.reshape(*x.shape[:-1], query.shape[-1])


def _run(operators: Operators, query: Queries, lam: Each) -> KernelFilterResult:
    return run_filter(operators, query, lam.unsqueeze(-1).expand(query.shape[:-2]))


def smoother_rows(
    operators: Operators,
    lam_transition: Each,
    lam: Each,
    pieces: Sequence[Piece],
    correction: MeanCorrection | None = None,
    *,
    history: int = 1,
    gaps: Sequence[int] = GAPS,
    most: int | None = None,
) -> Rows:
    """Smoothed inner beliefs and truths at held-out steps, by distance from evidence.

    At the last `most` steps of each piece, 0: all; None: all, or some with the local engine.
    """
    rows: Rows = {}
    if most is None:
        most = SMOOTHED if isinstance(operators.update, Local) else 0
    middles = lam.new_tensor([(a + b) / 2 for a, b in pairwise(BRIDGES)])
    for piece in pieces:
        x, truth = piece.x[..., -most:, :], piece.z[..., -most:, :]
        seen = _patterns(truth.shape[-2], gaps).to(truth.device)
        if most:  # a piece that begins or ends in a gap would be one without a track
            seen[:, :BETWEEN] = seen[:, -BETWEEN:] = True
        several = (*truth.shape[:-2], *seen.shape)
        query = operators.observe(x).unsqueeze(-3)
        query = query.expand(*several, query.shape[-1])
        if history > 1:
            masked = x.unsqueeze(-3).repeat(*[1] * (x.ndim - 2), len(seen), 1, 1)
            split(masked, operators.controls)[0][..., ~seen, :] = torch.nan  # controls have no gaps
            begun = _again(masked, history, operators.controls)
            query = _observed(operators, begun.nan_to_num(0.0))
        lams = lam.unsqueeze(-1).expand(several[:-1])
        past, result = run_smoother(operators, query, lams, lam_transition, seen.expand(several))
        flat = x.unsqueeze(-3).expand(*several, x.shape[-1])
        mean = moved(correction, operators, past, flat, result).flatten(-3, -2)
        cov = result.cov.flatten(-4, -3)
        exact = truth.unsqueeze(-3).expand(*several, truth.shape[-1]).flatten(-3, -2)
        where = torch.bucketize(bridges_of(seen), middles.to(seen.device)).flatten()
        for row in sorted(set(where.tolist())):
            at = (where == row).nonzero().squeeze(-1)
            m, z = (t.index_select(-2, at) for t in (mean, exact))
            rows.setdefault(BRIDGES[row], []).append((m, cov.index_select(-3, at), z))
    return rows


def answers(scaling: Scaling, mean: Tensor, cov: Tensor, truth: Tensor) -> HeldOut:
    """Inner moments and truths in the units of the data, but for their offset, which cancels."""
    centred = scaling.centred()
    mean, cov = centred.undo(mean, cov)
    exact, _ = centred.undo(truth, cov.new_zeros(*truth.shape, truth.shape[-1]))
    return mean, cov, centred.nearest(exact, mean)


def _patterns(steps: int, gaps: Sequence[int]) -> Bool[Tensor, "s t"]:
    """Which observations are there: all of them; and gaps of each length, one after the other.

    Twice, the second time half a period later, so that gaps lie at more places.
    """
    time = torch.arange(steps, device="cpu")
    patterns = [torch.ones_like(time, dtype=torch.bool)]
    for period in (length + BETWEEN for length in gaps):
        patterns += [(time + shift) % period < BETWEEN for shift in (0, period // 2)]
    return torch.stack(patterns)
