"""What every fitted filter does alike: units in and out, calibrated covariances, streaming.

A subclass filters in inner coordinates; this class stands between it and the user's numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import Answering, Belief
from kbr.core.filters.conventions import Conventions
from kbr.core.filters.result import AXES, FilterResult, joined
from kbr.core.filters.training_data import TrainingData, training_data
from kbr.core.inputs import ArrayLike
from kbr.core.io.file_rows import FileRows
from kbr.core.showing.progress import bar_of
from kbr.core.showing.scoring import truth_like
from kbr.core.showing.summary import Summary, summary_of
from kbr.core.uncertainty.adaptive import RATE, stretched, stretches
from kbr.core.uncertainty.calibration import NEVER, Calibration, bridges_of, horizons_of
from kbr.core.uncertainty.regions import Ellipsoid, credible_region
from kbr.core.units.columns import is_table, names_of
from kbr.core.units.layout import has_parts
from kbr.core.units.outside import Outside
from kbr.core.units.places import Place, moments
from kbr.core.units.sensors import Wanted
from kbr.core.units.training_range import outside_of
from kbr.core.units.units import Units

Trainable = TypeVar("Trainable", bound="TrainableFilter")


class BaseFilter(Conventions, ABC):
    """`filter`, `smooth`, `init`, `step`, `forecast` and regions, in the units of the data."""

    takes_files: ClassVar[bool] = False  # whether observations may stay in their file
    takes_controls: ClassVar[bool] = False  # whether control inputs may move the latent
    takes_sensors: ClassVar[bool] = False  # whether groups of columns may be absent by themselves
    seconds: float | None = None  # that the last fit took; files do not keep it

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self) and not name.startswith("_") and name in self.get_params(deep=False):
            self.keep_settings()
        object.__setattr__(self, name, value)

    @property
    @abstractmethod
    def units(self) -> Units:
        """Names, scaling and angles of x and z, as the training data had them."""

    @property
    @abstractmethod
    def calibration(self) -> Calibration | None:
        """What held-out steps say about the covariances; None where there were too few."""

    @property
    def smoothing_calibration(self) -> Calibration | None:
        """The same for smoothed beliefs."""
        raise NotImplementedError

    @abstractmethod
    def _filtered(self, x: Any, *u: Tensor) -> FilterResult:
        """Beliefs in inner coordinates, at observations in inner coordinates [*b *s T ...].

        Controls u [*b *s T du] follow where the filter was fitted with some; so also below.
        """

    def _smoothed(self, x: Any, *u: Tensor) -> FilterResult:
        raise KbrError(f"{type(self).__name__} has no smoother. Use filter(x).")

    @abstractmethod
    def _start(self, prior: Any) -> Belief:
        """The belief before any observation."""

    @abstractmethod
    def _stepped(self, belief: Any, x: Any, *u: Tensor) -> Belief:
        """The belief after one more observation [*b ...] in inner coordinates."""

    @abstractmethod
    def _ahead(self, belief: Any, steps: int, *u: Tensor) -> Belief:
        """The belief so many steps ahead, moved by u [*b steps du]."""

    def _answers(self, x: Any, u: Any, time: Any) -> FilterResult:
        return self.filter(x, u=u, time=time)

    def filter(
        self,
        x: Any,
        *,
        u: Any = None,
        time: Any = None,
        truth: ArrayLike | None = None,
        adapt: bool = False,
        delay: int = 1,
    ) -> FilterResult:
        """Beliefs at every step of x [*b *s T ...]; rows with NaN are missing and are predicted.

        x is an array, or a table (DataFrame, mapping) whose columns are found by name, in any order
        and among others; frames are its entry 'x'. Where the table has the columns of sequences or
        time, each sequence is entered without memory, and so is what follows a gap; `time` [T] may
        also be passed by itself.

        u [*b *s T du] are control inputs, of a filter that was fitted with some: row t holds what
        moved the latent from t - 1 to t, so the first row's is not used. In a table x they are
        found by name. They cannot be missing elsewhere.

        With `adapt`, covariances follow the errors that `truth` [*b *s T dz] shows `delay` steps
        later (NaN: not known).
        """
        pieces, order, outside = self._pieces(x, u, time)
        answers = [self._answer(self._filtered(*rows), horizons_of) for rows in pieces]
        result = replace(joined(answers, order), outside=outside)
        if not adapt:
            return result
        if truth is None:
            raise KbrError("adapt=True learns from truths that arrive later: pass truth=z.")
        return self._adapted(result, truth, delay)

    def smooth(self, x: Any, *, u: Any = None, time: Any = None) -> FilterResult:
        """Beliefs at every step given the whole sequence, past and future; u and time as above."""
        pieces, order, outside = self._pieces(x, u, time)
        answers = [self._answer(self._smoothed(*rows), bridges_of) for rows in pieces]
        return replace(joined(answers, order), outside=outside)

    def init(self, prior: Any = None) -> Belief:
        """The belief before any observation: every training latent equally likely.

        `prior` is another one: samples [m, dz] in the units of z, or an `Embedding` of such.
        """
        return self._start(prior)

    def step(self, belief: Any, x: Any, *, u: Any = None, time: Any = None) -> Any:
        """The belief after one more observation x [*b ...]; NaN in x: a prediction only.

        x may be a row with named columns; where it states another sequence than the last row, or
        a time after a gap, the belief starts anew. u [*b du] is the control input that moved the
        latent here from the step before; a sequence's first step needs none.
        """
        units, stated = self.units, time is not None or is_table(x)
        place = units.place(x, time) if stated else belief.place
        if stated and belief.steps and units.starts_anew(belief.place, place):
            belief = replace(self.init(), stretch=belief.stretch)
        moves: tuple[Tensor, ...] = ()
        if belief.steps or units.u is None:
            dt = _between(belief.place, place) if stated else None
            control = units.controls(x, u, dt)
            moves = () if control is None else (control,)
        after = self._stepped(belief, units.observations(x), *moves)
        return replace(after, place=place) if stated else after

    def forecast(
        self,
        belief: Any,
        steps: int | None = None,
        *,
        u: Any = None,
        time: Any = None,
        path: bool = False,
    ) -> Any:
        """The belief `steps` ahead (one, unless u or time say more), with no observation between.

        With `path`, the beliefs at all of these steps, as a `FilterResult`. Where control inputs
        move the latent, u [*b steps du] are those of the steps to come; where the step of time is
        an input, `time` [steps] are their times.
        """
        units, place, dt = self.units, belief.place, None
        rows = [_count(value) for value in (u, time) if value is not None]
        steps = (rows or [1])[0] if steps is None else steps
        if steps < 1:
            raise KbrError(f"steps must be at least 1; got {steps}.")
        if any(count != steps for count in rows):
            raise KbrError(f"u and time need one row for each of {steps} step(s); got {rows}.")
        if time is not None:
            stamps = moments(time, units.source.get("dates"))
            place = (place[0], stamps[-1].item())
            dt = np.diff(stamps, prepend=np.nan if belief.place[1] is None else belief.place[1])
            if not (dt[belief.place[1] is None :] > 0).all():
                raise KbrError("time must grow from step to step, and from the belief's own time.")
        control = units.controls(None, u, dt, [] if belief.steps else [0])
        moves = () if control is None else (control,)
        if path:
            return self._path(belief, steps, *moves)
        ahead = self._ahead(belief, steps, *moves)
        return replace(ahead, place=place) if time is not None else ahead

    def _path(self, belief: Any, steps: int, *u: Tensor) -> FilterResult:
        """The beliefs at each of the steps to come."""
        beliefs = []
        for step in range(steps):
            now = (part.unsqueeze(0) if part.ndim == 1 else part for part in u)
            belief = self._ahead(belief, 1, *(part[..., step : step + 1, :] for part in now))
            beliefs.append(belief)

        def along(name: str, axis: int) -> Any:
            return torch.stack([getattr(each, name) for each in beliefs], axis)

        axes = {name: axis for name, axis in AXES.items() if name != "effective_sample_size"}
        for name in ("stretch", "surprise"):
            if getattr(belief, name) is None:
                del axes[name]
        parts = {name: along(name, axis) for name, axis in axes.items()}
        return FilterResult(**parts, units=self.units)

    def summary(self) -> Summary:
        """What was learned and chosen, in a table: print it, or read its fields."""
        facts = {"seconds": self.seconds, **self._facts()}
        return summary_of(type(self).__name__, self.units, self.calibration, facts)

    def _facts(self) -> dict[str, Any]:
        """What a filter of its kind adds to the summary: fields of `Summary`."""
        return {}

    def adapt(self, belief: Any, truth: ArrayLike, *, of: Any = None, rate: float = RATE) -> Any:
        """The belief with error bars that have learned from a truth, of `belief` or one before it.

        Call it when the truth arrives: `belief = filt.adapt(belief, z, of=belief_of_that_step)`.
        """
        then = belief if of is None else of
        z = truth_like(truth, then.mean, self.units)
        missed = self.credible_region(then).contains(z).logical_not()
        now = torch.ones_like(missed, dtype=z.dtype) if belief.stretch is None else belief.stretch
        fresh = torch.where(z.isfinite().all(-1), stretched(now, missed, rate), now)
        return replace(belief, stretch=fresh)

    def credible_region(self, belief: Any, *, level: float = 0.9) -> Ellipsoid:
        """Credible sets of a belief or a result: `level` of the held-out truths lay in theirs."""
        calibration = self._calibration_of(belief)
        if calibration is None:
            region = credible_region(belief.mean, belief.cov, level=level)
        else:
            inner = None if calibration.growth is None else self.units.z.apply(belief.mean)
            moments = (belief.mean, belief.raw_cov, belief.since)
            region = calibration.region(*moments, inner=inner, level=level)
        for factor in (belief.stretch, belief.surprise):
            if factor is not None:
                region = replace(region, radius2=region.radius2 * factor)
        return region

    def calibrated(self, result: FilterResult) -> FilterResult:
        """The result as it is: its covariances are calibrated already."""
        return result

    def save(self, path: Any) -> None:
        raise NotImplementedError

    def _check_taken(
        self, x: Any, u: Any, time_steps: str, sensors: Wanted, units: Units | None
    ) -> None:
        """An error where the filter does not take what `fit` was given."""
        parted = sensors is not None or (units is not None and units.sensors is not None)
        if has_parts(x) and not self.takes_sensors:
            raise KbrError(
                f"{type(self).__name__} takes columns, or frames; not both side by side, as "
                "KernelBayesFilter does. Leave some out of x."
            )
        if parted and not self.takes_sensors:
            raise KbrError(
                f"{type(self).__name__} knows no absent sensors; KernelBayesFilter does. Leave "
                "sensors out."
            )
        if not self.takes_controls and (u is not None or time_steps != "equal"):
            raise KbrError(
                f"{type(self).__name__} takes no control inputs u and no steps of time as input; "
                "KernelBayesFilter does. Else put them among the columns of x."
            )

    def _calibration_of(self, belief: Any) -> Calibration | None:
        smoothed = isinstance(belief, FilterResult) and belief.since is not None
        if smoothed and belief.since.is_floating_point():  # both sides count: a smoothed result
            return self.smoothing_calibration
        return self.calibration

    def _answering(self) -> Answering:
        return Answering(self.units, self.calibration)

    def _answer(self, inner: FilterResult, horizon: Any) -> FilterResult:
        """Inner beliefs as the user sees them."""
        filtered = horizon is horizons_of
        known = self.calibration if filtered else self.smoothing_calibration
        answering, since = Answering(self.units, known), horizon(inner.evidence)
        mean, raw = answering.raw(inner.mean, inner.cov)
        cov = answering.calibrated(mean, raw, since, inner.surprise)
        return replace(inner, mean=mean, cov=cov, raw_cov=raw, since=since, units=self.units)

    def _pieces(
        self, x: Any, u: Any, time: Any
    ) -> tuple[list[tuple[Any, ...]], Tensor | None, Outside | None]:
        """Observations in inner coordinates, with controls: one sequence, or those of a table.

        With several, also the order that brings their rows back to that of the table. Last, which
        columns of x and u leave the training range.
        """
        inner, units = self.units.observations(x), self.units
        if isinstance(inner, FileRows) and not self.takes_files:
            inner = inner.read(np.float64)
        rows, steps = [np.zeros(1, dtype=np.int64)], None
        if is_table(x) or time is not None:
            rows, stamps = units.sequences(x, len(inner), time)
            if stamps is not None:
                steps = np.full(len(inner), np.nan)
                for some in rows:
                    steps[some[1:]] = np.diff(stamps[some])
        starts = [int(some[0]) for some in rows]
        control, outside = (
            units.controls(x, u, steps, starts),
            outside_of(units, x, u, steps, starts),
        )
        if control is not None and control.ndim == 1:
            control = control.unsqueeze(0)
        whole = (inner,) if control is None else (inner, control)
        if len(rows) == 1:
            return [whole], None, outside
        order = torch.from_numpy(np.argsort(np.concatenate(rows), kind="stable"))
        return [tuple(_part(table, some) for table in whole) for some in rows], order, outside

    def _adapted(self, result: FilterResult, truth: ArrayLike, delay: int) -> FilterResult:
        if delay < 1:
            raise KbrError(f"delay must be at least 1 step; got {delay}.")
        z = truth_like(truth, result.mean, self.units)
        region = self.credible_region(result)
        stretch = stretches(region.distance(z) / region.radius2, delay=delay)
        return replace(result, cov=result.cov * stretch[..., None, None], stretch=stretch)


class TrainableFilter(BaseFilter):
    """A filter that learns from training sequences in the user's units."""

    @property
    @abstractmethod
    def standardized(self) -> tuple[bool, bool]:
        """Whether x and z are standardised."""

    def _lifted(self, data: TrainingData) -> TrainingData:
        """The data with what the filter adds to rows: their history, rates of z."""
        return data

    @abstractmethod
    def _learn(self, data: TrainingData, progress: Any) -> None:
        """Fit to sequences in inner coordinates."""

    def fit(
        self: Trainable,
        x: Any,
        z: Any,
        *,
        u: Any = None,
        time: Any = None,
        time_steps: str = "equal",
        circular: Sequence[str] | str = (),
        angle_unit: str = "degrees",
        sensors: Wanted = None,
        units: Units | None = None,
        progress: Any = None,
    ) -> Trainable:
        """Learn from x [*b T ...] and z [*b T dz], or from lists of sequences of any lengths.

        Arrays or tables with named columns. Rows with missing values, and gaps of `time`, cut a
        sequence. `circular` names the angles among the columns (x_1, ..., z_1, ... of arrays).
        u [*b T du] are control inputs: row t holds what moved the latent from t - 1 to t, so that a
        sequence's first row is not used. With time_steps="input", so does the step of time: the
        dynamics p(z' | z, u, dt) are learned where steps are irregular, not taken as equal.
        `sensors` names the columns of each, {"imu": ["ax", "ay"], "gps": ["e", "n"]}, or is "each"
        where every column is one. A sensor with a NaN is absent from its row, and the others still
        count; without `sensors`, one NaN makes the whole row missing. x may also be a mapping of
        numbers [T], vectors [T, d] and frames [T, h, w] or [T, c, h, w], {"camera": frames, "imu":
        rows}: each of them is then a sensor, unless `sensors` says otherwise.
        `units` of another recording take the place of those found here. Batch dimensions of z are
        independent data sets, each with its own hyper-parameters. With
        progress=True a bar counts the trials of the search; or it is a function that is handed
        them, to show them.
        """
        began = perf_counter()
        self._check_taken(x, u, time_steps, sensors, units)
        about = {"time": time, "circular": circular, "angle_unit": angle_unit, "units": units}
        about |= {"u": u, "time_steps": time_steps, "sensors": sensors}
        data = training_data(x, z, standardize=self.standardized, **about)
        self._learn(self._lifted(data), bar_of(progress))
        self.seconds = perf_counter() - began
        return self


def _part(table: Tensor | FileRows, rows: np.ndarray) -> Tensor | FileRows:
    if isinstance(table, FileRows):
        return table.part(rows)
    return table[torch.from_numpy(rows).to(table.device)]


def _count(rows: Any) -> int:
    """Of a table, an array or a list."""
    return len(rows[names_of(rows)[0]] if is_table(rows) else rows)


def _between(before: Place, now: Place) -> np.ndarray | None:
    """The step of time; None where one of both is not known."""
    return None if before[1] is None or now[1] is None else np.asarray(now[1] - before[1])


def never(like: Tensor) -> Tensor:
    """Steps since the last evidence, before any."""
    return torch.full(like.shape, NEVER, dtype=torch.int64, device=like.device)
