"""What `fit` leaves of a kernel Bayes filter, in inner coordinates: all that filtering needs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import Answering, KernelFilterResult
from kbr.core.filters.kernel.building import Builder, latent_tolerance, observation_tolerance
from kbr.core.filters.kernel.choosing.tuning import with_ridges
from kbr.core.filters.kernel.choosing.validation import (
    MINIMUM_STEPS,
    data_outside,
    validation_start,
)
from kbr.core.filters.kernel.correcting.correction import moved
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.dynamics.lift import lift_tolerance
from kbr.core.filters.kernel.engine import LowRank
from kbr.core.filters.kernel.engines.landmarks import landmark_operators, landmark_tolerance
from kbr.core.filters.kernel.engines.large import is_large, large_operators, tuning_part
from kbr.core.filters.kernel.engines.sensors import SensorReach
from kbr.core.filters.kernel.growing.growing import grown
from kbr.core.filters.kernel.novelty import Reach, reach_of
from kbr.core.filters.kernel.run import Ahead, run_filter, run_smoother
from kbr.core.filters.kernel.settings import Settings
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storing.storage import FittedData, together
from kbr.core.filters.lifting import after_one, windows
from kbr.core.filters.result import AXES
from kbr.core.units.units import Units

Latents = Callable[[Tensor], Tensor]  # features of latents


@dataclass(frozen=True, eq=False)
class Fitted:
    """Settings, training data with what was chosen, and the operators built from both.

    `latents` are the features of latents; None where beliefs have no coordinates but weights. `one`
    is the shape of an inner observation, of which `filtered` takes windows.
    """

    settings: Settings
    data: FittedData
    operators: Operators
    latents: Latents | None = None
    one: tuple[int, ...] = field(init=False)
    expected: torch.Size = field(init=False)
    row: tuple[int, ...] = field(init=False)
    lam: Tensor = field(init=False)
    reach: Reach | SensorReach = field(init=False)
    units: Units = field(init=False)
    answering: Answering = field(init=False)

    def __post_init__(self) -> None:
        """What every step asks for, once: shapes, lam, units, what is familiar."""
        data, n = self.data, self.data.basis or self.n
        batch, (x, more) = data.z.shape[:-2], data.observed.tensor_split([n], -2)
        cut = validation_start(n) if n >= MINIMUM_STEPS else n
        reach: Reach | SensorReach
        if data.sensors is not None:
            reach = SensorReach.of(data.sensors, x, cut).joined(more)
        else:
            reach = reach_of(x, x[..., cut:, :], cut).joined(more)
            reach = reach if data.reach is None else replace(reach, limit=data.reach)
        units = Units.none(data.z) if data.units is None else data.units
        one = data.shape
        if data.history > 1:
            one = (one[0] // data.history, *one[1:])
        derived = {
            "one": one,
            "expected": torch.Size((*batch, *one)),
            "row": (*batch, 1, x.shape[-1]),
            "lam": data.choice.lam.unsqueeze(-1),
            "reach": reach,
            "units": units,
            "answering": Answering(units, data.calibration),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def build(cls, settings: Settings, data: FittedData) -> "Fitted":
        """The operators for all training data with the chosen values; eta is chosen if it is not.

        Math: see `Operators`; which of their kinds is a matter of the number of points, and of
        whether the filter is compressed.
        """
        if data.basis is not None:
            return cls.build(settings, data.founding).grown(data)
        scale_u = 1.0 if data.choice.scale_u is None else data.choice.scale_u
        builder = Builder(settings, scale_u=scale_u).floored(data.choice.floor)
        data = replace(data, sensors=data.choice.sensors)
        large = is_large(data.z.shape[-2]) and data.sensors is None
        exact = data if large else replace(data, x=data.x.to(torch.float64))
        builder = builder if large else builder.measured(exact)
        if bool(data.choice.eta.isnan().any()):
            choice = with_ridges(data.choice, *tuning_part(builder, data))
            data = replace(data, choice=choice)
        operators, latents = _operators(builder, exact.observed, data)
        return cls(settings, data, operators, latents)

    @property
    def n(self) -> int:
        return self.data.z.shape[-2]

    @cached_property
    def ahead(self) -> Ahead:
        return Ahead.of(self.operators)

    def changed(self, **parts: Any) -> "Fitted":
        """With other parts of the data that do not touch the operators."""
        return replace(self, data=replace(self.data, **parts))

    @property
    def founding(self) -> "Fitted":
        """What it was before rows were added: see `grown`."""
        return self if self.data.basis is None else Fitted.build(self.settings, self.data.founding)

    def grown(self, data: FittedData) -> "Fitted":
        """The same features and hyper-parameters for these data, which begin with its own."""
        operators, latents = grown(self.operators, self.latents, data)
        return replace(self, data=data, operators=operators, latents=latents)

    def without(self, block: range) -> "Fitted":
        """The same hyper-parameters fitted to the rows outside the block, observations flat."""
        return Fitted.build(self.settings, data_outside(self.data, block))

    def windows(self, x: Tensor) -> Tensor:
        """Observations x [*b *s T ...] with the filter's history; as they are where it has none."""
        if self.data.history == 1:
            return x
        self._lead(x, self.one)
        return windows(x, self.data.history, len(self.one))

    def window(self, recent: Tensor | None, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """The same for one observation [*b ...] after the `recent` ones, and those after it."""
        return after_one(recent, x, self.data.history, len(self.one))

    def filtered(self, x: Tensor, u: Tensor | None = None) -> KernelFilterResult:
        """Inner beliefs at observations x [*b *s T ...], with the controls u [*b *s T du]."""
        if len(several := self.data.apart) > 1:
            self._lead(x, self.data.shape)
            return self._one_by_one(several, x, u)
        query, *flags, sequences = self._sequences(x, u)
        lam = self.lam.expand(query.shape[:-2])
        result = run_filter(self.operators, query, lam, *flags)
        mean = moved(self.data.correction, self.operators, result, x)
        return _reshaped(replace(result, mean=mean), sequences)

    def _one_by_one(
        self, several: Sequence[FittedData], x: Tensor, u: Tensor | None
    ) -> KernelFilterResult:
        """The same of data sets apart, whose coordinates are of features of their own."""
        batch = self.data.z.shape[:-2]
        results = [
            Fitted.build(self.settings, one).filtered(x[at], None if u is None else u[at])
            for one, at in zip(several, product(*map(range, batch)), strict=True)
        ]
        fields: dict[str, Any] = {
            name: together([getattr(one, name) for one in results], batch)
            for name in AXES
            if getattr(results[0], name) is not None
        }
        return KernelFilterResult(**fields)

    def smoothed(self, x: Tensor, u: Tensor | None = None) -> KernelFilterResult:
        """Inner beliefs given the whole of every sequence."""
        query, *flags, sequences = self._sequences(x, u)
        lam, backward = self.lam.expand(query.shape[:-2]), self.data.choice.lam_transition
        past, result = run_smoother(self.operators, query, lam, backward, *flags)
        mean = moved(self.data.correction, self.operators, past, x, result)
        return _reshaped(replace(result, mean=mean), sequences)

    def _sequences(
        self, x: Tensor, u: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
        """Coordinates of rows [*b s t c], which observations are there, are familiar, and s."""
        batch, shape = self.data.z.shape[:-2], self.data.shape
        lead = self._lead(x, shape)
        flat = x.to(self.operators.points).reshape(*batch, -1, lead[-1], math.prod(shape))
        rows, there, familiar = self.known(flat.flatten(-3, -2))
        seen = there.reshape(flat.shape[:-1])
        if u is not None:
            if u.shape[:-1] != lead:
                raise KbrError(
                    f"u must have shape {[*lead, 'du']}, a row for each of x; got {list(u.shape)}."
                )
            moves = u.reshape(*batch, -1, u.shape[-1])
            rows = torch.cat([rows, moves.to(rows)], -1)
        query = self.operators.observe(rows)
        query = query.reshape(*flat.shape[:-1], query.shape[-1])
        return query, seen, familiar.reshape(seen.shape), lead[len(batch) : -1]

    def known(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inner rows [*b q dx] to observe, which of them are there, and which are familiar.

        A row with a missing number is not; of several sensors, one without any of them. What is
        not there is zero, but for the columns of absent or unfamiliar sensors, which are NaN.
        """
        if isinstance(self.reach, SensorReach):
            known = self.reach(rows)
            present = self.reach.sensors.present
            return known, present(rows).any(-1), present(known).any(-1)
        seen = rows.isfinite().all(-1)
        rows = torch.where(seen.unsqueeze(-1), rows, 0.0)
        return rows, seen, self.reach(rows)

    def _lead(self, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes before those of an observation of this shape; others are refused."""
        batch, lead = tuple(self.data.z.shape[:-2]), tuple(x.shape[: x.ndim - len(shape)])
        short = len(lead) < len(batch) + 1
        if short or tuple(x.shape[len(lead) :]) != shape or lead[: len(batch)] != batch:
            raise KbrError(
                f"observations x must have shape {[*batch, '...', 'T', *shape]}, as in training; "
                f"got {list(x.shape)}."
            )
        if lead[-1] == 0:
            raise KbrError("a sequence of observations needs at least one step; got none.")
        return lead


def _operators(builder: Builder, x: Tensor, data: FittedData) -> tuple[Operators, Latents | None]:
    """Operators of the kind that suits the data, and the features of latents."""
    z, choice, rule = data.z, data.choice, builder.rule
    ridges = {"eta": choice.eta, "lam_transition": choice.lam_transition}
    lam = float(choice.lam.min())
    if data.landmarks is None and data.sensors is None and is_large(z.shape[-2]):
        return large_operators(
            builder, data, scales=(choice.scale_x, choice.scale_z), lam=lam, **ridges
        )
    x, tolerance = x.to(torch.float64), builder.tolerances(observation_tolerance(choice.lam))
    if data.landmarks is not None:
        rough = rule.SPARSE  # the other rule's lam is that of a squared operator
        few = landmark_tolerance(lam) if rough else tolerance
        update = builder.update(x, choice.scale_x, few, lam=lam, rough=rough)
        single = {name: float(value) for name, value in ridges.items()}
        return landmark_operators(rule, update, z, data.landmarks, **single)
    update = builder.update(x, choice.scale_x, tolerance, lam=lam)
    update = update.by_feature() if isinstance(update, LowRank) else update
    eta = torch.minimum(choice.eta, choice.lam_transition)
    latents = builder.latents(z, choice.scale_z, builder.tolerances(latent_tolerance(eta)))
    latents = latents.by_feature()
    lift = builder.lift(latents.train, data, lift_tolerance(float(eta.min())))
    operators = builder.operators(update, latents, z, data.lengths, lift=lift, **ridges)
    known = isinstance(rule.ratio, TransitionRatio)
    return operators, None if known else latents


def _reshaped(result: KernelFilterResult, sequences: tuple[int, ...]) -> KernelFilterResult:
    """The axis before time as the caller's sequences."""
    fields = {}
    for name, axis in (*AXES.items(), ("states", -2)):
        value = getattr(result, name)
        if value is not None:
            shape = (*value.shape[: axis - 1], *sequences, *value.shape[axis:])
            fields[name] = value.reshape(shape)
    return KernelFilterResult(**fields)
