"""Beliefs at steps that a model did not see, by horizon: what calibration is fitted to."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kbr.core.filters.kernel.choosing.held_out import Rows, calibration_of
from kbr.core.filters.moving.choosing.scoring import Part
from kbr.core.filters.moving.cloud import Cloud
from kbr.core.filters.moving.model import MovingModel
from kbr.core.filters.moving.surprise import KEPT, averages, surprise, usual_of
from kbr.core.filters.sequences import Piece, split
from kbr.core.uncertainty.calibration import BLENDS, LONGEST, WAKING, Calibration
from kbr.core.units.scaling import Scaling

FORECASTS = 20  # beliefs of a block that are predicted on
STARTS = 10  # rows of a block at which a filter is started anew
POINTS = 200  # at most, of predictions and new starts


def whole(parts: Sequence[Part]) -> bool:
    """Whether whole sequences were held out, which are like those to come."""
    return all(piece.lead == 0 for part in parts for piece in part.pieces)


def usual_errors(parts: Sequence[Part]) -> Tensor | None:
    """How far off each column of the sensor is on average in sequences held out, see `surprise`.

    None of one recording, whose blocks lie between known rows: in these it is less.
    """
    if not whole(parts):
        return None
    found = []
    for part in parts:
        for piece in part.pieces:
            x, u = split(piece.x, part.model.controls)
            result = part.model.filtered(x, u)
            found.append(averages(part.model.errors(x, result.mean, result.evidence)))
    return usual_of(torch.cat(found))


def measured(parts: Sequence[Part], scaling: Scaling, usual: Tensor | None = None) -> Calibration:
    """From blocks of the recording, each filtered by a model of the other rows.

    Steps of one piece err alike, which makes regions wider where pieces are few. Whole sequences
    that were held out are like those to come. Blocks of a recording lie between known rows, which
    may be easier: by these, a cloud's covariance is never made narrower, and at steps with evidence
    hardly blended with held-out errors, as it tells new places by itself.
    """
    models = [replace(part.model, usual=usual) for part in parts]
    pairs = zip(models, parts, strict=True)
    several = [(filter_rows(model, part.pieces), None) for model, part in pairs]
    sequences = whole(parts)
    blends = BLENDS if sequences else BLENDS[:1]
    found = calibration_of(scaling, several, None, blends, alike=True)
    return found if sequences else found.never_narrower()


def filter_rows(model: MovingModel, pieces: list[Piece]) -> Rows:
    """Inner beliefs and truths at held-out steps, by horizon.

    Where a surprise will widen regions, truths are nearer by as much.
    """
    rows: Rows = {}
    few = model.tempered(model.tempering, particles=min(POINTS, model.particles))

    def add(
        horizon: int, moments: tuple[Tensor, Tensor], truth: Tensor, off: Tensor, kept: Tensor
    ) -> None:
        if bool(kept.any()):
            mean, cov = moments
            if model.usual is not None:
                factor = surprise(off, model.usual).sqrt().unsqueeze(-1)
                truth = mean + (truth - mean) / factor
            rows.setdefault(float(horizon), []).append((mean[kept], cov[kept], truth[kept]))

    for piece in pieces:
        (x, u), truth, lead = split(piece.x, model.controls), piece.z, piece.lead
        steps, awake = len(truth), max(lead, WAKING)
        clouds, flags = zip(*model.steps(x, u), strict=True)
        moments = [cloud.moments() for cloud in clouds]
        mean, cov = (torch.stack(part) for part in zip(*moments, strict=True))
        seen = torch.stack(flags)
        there = seen.clone()
        there[:awake] = False
        off = averages(model.errors(x, mean, seen))
        add(0, (mean, cov), truth, off, there)
        origins = _evenly(lead, max(steps - 2, lead), FORECASTS)
        offset = few.draws(0).offset
        drawn = [clouds[int(k)].drawn(few.particles, offset).points for k in origins]
        cloud = Cloud.even(torch.stack(drawn))
        for h in range(1, min(LONGEST, steps - lead - 1) + 1):
            at = (origins + h).clamp_max(steps - 1)
            cloud = few.predicted(cloud, None if u is None else u[at], few.draws(h))
            inside = (origins + h < steps).to(seen.device) & seen[origins]
            add(h, cloud.moments(), truth[at], KEPT**h * off[origins], inside)
        if steps >= WAKING:
            starts = _evenly(0, steps - WAKING, STARTS)
            window = starts.unsqueeze(-1) + torch.arange(WAKING, device="cpu")
            result = few.filtered(x[window], None if u is None else u[window])
            begun = averages(model.errors(x[window], result.mean, result.evidence))
            for k in range(WAKING):
                now = (result.mean[:, k], result.cov[:, k])
                add(k - WAKING, now, truth[window[:, k]], begun[:, k], result.evidence[:, k])
    return rows


def _evenly(first: int, last: int, count: int) -> Tensor:
    """At most so many different whole numbers."""
    step = max((last - first) // count, 1)
    return torch.arange(first, last + 1, step, device="cpu")
