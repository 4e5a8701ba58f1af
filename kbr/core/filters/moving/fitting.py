"""From training sequences to a model: regressions by leave-one-out, the rest by held-out steps."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.search import Progress
from kbr.core.filters.kernel.choosing.validation import VALIDATION_STEPS, held_out_block
from kbr.core.filters.kernel.novelty import Reach, reach_of
from kbr.core.filters.kernel.operators import transition_pairs
from kbr.core.filters.moving.cloud import Draws
from kbr.core.filters.moving.model import MovingModel, Tempering
from kbr.core.filters.moving.sensing import Sensing, Shows, Tells
from kbr.core.filters.moving.smooth_map import MapChoice, SmoothMap
from kbr.core.filters.sequences import (
    LEAD,
    Piece,
    Sequences,
    blocks_all_over,
    excerpts,
    lengths_outside,
    split,
)

TEMPERS = (1.0, 0.5, 0.25, 0.1)
INFLATIONS = (1.0, 2.0, 4.0)
OUTLIERS = (1e-4, 0.01, 0.1)
JITTERS = (0.0, 0.5)
SENSINGS = (Shows.kind, Tells.kind)
AUTO = "auto"
Kind = tuple[str, float]  # of the sensor, and the jitter of the dynamics
GAIN = 0.05  # share of the error on 200 steps that another setting must take away
TRIED = 200  # points while settings are compared
STEPS = 600  # held-out steps of a long recording
BLOCKS, FEW_BLOCKS = 6, 3  # that these lie in, and of one of less than twice as many rows
MANY = 64  # columns of x above which only what they tell is learned
STARTS = 2000  # training latents that are kept, evenly spaced
FEWEST = 10  # training rows that a sensor must be there in


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Settings of the user: "auto" is chosen."""

    sensing: str = AUTO
    temper: float | str = AUTO
    inflate: float | str = AUTO
    outliers: float | str = AUTO
    jitter: float | str = AUTO
    particles: int = 1000
    restart: float = 1e-5
    seed: int = 0

    def options(self) -> dict[str, tuple[float, ...]]:
        tried = {"temper": TEMPERS, "inflate": INFLATIONS, "outliers": OUTLIERS, "jitter": JITTERS}
        given = {name: getattr(self, name) for name in tried}
        return {k: tried[k] if v == AUTO else (float(v),) for k, v in given.items()}


@dataclass(frozen=True, eq=False)
class Part:
    """A block of rows, a model of the others, and what of the block is filtered by it."""

    block: range
    model: MovingModel
    pieces: list[Piece]


@dataclass(frozen=True, eq=False)
class Choice:
    """The best model, its parts, and its error on held-out rows of standardised latents."""

    model: MovingModel
    parts: list[Part]
    jitter: float
    val_mse: float


@dataclass(frozen=True, eq=False)
class Learner:
    """Fits models to the rows of `data`, all of them or those outside of a block.

    Where x are features of a network, it has learned from the first `seen` rows, which are not held
    out; with `fresh`, they are no rows for the sensor, as their errors are too small. What the
    latent shows is then the first `shown` columns alone.
    """

    data: Sequences
    wanted: Wanted
    seen: int = 0
    fresh: bool = False
    shown: int | None = None

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The groups of columns of x that are there, or absent, together."""
        sensors = self.data.sensors
        width = self.data.observed.shape[-1] if self.shown is None else self.shown
        return (tuple(range(width)),) if sensors is None else sensors.columns

    def sensings(self) -> Sequence[str]:
        if self.wanted.sensing != AUTO:
            return (self.wanted.sensing,)
        if self.data.sensors is not None:
            return (Shows.kind,)
        return SENSINGS if len(self.columns[0]) <= MANY else (Tells.kind,)

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """How far from the training rows an observation may be, for each group of columns."""
        block, found = held_out_block(self.data.lengths), []
        for group in map(list, self.columns):
            rows = self.data.observed[:, group].double()
            there = rows.isfinite().all(-1)
            if int(there.sum()) < FEWEST:
                raise KbrError(
                    f"a sensor needs at least {FEWEST} training rows in which it is there; columns "
                    f"{group} of x have {int(there.sum())}. Leave it out of x, or add rows."
                )
            new = torch.zeros_like(there)
            new[block.start : block.stop] = True
            before, after = rows[there & ~new], rows[there & new]
            found.append(reach_of(torch.cat([before, after]), after, len(before)))
        return tuple(found)

    def model(
        self,
        rest: Sequences,
        kind: Kind,
        *,
        known: MovingModel | None = None,
        dynamics: SmoothMap | None = None,
        sensing: Sensing | None = None,
    ) -> MovingModel:
        """Fitted to these rows; regressions have the settings of a `known` model's, if given."""
        sort, jitter = kind
        starts = torch.linspace(0, len(rest.z) - 1, min(len(rest.z), STARTS)).round().long()
        used = (None, None) if known is None else (known.dynamics.choice, choices_of(known.sensing))
        return MovingModel(
            dynamics or self.dynamics(rest, jitter, used[0]),
            sensing or self.sensing(rest, sort, used[1]),
            rest.z[starts.to(rest.z.device)].double(),
            self.columns,
            self.reaches,
            Tempering(),
            self.wanted.particles,
            self.wanted.restart,
            self.wanted.seed,
        )

    def dynamics(self, rest: Sequences, jitter: float, choice: MapChoice | None) -> SmoothMap:
        """Math: z_t - z_t-1 as a function of (z_t-1, u_t); with jitter j, also of z_t-1 + j sd e.

        Latents may lie on a curve or surface, as angles do. Points that errors carry away from it
        are brought back by dynamics that have seen such points.
        """
        z, (before, after) = rest.z.double(), transition_pairs(rest.lengths)
        moves = split(rest.x, rest.controls)[1]
        start, end = z[before.to(z.device)], z[after.to(z.device)]
        more = [] if moves is None else [moves[after.to(z.device)].to(z)]
        plain = SmoothMap.fit(torch.cat([start, *more], -1), end - start, choice)
        if not jitter:
            return plain
        draws = Draws.of(self.wanted.seed, 0, (len(start), start.shape[-1]), start)
        sd = plain(torch.cat([start, *more], -1))[1]
        away = start + jitter * sd * draws.normal
        # Turn by turn, so that evenly spaced rows are of both.
        begun, ended = (torch.stack(p, 1).flatten(0, 1) for p in ((start, away), (end, end)))
        moved = [part.repeat_interleave(2, 0) for part in more]
        return SmoothMap.fit(torch.cat([begun, *moved], -1), ended - begun, plain.choice)

    def sensing(self, rest: Sequences, kind: str, choices: Sequence[MapChoice] | None) -> Sensing:
        first = self.seen if self.fresh else 0
        x, z = rest.observed[first:].double(), rest.z[first:].double()
        if kind == Shows.kind:
            return Shows.fit(x, z, self.columns, choices)
        return Tells.fit(x, z, z.shape[-1] - rest.rates, choices[0] if choices else None)

    @cached_property
    def whole(self) -> dict[Kind, MovingModel]:
        """Models of all rows, one for each way to learn dynamics and sensor."""
        jitters = self.wanted.options()["jitter"]
        moves = {jitter: self.dynamics(self.data, jitter, None) for jitter in jitters}
        sensed = {kind: self.sensing(self.data, kind, None) for kind in self.sensings()}
        return {
            (kind, jitter): self.model(
                self.data, (kind, jitter), dynamics=moves[jitter], sensing=sensed[kind]
            )
            for kind in sensed
            for jitter in moves
        }

    @cached_property
    def blocks(self) -> list[tuple[range, list[Piece]]]:
        """Blocks of rows all over the recording, and what of each is filtered."""
        lengths = lengths_outside(self.data.lengths, range(self.seen))
        several = BLOCKS if sum(lengths) >= 2 * STEPS else FEW_BLOCKS
        found = []
        for part in blocks_all_over(lengths, several, STEPS // BLOCKS + LEAD):
            block = range(part.start + self.seen, part.stop + self.seen)
            steps = STEPS // BLOCKS if several == BLOCKS else len(block)
            found.append((block, excerpts(self.data, block, steps, [0.5])))
        return found

    def parts(self, kind: Kind) -> list[Part]:
        """Each block with a model of the other rows, whose regressions have known settings."""
        known = self.whole[kind]
        return [
            Part(block, self.model(self.data.outside(block), kind, known=known), pieces)
            for block, pieces in self.blocks
        ]

    def choose(self, progress: Progress | None = None) -> Choice:
        """One setting after the other, by the filter's error on rows that its maps do not know."""
        options, parts = self.wanted.options(), {kind: self.parts(kind) for kind in self.whole}
        kind, least = next(iter(parts)), math.inf
        kept = {name: values[0] for name, values in options.items() if name != "jitter"}
        tempering = Tempering(**kept)
        steps = sum(piece.z.shape[-2] for _, pieces in self.blocks for piece in pieces)
        gain = GAIN * (VALIDATION_STEPS / steps) ** 0.5
        trials: list[tuple[Kind | None, dict[str, float]]] = [(one, {}) for one in parts]
        trials += [(None, {name: v}) for name in kept for v in options[name][1:]]
        for one, change in trials if progress is None else progress(trials):
            trial, changed = one or kind, replace(tempering, **change)
            error = held_out_error(parts[trial], changed, self.data.rates)
            if error < (1 - gain) * least:
                kind, tempering, least = trial, changed, error
        model = self.whole[kind].tempered(tempering)
        tried = [replace(part, model=part.model.tempered(tempering)) for part in parts[kind]]
        return Choice(model, tried, kind[1], least)


def held_out_error(parts: Iterable[Part], tempering: Tempering, rates: int) -> float:
    """Mean squared error of the answered latents, once a filter has found the track."""
    total, steps = 0.0, 0
    for part in parts:
        model = part.model.tempered(tempering, particles=min(TRIED, part.model.particles))
        for piece in part.pieces:
            x, u = split(piece.x, model.controls)
            kept, lead = piece.z.shape[-1] - rates, min(LEAD, len(piece.z) // 2)
            error = (model.filtered(x, u).mean - piece.z)[lead:, :kept]
            total += float(error.square().sum())
            steps += len(error)
    return total / max(steps, 1)


def choices_of(sensing: Sensing) -> tuple[MapChoice, ...]:
    """Settings of the regressions in it."""
    if isinstance(sensing, Shows):
        return tuple(one.choice for one in sensing.maps)
    assert isinstance(sensing, Tells)
    return (sensing.map.choice,)
