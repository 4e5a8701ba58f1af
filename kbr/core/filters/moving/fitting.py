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
from kbr.core.filters.moving.model import MovingModel, Tempering
from kbr.core.filters.moving.sensing import Sensing, Shows, Tells
from kbr.core.filters.moving.smooth_map import MapChoice, SmoothMap
from kbr.core.filters.sequences import (
    ALL_OVER,
    LEAD,
    Piece,
    Sequences,
    blocks_all_over,
    excerpts,
    split,
)

TEMPERS = (1.0, 0.5, 0.25, 0.1)
INFLATIONS = (1.0, 2.0, 4.0)
OUTLIERS = (1e-4, 0.01, 0.1)
SENSINGS = (Shows.kind, Tells.kind)
AUTO = "auto"
GAIN = 0.05  # share of the error on 200 steps that another setting must take away
TRIED = 200  # points while settings are compared
STEPS = 600  # held-out steps of a long recording
BLOCKS, FEW_BLOCKS = 6, 3  # that these lie in, and of one of less than twice as many rows
MANY = 64  # columns of x above which only what they tell is learned
STARTS = 2000  # training latents that are kept, evenly spaced
FEWEST = 10  # training rows, and those that a sensor must be there in


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Settings of the user: "auto" is chosen."""

    sensing: str = AUTO
    temper: float | str = AUTO
    inflate: float | str = AUTO
    outliers: float | str = AUTO
    particles: int = 1000
    restart: float = 1e-5
    seed: int = 0

    def options(self) -> dict[str, tuple[float, ...]]:
        tried = {"temper": TEMPERS, "inflate": INFLATIONS, "outliers": OUTLIERS}
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
    val_mse: float


@dataclass(frozen=True, eq=False)
class Learner:
    """Fits models to the rows of `data`, all of them or those outside of a block."""

    data: Sequences
    wanted: Wanted
    told: Tells | None = None  # where rows are a network's readout already

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The groups of columns of x that are there, or absent, together."""
        sensors = self.data.sensors
        width = self.data.observed.shape[-1]
        return (tuple(range(width)),) if sensors is None else sensors.columns

    def sensings(self) -> Sequence[str]:
        if self.told is not None:
            return (Tells.kind,)
        if self.wanted.sensing != AUTO:
            return (self.wanted.sensing,)
        if self.data.sensors is not None:
            return (Shows.kind,)
        return SENSINGS if self.data.observed.shape[-1] <= MANY else (Tells.kind,)

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """How far from the training rows an observation may be, for each group of columns."""
        block, found = held_out_block(self.data.lengths), []
        sensors = self.data.sensors
        names = ("x",) if sensors is None else sensors.names
        for name, group in zip(names, map(list, self.columns), strict=True):
            rows = self.data.observed[:, group].double()
            there = rows.isfinite().all(-1)
            if int(there.sum()) < FEWEST:
                raise KbrError(
                    f"a sensor needs at least {FEWEST} training rows in which it is there; "
                    f"'{name}' has {int(there.sum())}. Leave it out of x, or add rows."
                )
            new = torch.zeros_like(there)
            new[block.start : block.stop] = True
            before, after = rows[there & ~new], rows[there & new]
            if not len(before):  # it came late: nothing says how far from others a row may lie
                before, after = after, before
            found.append(reach_of(torch.cat([before, after]), after, len(before)))
        return tuple(found)

    def model(
        self,
        rest: Sequences,
        sensing: str,
        tempering: Tempering,
        *,
        known: MovingModel | None = None,
        dynamics: SmoothMap | None = None,
    ) -> MovingModel:
        """Fitted to these rows; regressions have the settings of a `known` model's, if given."""
        n, device = len(rest.z), rest.z.device
        starts = torch.linspace(0, n - 1, min(n, STARTS), device=device).round().long()
        reaches = self.reaches  # first: this refuses sensors that are never there
        return MovingModel(
            dynamics or self.dynamics(rest, None if known is None else known.dynamics.choice),
            self.sensing(rest, sensing, None if known is None else known.sensing),
            rest.z[starts].double(),
            self.columns,
            reaches,
            tempering,
            self.wanted.particles,
            self.wanted.restart,
            self.wanted.seed,
        )

    def dynamics(self, rest: Sequences, choice: MapChoice | None) -> SmoothMap:
        """Math: z_t - z_t-1 as a function of (z_t-1, u_t)."""
        z, (before, after) = rest.z.double(), transition_pairs(rest.lengths)
        moves = split(rest.x, rest.controls)[1]
        start = z[before.to(z.device)]
        inputs = start if moves is None else torch.cat([start, moves[after].to(start)], -1)
        return SmoothMap.fit(inputs, z[after.to(z.device)] - start, choice)

    def sensing(self, rest: Sequences, kind: str, known: Sensing | None) -> Sensing:
        if self.told is not None:
            return self.told
        x, z = rest.observed.double(), rest.z.double()
        if kind == Shows.kind:
            maps = known.maps if isinstance(known, Shows) else None
            return Shows.fit(x, z, self.columns, maps)
        told = known.map if isinstance(known, Tells) else None
        return Tells.fit(x, z, z.shape[-1] - rest.rates, None if told is None else told.choice)

    @cached_property
    def whole(self) -> dict[str, MovingModel]:
        """Models of all rows, one for each way to learn the sensor."""
        kinds, dynamics = self.sensings(), self.dynamics(self.data, None)
        return {kind: self.model(self.data, kind, Tempering(), dynamics=dynamics) for kind in kinds}

    def parts(self, kind: str) -> list[Part]:
        """Blocks of rows, each with a model of the others, whose regressions have known settings.

        Of one recording, blocks all over it; of a readout, the rows that its network has not seen.
        """
        n, lengths, known = len(self.data.z), self.data.lengths, self.whole[kind]
        several = BLOCKS if n >= 2 * STEPS else FEW_BLOCKS
        blocks, places = blocks_all_over(lengths, several, STEPS // BLOCKS + LEAD), [0.5]
        if self.told is not None:
            blocks, places = [held_out_block(lengths)], list(ALL_OVER)
        found = []
        for block in blocks:
            model = self.model(self.data.outside(block), kind, Tempering(), known=known)
            steps = STEPS // len(blocks) if n >= 2 * STEPS else len(block)
            found.append(Part(block, model, excerpts(self.data, block, steps, places)))
        return found

    def choose(self, progress: Progress | None = None) -> Choice:
        """One setting after the other, by the filter's error on rows that its maps do not know."""
        options, parts = self.wanted.options(), {kind: self.parts(kind) for kind in self.whole}
        kind, least = next(iter(parts)), math.inf
        tempering = Tempering(**{name: values[0] for name, values in options.items()})
        steps = sum(piece.z.shape[-2] for part in parts[kind] for piece in part.pieces)
        gain = GAIN * (VALIDATION_STEPS / steps) ** 0.5
        trials = [(sort, "temper", value) for sort in parts for value in options["temper"]]
        trials += [("", k, v) for k in ("inflate", "outliers") for v in options[k][1:]]
        for sort, name, value in trials if progress is None else progress(trials):
            trial, changed = sort or kind, replace(tempering, **{name: value})
            error = held_out_error(parts[trial], changed, self.data.rates)
            if error < (1 - gain) * least:
                kind, tempering, least = trial, changed, error
        model = self.whole[kind].tempered(tempering)
        tried = [replace(part, model=part.model.tempered(tempering)) for part in parts[kind]]
        return Choice(model, tried, least)


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
