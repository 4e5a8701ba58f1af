"""Calibration: covariances and credible regions that hold the share of truths they promise.

How far a filter is off depends on how long ago it last had evidence, and on whether it has just
woken from a long gap. Held-out steps are sorted by that, their horizon: h > 0 is the h-th step
without evidence, 0 an ordinary step, and -3, -2, -1 are the first three with evidence after a long
gap or at the start. Errors, blend and radius are those of each horizon by itself. A filter is also
further off in places that training has not seen: errors grow with the distance from them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.inputs import check_level
from kbr.core.uncertainty.alike import as_if_independent, independent
from kbr.core.uncertainty.growth import Growth, doublings, growth_of, likeliest
from kbr.core.uncertainty.regions import (
    Cov,
    Ellipsoid,
    Mean,
    chi2_quantile,
    squared_mahalanobis,
    widened,
)

BLENDS = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
LEVEL = 0.9
LONGEST = 30  # steps without evidence that are told apart
LONG = 4  # steps without evidence after which a filter has to wake up
WAKING = 3  # steps with evidence that this takes
NEVER = 10**9  # the horizon where there was no evidence yet

Inner = Float[Tensor, "*s j"]  # means in inner coordinates, of which an angle has two
HeldOut = tuple[Tensor, Tensor, Tensor]  # mean [*b t dz], cov [*b t dz dz] and truth [*b t dz]


@dataclass(frozen=True, eq=False)
class Calibration:
    """What held-out errors say about a filter's covariances, for each horizon.

    Math: B_t = (1 - a) C_t + a g_t V,  V the mean outer product of the held-out errors over root g;
          C_t alone may be flat (weights of either sign) and then no factor mends it. The growth g_t
          is one without `growth`, see there. The region of level p is
          {z : |z - m|^2 in B_t^-1 <= s_p}, s_p the ceil((k + 1) p)-th smallest of k held-out
          distances; the calibrated covariance is B_t s_.9 / chi2_.9.
    Ref:  Vovk, Gammerman and Shafer 2005 (conformal prediction); a by profile likelihood.

    Where there is growth, `cov` and `region` need the means in inner coordinates.
    """

    horizons: Float[Tensor, "h"]
    counts: tuple[int, ...]  # held-out steps of each horizon; rows of scores repeat their last one
    blend: Float[Tensor, "*b h"]
    errors: Float[Tensor, "*b h dz dz"]
    scores: Float[Tensor, "*b h k"]
    growth: Growth | None = None
    squares: Float[Tensor, "*b h dz"] | None = None  # mean square errors; None: those of `errors`

    @property
    def rms(self) -> Float[Tensor, "*b h dz"]:
        """Of the held-out errors, each latent by itself."""
        known = self.errors.diagonal(dim1=-2, dim2=-1) if self.squares is None else self.squares
        return known.sqrt()

    @property
    def factor(self) -> Float[Tensor, "*b h"]:
        """What the blended covariance is multiplied by."""
        return self.radius2(LEVEL) / chi2_quantile(LEVEL, self.errors.shape[-1])

    def radius2(self, level: float) -> Float[Tensor, "*b h"]:
        """The squared radius of the region; the largest held-out one where k is too small."""
        check_level(level)
        places = [min(math.ceil((k + 1) * level), k) - 1 for k in self.counts]
        return torch.stack([self.scores[..., row, at] for row, at in enumerate(places)], -1)

    def blended(self, cov: Cov, since: Tensor, inner: Inner | None = None) -> Cov:
        row = self.rows(since)
        a, errors = self._pick(self.blend, row)[..., None, None], self._pick(self.errors, row)
        if self.growth is not None and inner is not None:
            doubling = self._pick(self.growth.doubling, row)
            errors = self.growth.factor(inner, doubling)[..., None, None] * errors
        return (1 - a) * cov + a * errors

    def cov(self, cov: Cov, since: Tensor, inner: Inner | None = None) -> Cov:
        """The calibrated covariance: its Gaussian 90 % region holds 90 % of held-out truths."""
        factor = self._pick(self.factor, self.rows(since))[..., None, None]
        return factor * self.blended(cov, since, inner)

    def region(
        self,
        mean: Mean,
        cov: Cov,
        since: Tensor,
        *,
        inner: Inner | None = None,
        level: float = LEVEL,
    ) -> Ellipsoid:
        """Credible sets of any level, from uncalibrated moments."""
        radius2 = self._pick(self.radius2(level), self.rows(since))
        return Ellipsoid(mean, self.blended(cov, since, inner), radius2)

    def rows(self, since: Tensor) -> Tensor:
        """The rows of the horizons nearest to these times."""
        middles = (self.horizons[1:] + self.horizons[:-1]) / 2
        return torch.bucketize(since.to(middles), middles)

    def never_narrower(self) -> "Calibration":
        """With all regions wider by one factor, so that those of ordinary steps are not narrower
        than the filter itself believes.

        Held-out steps lie between known ones: where they are easier than believed, steps to come
        may not be.
        """
        ordinary = self.factor[..., self.rows(self.horizons.new_zeros(()))]
        wider = (1 / ordinary.clamp_min(torch.finfo(ordinary.dtype).tiny)).clamp_min(1.0)
        return replace(self, scores=self.scores * wider[..., None, None])

    def to(self, device: str | torch.device) -> "Calibration":
        return self._changed(lambda part: part.to(device), "horizons")

    def member(self, index: int) -> "Calibration":
        return self if self.blend.ndim == 1 else self._changed(lambda part: part[index])

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        parts = {**vars(self), "counts": list(self.counts)}
        grown: Growth | None = parts.pop("growth")
        parts |= {} if grown is None else vars(grown)
        return {name: part for name, part in parts.items() if part is not None}

    def _changed(self, change: Callable[[Tensor], Tensor], *more: str) -> "Calibration":
        """With something done to every tensor that each data set has its own of, and to more."""
        names = (*more, "blend", "errors", "scores", "squares")
        parts = {name: getattr(self, name) for name in names}
        made: Any = {name: change(part) for name, part in parts.items() if part is not None}
        return replace(self, growth=self.growth and self.growth.changed(change), **made)

    def _pick(self, value: Float[Tensor, "..."], row: Tensor) -> Tensor:
        """Entries [*b h ...] at rows [*b *s], for each data set its own."""
        batch = self.blend.ndim - 1
        if batch == 0:
            return value[row]
        flat, trailing = row.reshape(*row.shape[:batch], -1), value.shape[batch + 1 :]
        index = flat.reshape(*flat.shape, *(1,) * len(trailing)).expand(*flat.shape, *trailing)
        return value.gather(batch, index).reshape(*row.shape, *trailing)


def calibrate(
    parts: Sequence[HeldOut],
    horizons: Sequence[float] = (0.0,),
    *,
    away: Sequence[Tensor] | None = None,
    places: Float[Tensor, "*b p d"] | None = None,
    blends: Sequence[float] = BLENDS,
    pieces: Sequence[Sequence[int]] | None = None,
) -> Calibration:
    """Fit the calibration to beliefs at held-out steps and the truth there: a part a horizon.

    Horizons without a single held-out step are left out. `away` [*b t] of each part is how far the
    means are from all `places` that the filter knew; with both, errors may grow with it. The blend
    of each horizon is the likeliest of BLENDS, at steps with evidence of `blends`. `pieces` are the
    sizes of the pieces of sequences that a part consists of: their steps err alike, see `alike`;
    without them all steps count as independent.
    """
    every = [None] * len(parts) if away is None else away
    trials = None if places is None else doublings(places)
    kept = [
        (h, _row(*part, far, trials, BLENDS if h > 0 else blends))
        for h, part, far in zip(horizons, parts, every, strict=True)
        if part[0].shape[-2]
    ]
    blended, errors, distances, doubling, squares = zip(*(row for _, row in kept), strict=True)
    counts = tuple(row.shape[-1] for row in distances)
    reach = torch.arange(max(counts), device=errors[0].device)
    ordered = [row.sort(-1).values for row in distances]
    if pieces is not None:
        sizes = [some for some in pieces if sum(some)]
        ordered = [
            as_if_independent(row, independent(one, some))
            for row, one, some in zip(ordered, distances, sizes, strict=True)
        ]
    rows = [row[..., reach.clamp_max(k - 1)] for row, k in zip(ordered, counts, strict=True)]
    return Calibration(
        errors[0].new_tensor([float(h) for h, _ in kept]),
        counts,
        torch.stack(blended, -1),
        torch.stack(errors, -3),
        torch.stack(rows, -2),
        None if places is None else Growth(places, torch.stack(doubling, -1)),
        torch.stack(squares, -2),
    )


Row = tuple[
    Float[Tensor, "*b"],
    Float[Tensor, "*b dz dz"],
    Float[Tensor, "*b t"],
    Float[Tensor, "*b"],
    Float[Tensor, "*b dz"],
]


def _row(
    mean: Float[Tensor, "*b t dz"],
    cov: Float[Tensor, "*b t dz dz"],
    z: Float[Tensor, "*b t dz"],
    away: Float[Tensor, "*b t"] | None,
    trials: Float[Tensor, "k *b"] | None,
    blends: Sequence[float],
) -> Row:
    """Blend, V, distances, doubling of the growth and mean square errors of one horizon."""
    error, doubling = z - mean, torch.full_like(mean[..., 0, 0], torch.inf)
    even, squares = error, error.square().mean(-2)
    grown = torch.ones_like(error[..., 0])
    if away is not None and trials is not None:
        doubling = likeliest(error, away, trials)
        grown = growth_of(away, doubling.unsqueeze(-1))
        even = error / grown.sqrt().unsqueeze(-1)
    errors = widened(even.mT @ even / even.shape[-2])
    a = z.new_tensor(blends).reshape(-1, *(1,) * cov.ndim)
    mixed = (1 - a) * cov + a * grown[..., None, None] * errors.unsqueeze(-3)
    distance = squared_mahalanobis(mean.expand(mixed.shape[:-1]), mixed, z.expand(mixed.shape[:-1]))
    spread = distance.mean(-1).clamp_min(torch.finfo(z.dtype).tiny).log()
    volume = torch.linalg.slogdet(widened(mixed)).logabsdet.mean(-1)
    likelihood = -(volume + z.shape[-1] * spread)
    best = likelihood.nan_to_num(nan=-torch.inf).argmax(0)
    index = best[None, ..., None].expand(1, *distance.shape[1:])
    chosen = distance.gather(0, index).squeeze(0)
    return z.new_tensor(blends)[best], errors, chosen, doubling, squares


def next_horizon(horizon: Tensor, evidence: Tensor) -> Tensor:
    """The horizon after one more step, with or without evidence."""
    if horizon.ndim == 0 and not torch.compiler.is_compiling():  # one stream: no kernels to launch
        now = int(horizon)
        one = _next(now, bool(evidence))
        return horizon if one == now else horizon.new_tensor(one)
    awake = torch.where(horizon > LONG, -WAKING, (horizon + 1).clamp_max(0))
    return torch.where(evidence, awake, horizon.clamp_min(0) + 1)


def _next(horizon: int, evidence: bool) -> int:
    if not evidence:
        return max(horizon, 0) + 1
    return -WAKING if horizon > LONG else min(horizon + 1, 0)


def horizons_of(evidence: Tensor) -> Tensor:
    """The horizon of every step [*s t], from the start of the sequences."""
    if evidence.ndim == 1:
        each = accumulate(evidence.tolist(), _next, initial=NEVER)
        return torch.tensor(list(each)[1:], device=evidence.device)
    now = torch.full(evidence.shape[:-1], NEVER, device=evidence.device)
    horizons = []
    for there in evidence.unbind(-1):
        now = next_horizon(now, there)
        horizons.append(now)
    return torch.stack(horizons, -1)


def bridges_of(evidence: Tensor) -> Tensor:
    """How far every smoothed step is from evidence on both sides [*s t].

    Math: a b / (a + b), a steps after the last and b before the next evidence: the variance of a
          Brownian bridge between them. With evidence on one side alone, the steps to that.
    """
    a = _steps_since(evidence).to(torch.float64)
    b = _steps_since(evidence.flip(-1)).flip(-1).to(torch.float64)
    return torch.where(a + b > 0, a * b / (a + b).clamp_min(1.0), torch.zeros_like(a))


def _steps_since(evidence: Tensor) -> Tensor:
    """Steps since the last evidence; NEVER before the first."""
    time = torch.arange(evidence.shape[-1], device=evidence.device)
    last = torch.where(evidence, time, -1).cummax(-1).values
    return torch.where(last >= 0, time - last, NEVER)
