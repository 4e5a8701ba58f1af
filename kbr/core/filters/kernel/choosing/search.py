"""A search over bandwidth scale and ridge that widens itself until the best cell lies inside.

Scales are tried an octave apart. Where the best one is the largest so far, the next octave is
tried, up to a bound; where it is the smallest, half an octave, as small ones are slow to try: they
have a high rank. Last come the half octaves beside the best. The first scale is scored for the
usual ridges, later ones for three around the best; where the best ridge of a scale that leads is
the last of them, further decades are tried with the same factors. A step outwards has to lower the
error by GAIN, one to a smaller bandwidth by NARROWER before the next is tried, and of ridges that
are LEVEL the largest is taken, so that flat scores and luck of the validation block do not carry
the choice away, nor to a slow filter. Each data set searches for itself: those that are done take
no part in later rows.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kbr.core.units.sensors import FUSIONS, Sensors

Bounds = tuple[float, float]
PerDataSet = Float[Tensor, "*b"]
Each = Float[Tensor, "m"]  # a number for each data set
Lams = Float[Tensor, "m l"]
Row = Callable[[Lams], Float[Tensor, "m w l"]]  # errors at lam, for every width
RowOf = Callable[..., Row]  # of some data sets, at a scale; that of controls; with these sensors
Progress = Callable[[Iterable[Any]], Iterable[Any]]  # shows the trials it passes on

START = (2.0, 1.0, 4.0)  # bandwidths of x where the search begins, in medians
SCALE_BOUNDS = (2.0**-6, 2.0**5)  # a kernel that tells all points apart; one that is a line
CONTROL_BOUNDS = (2.0**-4, 2.0**4)  # of the bandwidth of controls
SENSOR_BOUNDS = (0.25, 64.0)  # of a sensor's bandwidth beside the others'; noise gets the widest
PAYS = 0.03  # share of the error by which another one has to lower it: they are many
ETA_BOUNDS = (1e-9, 1.0)  # below, leave-one-out still falls while filters on images grow worse
GAIN = 0.01  # share of the error by which a step outwards has to pay
NARROWER = 0.015  # by which half an octave down has to: its filter has a higher rank,
MANY = 64  # unless x has so many coordinates: then any bandwidth's rank is full
HALF = 0.7  # half an octave down
LEVEL = 0.01  # share by which errors of two ridges may differ and be level
FLAT = 1e-3  # scores of eta that differ by less are level: the larger eta is taken


@dataclass(frozen=True, kw_only=True)
class Space:
    """Where a search begins and how far it may go; without bounds, just the values given."""

    scales: tuple[float, ...]
    lams: tuple[float, ...]
    scale_bounds: Bounds | None = SCALE_BOUNDS
    lam_bounds: Bounds | None = None
    narrower: float = NARROWER

    @property
    def is_one_cell(self) -> bool:
        fixed = self.scale_bounds is None and self.lam_bounds is None
        return fixed and len(self.scales) == len(self.lams) == 1


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A choice at an end of what was allowed: of the list that was given, or of the search."""

    name: str  # scale, lam or eta
    end: str  # lower or upper
    value: float
    count: int  # data sets that chose it
    of: int

    @property
    def setting(self) -> str:
        """The setting that widens it."""
        return f"{self.name}s"

    def __str__(self) -> str:
        return f"{self.name} at the {self.end} edge ({self.value:g}) in {self.count} of {self.of}"


def edges_of(
    name: str, chosen: Tensor, values: Sequence[float], bounds: Bounds | None
) -> tuple[Edge, ...]:
    """Which ends were chosen and how often; a single value is no choice."""
    ends = (min(values), max(values)) if bounds is None else bounds
    if bounds is None and len(values) == 1:
        return ()
    counts = [int((chosen / value - 1).abs().lt(1e-9).sum()) for value in ends]
    return tuple(
        Edge(name=name, end=end, value=value, count=count, of=chosen.numel())
        for end, value, count in zip(("lower", "upper"), ends, counts, strict=True)
        if count
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What is in use for each data set, its validation error, and which edges it lies on."""

    scale_x: PerDataSet
    scale_z: PerDataSet
    lam: PerDataSet
    eta: PerDataSet
    lam_transition: PerDataSet
    val_mse: PerDataSet
    floor: PerDataSet  # of the ratio; NaN: the rule's own
    edges: tuple[Edge, ...] = ()
    scale_u: PerDataSet | None = None  # of the controls' bandwidth, where there are any
    sensors: Sensors | None = None  # with their scales and fusion, where there are any


OTHERS = ("edges", "scale_u", "sensors")  # what only some choices have
CHOICES = tuple(item.name for item in fields(Choice) if item.name not in OTHERS)


@dataclass(frozen=True, eq=False)
class Trial:
    """A row of the search: some data sets at a scale, which has to be better by a share `gain`."""

    members: Int[Tensor, "m"]
    scale: float
    gain: float = 0.0


@dataclass(frozen=True, eq=False)
class Best:
    """The best cell of each data set so far; `width` counts the widths."""

    error: Float[Tensor, "m"]
    scale: Float[Tensor, "m"]
    lam: Float[Tensor, "m"]
    width: Int[Tensor, "m"]

    def take(self, rows: Tensor, other: "Best", gain: float) -> None:
        """What is better by a share `gain` replaces these rows."""
        better = other.error < (1 - gain) * self.error[rows]
        for mine, new in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[rows] = torch.where(better, new, mine[rows])


def search(row_of: RowOf, space: Space, like: Each, progress: Progress | None = None) -> Best:
    """The best scale, width and lam of each of m data sets."""
    best = Best(
        torch.full_like(like, torch.inf),
        torch.full_like(like, space.scales[0]),
        torch.full_like(like, space.lams[0]),
        torch.zeros_like(like, dtype=torch.long),
    )
    trials: Iterable[Trial] = _trials(space, best)
    for trial in trials if progress is None else progress(trials):
        some = trial.members
        row, known = row_of(some, trial.scale), best.error[some]
        lams = like.new_tensor(sorted(space.lams)).expand(len(some), -1)
        if space.lam_bounds is not None and bool(known.isfinite().all()):
            near = (0.1 * best.lam[some], best.lam[some], 10 * best.lam[some])
            lams = torch.stack(near, -1).clamp(*space.lam_bounds)
        best.take(some, _best_of_row(row, lams, space, trial.scale, known), trial.gain)
    return best


def search_controls(row_of: RowOf, best: Best) -> Each:
    """The controls' scale where the others are best: from 1, octave by octave while it pays."""
    everyone = torch.arange(len(best.error), device=best.error.device)
    scale_u = torch.ones_like(best.error)
    for factor in (0.5, 2.0):
        moving = scale_u >= 1  # those that went down do not go up
        while bool(moving.any()):
            tried = torch.where(moving, factor * scale_u, scale_u)
            errors = _finite(row_of(everyone, best.scale, tried)(best.lam.unsqueeze(-1)))
            error = errors.squeeze(-1).gather(-1, best.width.unsqueeze(-1)).squeeze(-1)
            moving = moving & (error < (1 - GAIN) * best.error)
            scale_u = torch.where(moving, tried, scale_u)
            best.error[moving] = error[moving]
            moving = moving & (scale_u > CONTROL_BOUNDS[0]) & (scale_u < CONTROL_BOUNDS[1])
    return scale_u


def search_sensors(
    error: Callable[[Sensors], float], sensors: Sensors, least: float, *, fusion: bool
) -> tuple[Sensors, float]:
    """Each sensor's scale where all else is best, from 1 in steps while they pay.

    First those that tell little go up, then others down. Last, if asked, comes the other `fusion`.
    With the error of the choice.
    """
    every = range(len(sensors.names)) if len(sensors.names) > 1 else ()  # one has the scale of x
    for factor, k in product((4.0, 0.5), every):
        if factor < 1 < sensors.scales[k]:
            continue
        while SENSOR_BOUNDS[0] < sensors.scales[k] < SENSOR_BOUNDS[1]:
            tried = sensors.scaled(k, factor)
            now = error(tried)
            if not now < (1 - PAYS) * least:
                break
            sensors, least = tried, now
    if fusion and len(sensors.names) > 1:
        other = replace(sensors, fusion=next(f for f in FUSIONS if f != sensors.fusion))
        now = error(other)
        if now < (1 - GAIN) * least:
            return other, now
    return sensors, least


def _trials(space: Space, best: Best) -> Iterator[Trial]:
    """The rows to score; each depends on what the rows before it have found."""
    like = best.error
    everyone = torch.arange(len(like), device=like.device)
    first = torch.full_like(like, torch.inf)
    for scale in space.scales:
        yield Trial(everyone, scale)
        if scale == space.scales[0] > min(space.scales):
            first = best.error.clone()
    if space.scale_bounds is None:
        return
    lowest, highest = space.scale_bounds
    pays = (1 - space.narrower) * first  # what a step down must have brought to take another one
    start, high = min(space.scales), torch.full_like(like, max(space.scales))
    low, halved = torch.full_like(like, start), torch.zeros_like(like, dtype=torch.bool)
    while True:
        down = (best.scale == low) & (low > lowest) & (best.error <= pays)
        up = (best.scale == high) & (high < highest) & ~down
        if not bool((down | up).any()):
            break
        lower = torch.where(halved, low / (2 * HALF), HALF * low).clamp_min(lowest)
        low, halved = torch.where(down, lower, low), halved ^ down
        high = torch.where(up, (2 * high).clamp_max(highest), high)
        pays = torch.where(down, (1 - space.narrower) * best.error, pays)
        yield from _by_scale(low, down, 0.0)
        yield from _by_scale(high, up, GAIN)
    middle = best.scale.clone()
    below, above = HALF * middle, 2 * HALF * middle
    fresh = (low == start) | (below > 1.01 * low)
    yield from _by_scale(below, fresh & (below >= lowest), 0.0)
    yield from _by_scale(above, (middle >= start) & (above <= highest), 0.0)


def _by_scale(scale: Each, needed: Bool[Tensor, "m"], gain: float) -> Iterator[Trial]:
    """A trial for each of the scales: a small one has a high rank, and costs the most."""
    for value in sorted(set(scale[needed].tolist())):
        yield Trial((needed & (scale == value)).nonzero().squeeze(-1), value, gain)


def _best_of_row(row: Row, lams: Lams, space: Space, scale: float, known: Each) -> Best:
    """The best width and lam at a scale, with further lams where they may pay."""
    error, width, lam = _least(row, lams)
    best = Best(error, torch.full_like(error, scale), lam, width)
    if space.lam_bounds is None:
        return best
    lowest, highest = space.lam_bounds
    low, high = lams.amin(-1), lams.amax(-1)
    while True:
        leads = best.error.isfinite() & (best.error <= known)
        down = leads & (best.lam == low) & (low > 1.001 * lowest)
        up = leads & (best.lam == high) & (high < highest / 1.001)
        if not bool((down | up).any()):
            return best
        low, high = torch.where(down, 0.1 * low, low), torch.where(up, 10 * high, high)
        low, high = low.clamp_min(lowest), high.clamp_max(highest)
        further = torch.where(down, low, torch.where(up, high, best.lam))
        moved = (down | up).nonzero().squeeze(-1)
        error, width, lam = (part[moved] for part in _least(row, further.unsqueeze(-1)))
        best.take(moved, Best(error, best.scale[moved], lam, width), GAIN)


def _least(row: Row, lam: Lams) -> tuple[Tensor, Tensor, Tensor]:
    """Least error of a row, the width's number and lam; errors that are not finite do not count."""
    errors = _finite(row(lam))
    width = errors.amin(-1).argmin(-1)
    errors = errors.gather(-2, width[:, None, None].expand(-1, 1, lam.shape[-1])).squeeze(-2)
    largest = torch.where(errors <= (1 + LEVEL) * errors.amin(-1, keepdim=True), lam, 0.0)
    index = largest.argmax(-1, keepdim=True)
    return errors.gather(-1, index).squeeze(-1), width, lam.gather(-1, index).squeeze(-1)


def search_ridge(
    score: Callable[[Tensor], PerDataSet], like: PerDataSet, bounds: Bounds
) -> PerDataSet:
    """The ridge of the least score: in steps of a decade and a half, then of half a decade."""
    lower, upper = bounds
    count = round(math.log10(upper / lower) / 1.5)
    steps = [lower * (upper / lower) ** (k / count) for k in range(count)]
    coarse = torch.stack([torch.full_like(like, step) for step in (*steps, upper)])
    scores = _finite(torch.stack([score(eta.unsqueeze(-1)) for eta in coarse]))
    middle = _largest_level(coarse, scores)
    fine = torch.stack([middle * 10.0 ** (k / 2) for k in (-2, -1, 1, 2)]).clamp(lower, upper)
    more = _finite(torch.stack([score(eta.unsqueeze(-1)) for eta in fine]))
    return _largest_level(torch.cat([coarse, fine]), torch.cat([scores, more]))


def _finite(scores: Tensor) -> Tensor:
    return torch.where(scores.isfinite(), scores, torch.inf)


def _largest_level(etas: Float[Tensor, "e *b"], scores: Float[Tensor, "e *b"]) -> Tensor:
    """The largest eta whose score is level with the least one."""
    least = scores.amin(0)
    level = scores <= least + FLAT * least.abs()
    return torch.where(level, etas, torch.zeros_like(etas)).amax(0)
