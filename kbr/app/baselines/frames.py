"""Regression on the one observation seen now, with settings and error bars from held-out rows."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch

from kbr.app.config.schema import Count, Part
from kbr.app.models.own import FrameRegressor
from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.validation import even_blocks
from kbr.core.units.scaling import Scaling
from kbr.core.units.units import Units

FOLDS = 3
TRIED_ROWS = 2000  # on which settings are compared


@dataclass(kw_only=True)
class TunedFrames:
    """z from the one observation seen now, by a regressor with scikit-learn's fit and predict.

    It sees standardised columns, and angles as (cos, sin). Of the settings in `grid` those are
    taken whose squared error on held-out sequences is least; the errors there are the covariance.
    Where the observation is missing the last answer stands, less certain with every row. From more
    than `most` rows it learns from so many, evenly spaced.

    Math: cov = mean of e e', e the held-out errors; after h missing rows cov + h mean of d d',
          d the steps of z in training.
    """

    estimator: Part
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    most: Count | None = None
    units: Any = field(default=None, init=False)
    chosen: dict[str, Any] = field(default_factory=dict, init=False)
    held_out: Any = field(default=None, init=False)  # [n, k] answers without the own sequence

    def fit(self, x: np.ndarray, z: np.ndarray, lengths: Sequence[int], units: Any = None) -> None:
        tensors = torch.from_numpy(x), torch.from_numpy(z)
        self.units = units or Units(Scaling.fit(tensors[0]), Scaling.fit(tensors[1]))
        x, z = self.seen(x), self.units.z.apply(tensors[1]).numpy()
        fold = folds_of(lengths)
        self.chosen = self._best(x, z, fold)
        self.held_out = self._crossed(x, z, fold, self.chosen)
        known = np.isfinite(self.held_out).all(1)
        self.cov = second_moment((self.held_out - z)[known])
        self.step = second_moment(steps_of(z, lengths))
        self.start = second_moment(z)
        self.regressor = self._fitted(x, z, self.chosen)

    def seen(self, x: np.ndarray) -> np.ndarray:
        """Observations in inner coordinates, flat."""
        inner: np.ndarray = self.units.x.apply(torch.as_tensor(x), "x").numpy()
        return inner.reshape(len(inner), -1)

    def answers(self, x: np.ndarray) -> np.ndarray:
        """Inner latents [T, k]; NaN where the observation is missing."""
        return _answers(self.regressor, self.seen(x))

    def filter(self, x: np.ndarray) -> tuple[Any, Any]:
        rows = self.seen(x)
        mean, known = self.regressor.filter(rows), np.isfinite(rows).all(1)
        place = np.arange(len(rows))
        last = np.maximum.accumulate(np.where(known, place, -1))
        cov = self.cov + (place - last)[:, None, None] * self.step
        cov[last < 0] = self.start
        return self.recorded(mean, cov)

    def recorded(self, mean: np.ndarray, cov: np.ndarray) -> tuple[Any, Any]:
        """Inner moments in recorded units."""
        moments: tuple[Any, Any] = self.units.z.undo(torch.from_numpy(mean), torch.from_numpy(cov))
        return moments

    def _best(self, x: np.ndarray, z: np.ndarray, fold: np.ndarray) -> dict[str, Any]:
        options = [dict(zip(self.grid, one, strict=True)) for one in product(*self.grid.values())]
        if len(options) == 1:
            return options[0]
        some = spaced(len(x), TRIED_ROWS)
        errors: dict[int, float] = {}
        for k, option in enumerate(options):
            try:
                missed = self._crossed(x[some], z[some], fold[some], option) - z[some]
            except KbrError:
                raise
            except ValueError as error:  # such as more neighbours than rows
                refused = str(error).splitlines()[0]
                continue
            errors[k] = float(np.nanmean(np.square(missed).sum(1)))
        if not errors:
            raise KbrError(f"model.grid: no setting can be fitted to these rows: {refused}")
        return options[min(errors, key=lambda k: errors[k])]

    def _crossed(
        self, x: np.ndarray, z: np.ndarray, fold: np.ndarray, option: Mapping[str, Any]
    ) -> np.ndarray:
        """Answers at all rows, each by a regressor that has not seen the row's fold."""
        answers = np.full_like(z, np.nan)
        for k in np.unique(fold):
            rest = fold != k
            answers[~rest] = _answers(self._fitted(x[rest], z[rest], option), x[~rest])
        return answers

    def _fitted(self, x: np.ndarray, z: np.ndarray, option: Mapping[str, Any]) -> FrameRegressor:
        estimator = deepcopy(self.estimator)
        try:
            estimator.set_params(**option)
        except ValueError as error:
            said = str(error).partition(". Valid")[0]
            raise KbrError(f"model.grid: {said}. Correct model.grid.") from error
        some = spaced(len(x), self.most or len(x))
        regressor = FrameRegressor(estimator=estimator)
        regressor.fit(x[some], z[some])
        return regressor


def _answers(regressor: FrameRegressor, x: np.ndarray) -> np.ndarray:
    known = np.isfinite(x).all(1)
    return np.where(known[:, None], regressor.filter(x), np.nan)


def folds_of(lengths: Sequence[int]) -> np.ndarray:
    """[n] the fold of every row: whole sequences, or thirds of the rows where there are fewer."""
    if len(lengths) >= FOLDS:
        return np.repeat(np.arange(len(lengths)) % FOLDS, lengths)
    blocks = even_blocks(sum(lengths), FOLDS)
    return np.repeat(np.arange(FOLDS), [len(block) for block in blocks])


def spaced(n: int, most: int) -> np.ndarray:
    """At most so many of n row numbers, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def steps_of(z: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """z_t - z_t-1 within the sequences."""
    parts = np.split(z, np.cumsum(lengths)[:-1])
    return np.concatenate([np.diff(part, axis=0) for part in parts])


def second_moment(rows: np.ndarray) -> np.ndarray:
    """Mean of r r'; never singular."""
    moment: np.ndarray = rows.T @ rows / max(len(rows), 1)
    return moment + 1e-12 * np.eye(rows.shape[1])
