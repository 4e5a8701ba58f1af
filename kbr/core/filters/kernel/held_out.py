"""Beliefs at steps that a filter did not see, by horizon: what calibration is fitted to.

Operators of the other steps filter a block. From each of its steps the belief is predicted on, as
in a gap of observations, and at some of its steps a filter is started anew, as after one.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult
from kbr.core.filters.kernel.run import run_filter, run_forecast, run_smoother
from kbr.core.filters.kernel.step import Operators
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
STARTS = 50  # times in a block at which a filter is started anew

Rows = dict[float, list[HeldOut]]  # inner moments and truths of each horizon
Correction = Callable[[Operators, KernelFilterResult, Tensor], Tensor]  # of means, given x


class Piece(NamedTuple):
    """A held-out sequence: its observations, their coordinates, and the truth, all inner."""

    x: Float[Tensor, "*b t dx"]
    query: Float[Tensor, "*b t c"]
    truth: Float[Tensor, "*b t dz"]


def filter_rows(
    operators: Operators,
    lam: Float[Tensor, "*b"],
    pieces: Iterable[Piece],
    correct: Correction | None = None,
) -> Rows:
    """Inner beliefs and truths at held-out steps, by horizon."""
    rows: Rows = {}

    def add(horizon: int, mean: Tensor, cov: Tensor, truth: Tensor) -> None:
        if truth.shape[-2]:
            rows.setdefault(float(horizon), []).append((mean, cov, truth))

    def means(found: KernelFilterResult, x: Tensor) -> Tensor:
        return found.mean if correct is None else correct(operators, found, x)

    for x, query, truth in pieces:
        steps = truth.shape[-2]
        found = _run(operators, query.unsqueeze(-3), lam)
        mean = means(found, x.unsqueeze(-3))
        mean, cov = mean.squeeze(-3), found.cov.squeeze(-4)
        add(0, mean[..., WAKING:, :], cov[..., WAKING:, :, :], truth[..., WAKING:, :])
        assert found.states is not None
        for h, moments in enumerate(
            run_forecast(operators, found.states.squeeze(-3), min(LONGEST, steps - 1)), start=1
        ):
            add(h, *operators.readout.mean_cov(moments[..., :-h, :]), truth[..., h:, :])
        if steps >= WAKING:
            found, exact = _run(operators, _starts(query), lam), _starts(truth)
            mean = means(found, _starts(x))
            for k in range(WAKING):
                add(k - WAKING, mean[..., k, :], found.cov[..., k, :, :], exact[..., k, :])
    return rows


def calibrated_rows(scaling: Scaling, several: Sequence[Rows]) -> Calibration:
    """The calibration of all blocks together."""
    horizons = sorted({h for rows in several for h in rows})
    parts = [
        _joined([answers(scaling, *part) for rows in several for part in rows.get(h, ())])
        for h in horizons
    ]
    return calibrate(parts, horizons)


def _starts(rows: Float[Tensor, "*b t c"]) -> Float[Tensor, "*b s w c"]:
    """The first rows of sequences begun at evenly spaced rows, STARTS of them at most."""
    every = rows.unfold(-2, WAKING, 1).movedim(-1, -2)
    return every[..., :: math.ceil(every.shape[-3] / STARTS), :, :]


def _run(
    operators: Operators, query: Float[Tensor, "*b s t c"], lam: Float[Tensor, "*b"]
) -> KernelFilterResult:
    seen = torch.ones(query.shape[:-1], dtype=torch.bool, device=query.device)
    return run_filter(operators, query, seen, lam.unsqueeze(-1).expand(query.shape[:-2]))


def smoother_rows(
    operators: Operators,
    lam_transition: Float[Tensor, "*b"],
    lam: Float[Tensor, "*b"],
    pieces: Iterable[Piece],
) -> Rows:
    """Smoothed inner beliefs and truths at held-out steps, by distance from evidence."""
    rows: Rows = {}
    middles = lam.new_tensor([(a + b) / 2 for a, b in pairwise(BRIDGES)])
    for _, query, truth in pieces:
        seen = _patterns(truth.shape[-2]).to(truth.device)
        several = (*truth.shape[:-2], *seen.shape)
        given = query.unsqueeze(-3).expand(*several, query.shape[-1])
        lams = lam.unsqueeze(-1).expand(several[:-1])
        found = run_smoother(operators, given, seen.expand(several), lams, lam_transition)
        mean, cov = found.mean.flatten(-3, -2), found.cov.flatten(-4, -3)
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
    made = [torch.ones_like(time, dtype=torch.bool)]
    for period in (length + BETWEEN for length in GAPS):
        made += [(time + shift) % period < BETWEEN for shift in (0, period // 2)]
    return torch.stack(made)


def _joined(parts: Sequence[HeldOut]) -> HeldOut:
    mean, cov, z = zip(*parts, strict=True)
    return torch.cat(mean, -2), torch.cat(cov, -3), torch.cat(z, -2)
