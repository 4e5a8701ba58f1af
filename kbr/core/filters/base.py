"""What every fitted filter does alike: units in and out, calibrated covariances, streaming.

A subclass filters in inner coordinates; this class stands between it and the user's numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import Answering, Belief
from kbr.core.filters.result import FilterResult, joined
from kbr.core.filters.training_data import TrainingData, training_data
from kbr.core.inputs import ArrayLike, as_tensor
from kbr.core.io.file_rows import FileRows
from kbr.core.uncertainty.adaptive import RATE, stretched, stretches
from kbr.core.uncertainty.calibration import NEVER, Calibration, bridges_of, horizons_of
from kbr.core.uncertainty.regions import Ellipsoid, credible_region
from kbr.core.units.columns import is_table
from kbr.core.units.units import Units

Trainable = TypeVar("Trainable", bound="TrainableFilter")


class BaseFilter(ABC):
    """`filter`, `smooth`, `init`, `step`, `forecast` and regions, in the units of the data."""

    takes_files: ClassVar[bool] = False  # whether observations may stay in their file

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
    def _filtered(self, x: Any) -> FilterResult:
        """Beliefs in inner coordinates, at observations in inner coordinates [*b *s T ...]."""

    def _smoothed(self, x: Any) -> FilterResult:
        raise KbrError(f"{type(self).__name__} has no smoother. Use filter(x).")

    @abstractmethod
    def _start(self, prior: Any) -> Belief:
        """The belief before any observation."""

    @abstractmethod
    def _stepped(self, belief: Any, x: Any) -> Belief:
        """The belief after one more observation [*b ...] in inner coordinates."""

    @abstractmethod
    def _ahead(self, belief: Any, steps: int) -> Belief:
        """The belief so many steps ahead."""

    def filter(
        self, x: Any, *, truth: ArrayLike | None = None, adapt: bool = False, delay: int = 1
    ) -> FilterResult:
        """Beliefs at every step of x [*b *s T ...]; rows with NaN are missing and are predicted.

        x is an array, or a table (DataFrame, mapping) whose columns are found by name, in any order
        and among others; frames are its entry 'x'. Where the table has the columns of sequences or
        time, each sequence is entered without memory, and so is what follows a gap.

        With `adapt`, covariances follow the errors that `truth` [*b *s T dz] shows `delay` steps
        later (NaN: not known).
        """
        pieces, order = self._pieces(x)
        answers = [self._answer(self._filtered(rows), horizons_of) for rows in pieces]
        result = joined(answers, order)
        if not adapt:
            return result
        if truth is None:
            raise KbrError("adapt=True learns from truths that arrive later: pass truth=z.")
        return self._adapted(result, truth, delay)

    def smooth(self, x: Any) -> FilterResult:
        """Beliefs at every step given the whole sequence, past and future."""
        pieces, order = self._pieces(x)
        return joined([self._answer(self._smoothed(rows), bridges_of) for rows in pieces], order)

    def init(self, prior: Any = None) -> Belief:
        """The belief before any observation: every training latent equally likely.

        `prior` is another one: samples [m, dz] in the units of z, or an `Embedding` of such.
        """
        return self._start(prior)

    def step(self, belief: Any, x: Any) -> Any:
        """The belief after one more observation x [*b ...]; NaN in x: a prediction only.

        x may be a row with named columns; where it states another sequence than the last row, or
        a time after a gap, the belief starts anew.
        """
        units = self.units
        if not is_table(x):
            return self._stepped(belief, units.observations(x))
        place = units.place(x)
        if belief.steps and units.starts_anew(belief.place, place):
            belief = replace(self.init(), stretch=belief.stretch)
        return replace(self._stepped(belief, units.observations(x)), place=place)

    def forecast(self, belief: Any, steps: int = 1) -> Any:
        """The belief `steps` ahead, with no observation in between."""
        if steps < 1:
            raise KbrError(f"steps must be at least 1; got {steps}.")
        return self._ahead(belief, steps)

    def adapt(self, belief: Any, truth: ArrayLike, *, of: Any = None, rate: float = RATE) -> Any:
        """The belief with error bars that have learned from a truth, of `belief` or one before it.

        Call it when the truth arrives: `belief = filt.adapt(belief, z, of=belief_of_that_step)`.
        """
        then = belief if of is None else of
        z = self._truth(truth, then.mean)
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
            region = calibration.region(belief.mean, belief.raw_cov, belief.since, level=level)
        if belief.stretch is None:
            return region
        return replace(region, radius2=region.radius2 * belief.stretch)

    def calibrated(self, result: FilterResult) -> FilterResult:
        """The result as it is: its covariances are calibrated already."""
        return result

    def save(self, path: Any) -> None:
        raise NotImplementedError

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
        cov = answering.calibrated(raw, since, None)
        return replace(inner, mean=mean, cov=cov, raw_cov=raw, since=since)

    def _pieces(self, x: Any) -> tuple[list[Any], Tensor | None]:
        """Observations in inner coordinates: one sequence, or those that a table states.

        With several, also the order that brings their rows back to that of the table.
        """
        inner = self.units.observations(x)
        if isinstance(inner, FileRows) and not self.takes_files:
            inner = inner.read(np.float64)
        if not is_table(x):
            return [inner], None
        rows = self.units.sequences(x, len(inner))
        if len(rows) == 1:
            return [inner], None
        order = torch.from_numpy(np.argsort(np.concatenate(rows), kind="stable"))
        if isinstance(inner, FileRows):
            return [inner.part(some) for some in rows], order
        return [inner[torch.from_numpy(some).to(inner.device)] for some in rows], order

    def _truth(self, truth: ArrayLike, mean: Tensor) -> Tensor:
        z = as_tensor(truth, name="truth").to(mean)
        z = z.unsqueeze(-1) if z.shape == mean.shape[:-1] else z
        if z.shape != mean.shape:
            raise KbrError(f"truth must have shape {list(mean.shape)}; got {list(z.shape)}.")
        return self.units.z.nearest(z, mean)

    def _adapted(self, result: FilterResult, truth: ArrayLike, delay: int) -> FilterResult:
        if delay < 1:
            raise KbrError(f"delay must be at least 1 step; got {delay}.")
        z = self._truth(truth, result.mean)
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
        time: Any = None,
        circular: Sequence[str] | str = (),
        angle_unit: str = "degrees",
        units: Units | None = None,
        progress: Any = None,
    ) -> Trainable:
        """Learn from x [*b T ...] and z [*b T dz], or from lists of sequences of any lengths.

        Arrays or tables with named columns. Rows with missing values, and gaps of `time`, cut a
        sequence. `circular` names the angles among the columns (x_1, ..., z_1, ... of arrays).
        `units` of another recording take the place of those found here. Batch dimensions of z are
        independent data sets, each with its own hyper-parameters. `progress` is handed the trials
        of a search, to show them.
        """
        about = {"time": time, "circular": circular, "angle_unit": angle_unit, "units": units}
        data = training_data(x, z, standardize=self.standardized, **about)
        self._learn(self._lifted(data), progress)
        return self


def never(like: Tensor) -> Tensor:
    """Steps since the last evidence, before any."""
    return torch.full(like.shape, NEVER, dtype=torch.int64, device=like.device)
