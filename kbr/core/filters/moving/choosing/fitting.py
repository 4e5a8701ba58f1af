"""From training sequences to a model: regressions by blocks left out, the rest by held-out rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import torch

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.search import Progress
from kbr.core.filters.kernel.choosing.validation import held_out_block
from kbr.core.filters.kernel.novelty import Reach, reach_of
from kbr.core.filters.kernel.operators import transition_pairs
from kbr.core.filters.moving.choosing.scoring import HeldOut, Part, held_out
from kbr.core.filters.moving.cloud import Draws
from kbr.core.filters.moving.lasting import places_of
from kbr.core.filters.moving.model import MovingModel, Tempering
from kbr.core.filters.moving.sensing import Sensing, Shows, Tells
from kbr.core.filters.moving.smooth_map import MapChoice, SmoothMap
from kbr.core.filters.sequences import (
    LEAD,
    Piece,
    Sequences,
    beginnings,
    blocks_all_over,
    excerpts,
    lengths_outside,
    split,
    whole_sequences,
)

TEMPERS = (1.0, 0.5, 0.25, 0.1)
INFLATIONS = (1.0, 2.0, 4.0)
OUTLIERS = (1e-4, 0.01, 0.1)
JITTERS = (0.0, 0.5)
LASTING = (1.0, 0.0)
SENSINGS = (Shows.kind, Tells.kind)
AUTO = "auto"
Kind = tuple[str, float]  # of the sensor, and the jitter of the dynamics
STEPS = 600  # held-out steps of a long recording
BLOCKS, FEW_BLOCKS = 6, 3  # that these lie in, and of one of less than twice as many rows
MANY = 64  # columns of x above which only what they tell is learned
STARTS = 2000  # training latents that are kept, evenly spaced
TOGETHER = 4  # whole sequences at least that are held out together, where there are many
FROM_START = 200  # held-out steps of each, from its start
FEWEST = 10  # training rows, and those that a sensor must be there in


@dataclass(frozen=True, kw_only=True)
class MovingSettings:
    """Settings of the user: "auto" is chosen."""

    sensing: str = AUTO
    temper: float | str = AUTO
    inflate: float | str = AUTO
    outliers: float | str = AUTO
    lasting: float | str = AUTO
    jitter: float | str = AUTO
    particles: int = 1000
    restart: float = 1e-5
    seed: int = 0

    def options(self) -> dict[str, tuple[float, ...]]:
        tried = {
            "temper": TEMPERS,
            "inflate": INFLATIONS,
            "outliers": OUTLIERS,
            "lasting": LASTING,
            "jitter": JITTERS,
        }
        given = {name: getattr(self, name) for name in tried}
        return {k: tried[k] if v == AUTO else (float(v),) for k, v in given.items()}


@dataclass(frozen=True, eq=False)
class Choice:
    """The best model, its parts, and its squared error at held-out steps, latents standardised."""

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
    wanted: MovingSettings
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

    def models(
        self, rest: Sequences, known: Mapping[Kind, MovingModel] | None = None
    ) -> dict[Kind, MovingModel]:
        """Fitted to these rows, for each way to learn dynamics and sensor.

        Regressions have the settings of `known` models', if given.
        """
        n, device = len(rest.z), rest.z.device
        starts = torch.linspace(0, n - 1, min(n, STARTS), device=device).round().long()
        reaches, before = self.reaches, known or {}  # first: this refuses sensors never there
        kinds = list(product(self.sensings(), self.wanted.options()["jitter"]))
        found: dict[Kind, MovingModel] = {}
        moves: dict[float, SmoothMap] = {}
        sensed: dict[str, Sensing] = {}
        for kind in kinds:
            sort, jitter = kind
            old = before.get(kind)
            if jitter not in moves:
                choice = None if old is None else old.dynamics.choice
                moves[jitter] = self.dynamics(rest, jitter, choice)
            if sort not in sensed:
                sensed[sort] = self.sensing(rest, sort, None if old is None else old.sensing)
            found[kind] = MovingModel(
                moves[jitter],
                sensed[sort],
                rest.z[starts].double(),
                self.columns,
                reaches,
                Tempering(),
                self.wanted.particles,
                self.wanted.restart,
                self.wanted.seed,
            )
        return found

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
        sd = plain(torch.cat([start, *more], -1), doubt=False)[1]
        away = start + jitter * sd * draws.normal
        # Turn by turn, so that evenly spaced rows are of both.
        begun, ended = (torch.stack(p, 1).flatten(0, 1) for p in ((start, away), (end, end)))
        moved = [part.repeat_interleave(2, 0) for part in more]
        inputs = torch.cat([begun, *moved], -1)
        return SmoothMap.fit(inputs, ended - begun, plain.choice)

    def sensing(self, rest: Sequences, kind: str, known: Sensing | None) -> Sensing:
        first = self.seen if self.fresh else 0
        x, z = rest.observed[first:].double(), rest.z[first:].double()
        if kind == Shows.kind:
            places = places_of(rest.lengths, z)[first:]
            maps = known.maps if isinstance(known, Shows) else None
            return Shows.fit(x, z, self.columns, maps, places)
        told = known.map if isinstance(known, Tells) else None
        return Tells.fit(x, z, z.shape[-1] - rest.rates, None if told is None else told.choice)

    @cached_property
    def blocks(self) -> list[tuple[range, list[Piece]]]:
        """Blocks of rows all over the recording, and what of each is filtered."""
        lengths, size = lengths_outside(self.data.lengths, range(self.seen)), STEPS // BLOCKS
        if parts := whole_sequences(lengths, BLOCKS, TOGETHER, size + LEAD):
            blocks = [range(part.start + self.seen, part.stop + self.seen) for part in parts]
            return [(block, beginnings(self.data, block, FROM_START)) for block in blocks]
        several = BLOCKS if sum(lengths) >= 2 * STEPS else FEW_BLOCKS
        found = []
        for part in blocks_all_over(lengths, several, size + LEAD):
            block = range(part.start + self.seen, part.stop + self.seen)
            steps = size if several == BLOCKS else len(block)
            found.append((block, excerpts(self.data, block, steps, [0.5])))
        return found

    @cached_property
    def whole(self) -> dict[Kind, MovingModel]:
        """Models of all rows."""
        return self.models(self.data)

    @cached_property
    def parts(self) -> dict[Kind, list[Part]]:
        """Each block with models of the other rows, whose regressions have known settings."""
        found: dict[Kind, list[Part]] = {kind: [] for kind in self.whole}
        for block, pieces in self.blocks:
            for kind, model in self.models(self.data.outside(block), self.whole).items():
                found[kind].append(Part(block, model, pieces))
        return found

    def sensor_options(self, kind: Kind) -> list[list[dict[str, float]]]:
        """Errors that last are either remembered, or all evidence is given less weight."""
        options = self.wanted.options()
        lasts = bool(self.whole[kind].sensing.lasting.any())
        none = options["lasting"][-1:]  # what was given, else zero: nothing lasts
        factors = options["lasting"] if lasts else none
        found = []
        for factor in factors:
            one_of_two = lasts and factor and len(factors) > 1
            tempers = options["temper"][:1] if one_of_two else options["temper"]
            found.append([{"lasting": factor, "temper": temper} for temper in tempers])
        return found

    def choose(self, progress: Progress | None = None) -> Choice:
        """By how likely the filter's beliefs make the truth at rows that its maps do not know.

        First the kind, and what mends a sensor whose errors last, together: the one may mend the
        other's faults; then one setting after the other. Values of one setting are tried side by
        side. What the latent shows stays, unless what x tells is surely better.
        """
        options, parts = self.wanted.options(), self.parts
        kind: Kind = next(iter(parts))
        least: HeldOut | None = None
        kept = {name: values[0] for name, values in options.items() if name != "jitter"}
        tempering = Tempering(**kept)
        trials: list[tuple[Kind | None, list[dict[str, float]]]] = [
            (one, changes) for one in parts for changes in self.sensor_options(one)
        ]
        for name in ("inflate", "outliers"):
            if others := [{name: value} for value in options[name][1:]]:
                trials.append((None, others))
        for one, changes in trials if progress is None else progress(trials):
            trial, changed = one or kind, [replace(tempering, **change) for change in changes]
            found = held_out(parts[trial], changed, self.data.rates)
            for setting, result in zip(changed, found, strict=True):
                another = trial[0] != kind[0]
                if least is None or result.better_than(least, sure=another):
                    kind, tempering, least = trial, setting, result
        tried = [replace(part, model=part.model.tempered(tempering)) for part in parts[kind]]
        assert least is not None
        return Choice(self.whole[kind].tempered(tempering), tried, kind[1], least.mse)
