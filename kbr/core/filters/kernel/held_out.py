"""Beliefs at steps that a filter did not see, by horizon: what calibration is fitted to.

Operators of the other steps filter a block. From each of its steps the belief is predicted on, as
in a gap of observations, and at some of its steps a filter is started anew, as after one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.large import is_large
from kbr.core.filters.kernel.local import Local
from kbr.core.filters.kernel.run import Queries, run_filter, run_forecast, run_smoother
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.validation import (
    MINIMUM_STEPS,
    held_out_block,
    leave_out,
    validation_block,
)
from kbr.core.filters.lifting import windows
from kbr.core.filters.sequences import FEW, Pair, excerpts, split
from kbr.core.uncertainty.calibration import (
    LONGEST,
    WAKING,
    Calibration,
    HeldOut,
    bridges_of,
    calibrate,
)
from kbr.core.units.scaling import Scaling

# Distances from evidence, as those of a Brownian bridge, that smoothing tells apart.
BRIDGES = (0.0, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 20.0, 30.0)
GAPS = (1, 2, 4, 8, 14, 20)  # lengths of the gaps that smoothing is tried on
BETWEEN = 6  # observations between two of them
MEASURED = 600  # steps of sequences that are held out as a whole
SMOOTHED = 60  # steps that smoothing is measured on with the local engine
STARTS = 50  # times in a block, or in a few pieces together, at which a filter is started anew

Each = Float[Tensor, "*b"]
Rows = dict[float, list[HeldOut]]  # inner moments and truths of each horizon
Correction = Callable[[Operators, KernelFilterResult, Tensor], Tensor]  # of means, given x


def measured(
    fitted: Fitted, *, first_too: bool = True, correct: Callable[[range], Correction] | None = None
) -> Fitted:
    """The filter with its covariances measured on steps that operators of the others filter.

    Settings were chosen for the validation block, so its errors are a little too small: the first
    block of the data is taken too, unless observations are features that have seen it. `correct`
    gives what corrects the means of a block. Of very many training points a block is so small a
    part that the filter itself stands for the one without it.
    """
    rows, lam = [], fitted.data.choice.lam
    for block, operators, pairs in _held_out(fitted, first_too=first_too):
        mend = None if correct is None else correct(block)
        rows.append(filter_rows(operators, lam, pairs, mend, fitted.data.history))
    return fitted.changed(calibration=calibrated_rows(fitted.units.z, rows)) if rows else fitted


def smoothing_measured(fitted: Fitted) -> Fitted:
    """The same for smoothed beliefs; what is known already stays."""
    if fitted.data.smoothing is not None or fitted.n < MINIMUM_STEPS:
        return fitted
    known, choice = fitted.data.calibration, fitted.data.choice
    # Held-out steps of more than one block: the first one was fit to be held out too.
    both = known is not None and max(known.counts) > len(validation_block(fitted.n))
    rows = [
        smoother_rows(
            operators,
            choice.lam_transition,
            choice.lam,
            _fewer(operators, pairs),
            fitted.data.history,
        )
        for _, operators, pairs in _held_out(fitted, first_too=both)
    ]
    return fitted.changed(smoothing=calibrated_rows(fitted.units.z, rows)) if rows else fitted


def _held_out(fitted: Fitted, *, first_too: bool) -> Iterator[tuple[range, Operators, list[Pair]]]:
    """The validation block, and one as long at the start, with operators of the other steps."""
    if fitted.data.landmarks is not None or fitted.n < MINIMUM_STEPS:
        return  # compressed, a filter no longer has the steps to hold out
    data, last = fitted.data, held_out_block(fitted.data.lengths)
    whole = last != validation_block(fitted.n)  # sequences: more rows than a block, of all parts
    # Locally the point itself would be found, so there its block is always left out.
    large = is_large(fitted.n) and not isinstance(fitted.operators.update, Local)
    first_too = first_too and not whole
    without = None if large else leave_out(Builder(fitted.settings), data, fitted.operators.update)
    for block in [last, range(len(last))] if first_too and not large else [last]:
        operators = fitted.operators if without is None else without(block)
        pairs = data.inside(block)
        yield block, operators, excerpts(pairs, MEASURED) if whole else pairs


def _fewer(operators: Operators, pairs: list[Pair]) -> list[Pair]:
    """Part of the steps where each costs more: every one is smoothed in many patterns of gaps."""
    return excerpts(pairs, SMOOTHED, 3) if isinstance(operators.update, Local) else pairs


def filter_rows(
    operators: Operators,
    lam: Each,
    pairs: Iterable[Pair],
    correct: Correction | None = None,
    history: int = 1,
) -> Rows:
    """Inner beliefs and truths at held-out steps, by horizon."""
    rows: Rows = {}

    def add(horizon: int, mean: Tensor, cov: Tensor, truth: Tensor) -> None:
        if truth.shape[-2]:
            rows.setdefault(float(horizon), []).append((mean, cov, truth))

    def means(result: KernelFilterResult, x: Tensor) -> Tensor:
        return result.mean if correct is None else correct(operators, result, x)

    pairs = list(pairs)
    starts = STARTS if len(pairs) < FEW else max(STARTS // len(pairs), 5)
    for x, truth in pairs:
        query, steps = operators.observe(x), truth.shape[-2]
        result = _run(operators, query.unsqueeze(-3), lam)
        mean = means(result, x.unsqueeze(-3))
        mean, cov = mean.squeeze(-3), result.cov.squeeze(-4)
        add(0, mean[..., WAKING:, :], cov[..., WAKING:, :, :], truth[..., WAKING:, :])
        assert result.states is not None
        states, longest = result.states.squeeze(-3), min(LONGEST, steps - 1)
        forecasts = run_forecast(operators, states, longest, query)
        for h, moments in enumerate(forecasts, start=1):
            add(h, *operators.readout.mean_cov(moments[..., :-h, :]), truth[..., h:, :])
        if steps >= WAKING:
            begun = _again(_starts(x, starts), history, operators.controls)
            exact = _starts(truth, starts)
            query = _starts(query, starts) if history == 1 else _observed(operators, begun)
            result = _run(operators, query, lam)
            mean = means(result, begun)
            for k in range(WAKING):
                add(k - WAKING, mean[..., k, :], result.cov[..., k, :, :], exact[..., k, :])
    return rows


def calibrated_rows(scaling: Scaling, several: Sequence[Rows]) -> Calibration:
    """The calibration of all blocks together."""
    horizons = sorted({h for rows in several for h in rows})
    joined = []
    for h in horizons:
        parts = [answers(scaling, *part) for rows in several for part in rows.get(h, ())]
        mean, cov, z = zip(*parts, strict=True)
        joined.append((torch.cat(mean, -2), torch.cat(cov, -3), torch.cat(z, -2)))
    return calibrate(joined, horizons)


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
    operators: Operators, lam_transition: Each, lam: Each, pairs: Iterable[Pair], history: int = 1
) -> Rows:
    """Smoothed inner beliefs and truths at held-out steps, by distance from evidence."""
    rows: Rows = {}
    middles = lam.new_tensor([(a + b) / 2 for a, b in pairwise(BRIDGES)])
    for x, truth in pairs:
        seen = _patterns(truth.shape[-2]).to(truth.device)
        several = (*truth.shape[:-2], *seen.shape)
        query = operators.observe(x).unsqueeze(-3)
        query = query.expand(*several, query.shape[-1])
        if history > 1:
            gaps = x.unsqueeze(-3).repeat(*[1] * (x.ndim - 2), len(seen), 1, 1)
            split(gaps, operators.controls)[0][..., ~seen, :] = torch.nan  # controls have no gaps
            begun = _again(gaps, history, operators.controls)
            query = _observed(operators, begun.nan_to_num(0.0))
        lams = lam.unsqueeze(-1).expand(several[:-1])
        result = run_smoother(operators, query, lams, lam_transition, seen.expand(several))
        mean, cov = result.mean.flatten(-3, -2), result.cov.flatten(-4, -3)
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


def _patterns(steps: int) -> Bool[Tensor, "s t"]:
    """Which observations are there: all of them; and gaps of each length, one after the other.

    Twice, the second time half a period later, so that gaps lie at more places.
    """
    time = torch.arange(steps, device="cpu")
    patterns = [torch.ones_like(time, dtype=torch.bool)]
    for period in (length + BETWEEN for length in GAPS):
        patterns += [(time + shift) % period < BETWEEN for shift in (0, period // 2)]
    return torch.stack(patterns)
