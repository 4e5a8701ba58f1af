"""Updates with the sensors that are there: an absent one drops out, the others still count.

Each set of sensors has an update of its own, on the training rows that have all of them. What is
absent at random says nothing about the latent, so these rows are a sample of the same latents, and
the rule applies to them as to any: with the product of the kernels of the sensors that are there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.engine import (
    Coordinates,
    Flags,
    Points,
    Query,
    Ridge,
    Update,
    Weights,
    with_more,
)
from kbr.core.filters.kernel.novelty import Reach, reach_of
from kbr.core.filters.kernel.operators import LearnedOperators
from kbr.core.filters.kernel.step import Told
from kbr.core.filters.sequences import split
from kbr.core.kernels import median_distance
from kbr.core.rules import Rule, has_evidence, normalize_ratio, normalized
from kbr.core.units.sensors import Sensors, Set

FEWEST = 10  # training rows without which a sensor is not used
TOGETHER = 40  # rows that have a set of sensors; with fewer, they are taken one after the other
KEPT = 64  # sets of sensors whose updates are kept

Part = tuple[Int[Tensor, "m"], Update]  # training rows, and the update on them


@dataclass(frozen=True, eq=False)
class SensorUpdate:
    """Updates on the columns and rows of the sensors that are there, made when first needed.

    `widths` are what columns are divided by; `build` makes the update of a set on complete rows.
    """

    sensors: Sensors
    x: Float[Tensor, "n dx"]
    widths: Float[Tensor, "dx"]
    build: Callable[[Tensor, Set], Update]
    first: int | None = None  # rows of the fit, where others were added later, and
    lam: float = 0.0  # the least ridge
    there: Bool[Tensor, "n g"] = field(init=False)
    parts: dict[Set, Part] = field(init=False, default_factory=dict)
    name: ClassVar[str] = "sensors"

    def __post_init__(self) -> None:
        object.__setattr__(self, "there", self.sensors.present(self.x))

    def observe(self, x: Points) -> Coordinates:
        """The rows themselves: which columns are NaN says which sensors are absent."""
        return x

    def rows(self, some: Set) -> Int[Tensor, "m"]:
        """Training rows that have all of these sensors."""
        return self.there[:, list(some)].all(-1).nonzero().squeeze(-1)

    def part(self, some: Set) -> Part:
        """The update of these sensors; the one that was made first makes room for another."""
        if some not in self.parts:
            if len(self.parts) >= KEPT:
                del self.parts[next(iter(self.parts))]
            rows = self.rows(some)
            count = len(rows) if self.first is None else int((rows < self.first).sum())
            count = count if count >= FEWEST else len(rows)  # features that stay, or of all
            seen = self._columns(self.x[rows], some)
            update = self.build(seen[:count], some)
            if count < len(rows):
                update = with_more(update, seen[count:], self.lam)
            self.parts[some] = (rows, update)
        return self.parts[some]

    def grown(self, x: Points, *, lam: float) -> "SensorUpdate":
        n, rows = len(self.x), torch.cat([self.x, x.to(self.x)])
        return SensorUpdate(self.sensors, rows, self.widths, self.build, self.first or n, lam)

    def part_weights(
        self, rule: Rule, ratio: Weights, query: Query, lam: Ridge, some: Set
    ) -> Weights:
        """The posterior given these sensors alone, of rows that have them."""
        rows, update = self.part(some)
        seen = update.observe(self._columns(query, some))
        r = normalize_ratio(ratio.index_select(-1, rows))
        weights = update.weights(rule, r, seen, lam)
        return torch.zeros_like(ratio).index_copy(-1, rows, weights)

    def weights(self, rule: Rule, ratio: Weights, query: Query, lam: Ridge) -> Weights:
        """With all sensors of a row together; zero where there are none."""
        weights, lams = torch.zeros_like(ratio), lam.expand(ratio.shape[:-1])
        for where, some in self.sets(query):
            weights[where] = self.part_weights(rule, ratio[where], query[where], lams[where], some)
        return weights

    def sets(self, query: Query) -> Iterator[tuple[Int[Tensor, "k"], Set]]:
        """The rows of the query that have the same sensors, and these; not those that have none.

        Sensors that training has hardly seen do not count.
        """
        used = self.there.sum(0) >= FEWEST
        present = self.sensors.present(query) & used
        kinds, kind = torch.unique(present, dim=0, return_inverse=True)
        for k, flags in enumerate(kinds):
            some = tuple(flags.nonzero().squeeze(-1).tolist())
            if some:
                yield (kind == k).nonzero().squeeze(-1), some

    def turns(self, some: Set) -> list[Set]:
        """Sets to update with, one after the other: all at once, unless training rarely has it."""
        if self.sensors.fusion == "product" and len(self.rows(some)) >= TOGETHER:
            return [some]
        return [(k,) for k in some]

    def _columns(self, x: Tensor, some: Set) -> Tensor:
        columns = self.sensors.of(some)
        return (x[..., columns] / self.widths[columns]).contiguous()


@dataclass(frozen=True, kw_only=True, eq=False)
class SensorOperators(LearnedOperators):
    """Operators whose update takes the sensors of a row together, or one after the other.

    Math: sensors that are independent given z have p(z | x_1, x_2) ~ p(z | x_1) p(x_2 | z): the
          posterior of the one, with its own ratio r = Phi (C_ZZ + eta I)^-1 Phi'w, is the prior of
          the next.
    """

    update: SensorUpdate

    def posterior(
        self, r: Weights, query: Query, lam: Ridge, *conditions: Told
    ) -> tuple[Weights, Ridge, Flags]:
        x, _ = split(query, self.controls)
        weights, lams = torch.zeros_like(r), lam.expand(r.shape[:-1])
        for where, some in self.update.sets(x):
            turns = self.update.turns(some)
            weights[where] = self._in_turn(r[where], x[where], lams[where], turns)
        total = weights.sum(-1)
        usable = has_evidence(weights, total)
        for condition in conditions:
            usable = usable if condition is None else usable & condition
        return weights, total, usable

    def _in_turn(self, r: Weights, x: Query, lam: Ridge, turns: list[Set]) -> Weights:
        """Weights after an update with each of these sets; zero where none was evidence."""
        weights = torch.zeros_like(r)
        for k, some in enumerate(turns):
            new = self.update.part_weights(self.rule, r, x, lam, some)
            total = new.sum(-1)
            usable = has_evidence(new, total)
            weights = normalized(new, total, usable, weights)
            if k + 1 < len(turns):
                after = self.ratio(self.coordinates(weights), lambda w=weights: w)  # type: ignore[misc]
                r = torch.where(usable.unsqueeze(-1), self.rule.effective_ratio(after), r)
        return weights


@dataclass(frozen=True, eq=False)
class SensorReach:
    """For each sensor, what is like its training: see `Reach`. Another one drops out."""

    sensors: Sensors
    parts: tuple[Reach | None, ...]  # None: never seen in training

    @classmethod
    def of(cls, sensors: Sensors, x: Float[Tensor, "n dx"], n_before: int) -> "SensorReach":
        """From training rows; those after the first `n_before` say how far new ones may lie."""
        there, parts = sensors.present(x), []
        for k, columns in enumerate(sensors.columns):
            seen, early = there[:, k], int(there[:n_before, k].sum())
            rows = x[seen][:, list(columns)]
            count = early if early else len(rows)
            parts.append(reach_of(rows, rows[count:], count) if len(rows) else None)
        return cls(sensors, tuple(parts))

    def joined(self, x: Float[Tensor, "n dx"]) -> "SensorReach":
        """With training rows that were added later: see `Reach.joined`."""
        there = self.sensors.present(x)
        parts = [
            reach and reach.joined(x[there[:, k]][:, list(columns)])
            for k, (reach, columns) in enumerate(zip(self.parts, self.sensors.columns, strict=True))
        ]
        return SensorReach(self.sensors, tuple(parts))

    def __call__(self, x: Float[Tensor, "*s dx"]) -> Float[Tensor, "*s dx"]:
        """The rows with NaN in the place of every sensor that is absent or unlike its training."""
        rows = x.reshape(-1, x.shape[-1])
        known = torch.full_like(rows, torch.nan)
        there = self.sensors.present(rows)
        for k, (reach, columns) in enumerate(zip(self.parts, self.sensors.columns, strict=True)):
            at = there[:, k].nonzero().squeeze(-1)
            if reach is None or not len(at):
                continue
            values = rows[at][:, list(columns)]
            at = at[reach(values)]
            known[at.unsqueeze(-1), torch.tensor(columns, device=x.device)] = rows[at][
                :, list(columns)
            ]
        return known.reshape(x.shape)


def sensor_medians(sensors: Sensors, x: Float[Tensor, "n dx"]) -> Float[Tensor, "g"]:
    """The median distance between what each sensor saw in training; 1 where it saw nothing."""
    there = sensors.present(x)
    each = [
        median_distance(x[there[:, k]][:, list(columns)])
        for k, columns in enumerate(sensors.columns)
    ]
    return torch.stack(each)


def check_sensors(sensors: Sensors, x: Float[Tensor, "n dx"]) -> tuple[str, ...]:
    """Notes of sensors that training has hardly seen; none that is there is refused."""
    counts = sensors.present(x).sum(0).tolist()
    rare = [f"{name} ({c})" for name, c in zip(sensors.names, counts, strict=True) if c < FEWEST]
    if len(rare) == len(counts):
        raise KbrError(
            f"every sensor is there in fewer than {FEWEST} training rows: {', '.join(rare)}. A row "
            "has a sensor if none of its columns is missing: correct sensors, or add data."
        )
    return (f"not used, for want of training rows: {', '.join(rare)}",) if rare else ()


def check_named(sensors: Sensors | None, named: Iterable[str]) -> None:
    """An error where kernels are given to sensors that are not there."""
    there = () if sensors is None else sensors.names
    unknown = [name for name in named if name not in there]
    if unknown:
        known = ", ".join(there) or "none: pass sensors=... to fit"
        raise KbrError(
            f"sensor_kernels names {', '.join(map(repr, unknown))}, which is no sensor; there are "
            f"{known}. Correct sensor_kernels."
        )
