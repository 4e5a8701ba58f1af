"""Models of the user's own: anything with fit(x, z) and filter(x) is run and tabled like kbr's."""

import inspect
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kbr.app.config.schema import Part
from kbr.app.models.outcome import Outcome, sequential, stacked, trial_folder
from kbr.app.recordings.task import OwnData, standardised_error
from kbr.app.run.folder import BEST, RunContext
from kbr.app.tasks.task import Problem, Sequential
from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.validation import split_lengths, validation_start
from kbr.core.filters.result import FilterResult, joined, mean_squared_error
from kbr.core.io import checkpoint
from kbr.core.io.file_rows import FileRows
from kbr.core.units.units import Units

KIND = "kbr.own_model"
SAVED = Path("checkpoints") / "own_model"  # what the model's own `save` writes
TINY = 1e-12  # of the variance: errors that are all zero have a covariance too


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A model by its methods `fit(x, z)` and `filter(x)`; with `save` and `load` it is kept.

    It sees NumPy arrays in recorded units: x [T, ...] and z [T, dz], all training sequences end to
    end (`fit` may take `lengths` too, to tell them apart, and `units`: names, scaling and angles of
    the columns, None where they have none), then one test sequence x [T, ...] at a time; NaN in x
    is missing. `filter` answers with means [T, dz], with (mean, cov), or with an object that has
    `mean` and perhaps `cov`.

    It is first fitted without the validation block, which gives its validation error, and the
    covariance of its errors where the model states none; then to everything.
    """

    name: str
    model: Any

    def __post_init__(self) -> None:
        for method in ("fit", "filter"):
            if not callable(getattr(self.model, method, None)):
                raise KbrError(
                    f"model={self.name} is a {type(self.model).__name__} without {method}(): a "
                    "model of your own needs fit(x, z) and filter(x)."
                )

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        problem = sequential(problem, self.name)
        started, fitted, errors, covs, starts = time.perf_counter(), [], [], [], []
        for seed in seeds:
            rows = _rows(problem.data(seed))
            error, cov = self._validated(problem, rows, seed)
            model = self._fitted(rows, seed, problem.filter_units)
            if self._can_be_kept:
                path = trial_folder(context.folder, seed, seeds) / SAVED
                path.parent.mkdir(parents=True, exist_ok=True)
                model.save(path)
            fitted.append(model)
            errors.append(error)
            covs.append(cov)
            starts.append(torch.from_numpy(np.vstack([rows.z.mean(0), rows.z.var(0)])))
        units = problem.filter_units
        state = {
            "kind": KIND,
            "errors": torch.tensor(errors, dtype=torch.float64),
            "covs": torch.stack(covs),
            "units": None if units is None else units.record(),
            "starts": torch.stack(starts),  # mean and variance of z, before any observation
            "shape": list(rows.x.shape[1:]),
        }
        return self._tested(problem, seeds, fitted, state, time.perf_counter() - started)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        problem = sequential(problem, self.name)
        state = checkpoint.load(folder / BEST, kind=KIND)
        started, fitted = time.perf_counter(), []
        for seed in seeds:
            kept = self.kept(trial_folder(folder, seed, seeds))
            units = problem.filter_units
            fitted.append(kept or self._fitted(_rows(problem.data(seed)), seed, units))
        if not self._can_be_kept:
            lacks = f"{type(self.model).__name__} has no save(path) and load(path)"
            print(f"  note: {lacks}, so it was fitted again to the run's data")
        return self._tested(problem, seeds, fitted, state, time.perf_counter() - started)

    def kept(self, folder: Path) -> Any:
        """The fitted model of a trial, as its own `save` wrote it; None without."""
        path = folder / SAVED
        if not (self._can_be_kept and path.exists()):
            return None
        fresh = deepcopy(self.model)
        return fresh.load(path) or fresh  # a class method, or one that fills it

    @property
    def _can_be_kept(self) -> bool:
        return all(callable(getattr(self.model, name, None)) for name in ("save", "load"))

    def _fitted(self, rows: "Rows", seed: int, units: Units | None) -> Any:
        """A copy, fitted; what it draws from the global generators comes from the seed."""
        from lightning import seed_everything
        from lightning.pytorch.utilities.seed import isolate_rng

        import kbr._torchvision  # noqa: F401  (before lightning, which takes long to import)

        model = deepcopy(self.model)
        taken = inspect.signature(model.fit).parameters
        known = {"lengths": rows.lengths, "units": units}
        with isolate_rng():
            seed_everything(seed % 2**32, verbose=False)
            model.fit(rows.x, rows.z, **{k: known[k] for k in known.keys() & taken.keys()})
        return model

    def _validated(self, problem: Sequential, rows: "Rows", seed: int) -> tuple[float, Tensor]:
        """The error on the validation block, and the covariance of the errors there."""
        x, z, lengths = rows
        cut = validation_start(len(z))
        before, blocks = split_lengths(lengths, cut)
        part = Rows(x[:cut], z[:cut], before)
        model = Answers(self._fitted(part, seed, problem.filter_units), self.name)
        mean = joined([model.filter(x[start:stop]) for start, stop in blocks]).mean
        truth = torch.from_numpy(z[cut:]).to(mean)
        if isinstance(problem, OwnData):
            truth = problem.filter_units.z.nearest(truth, mean)
            error = standardised_error(problem.filter_units, mean, truth)
        else:
            error = float(mean_squared_error(mean, truth))
        missed = truth - mean
        variance = truth.var(0, correction=0)
        return error, missed.mT @ missed / len(missed) + torch.diag(TINY * (variance + TINY))

    def _tested(
        self,
        problem: Sequential,
        seeds: Sequence[int],
        fitted: list[Any],
        state: dict[str, Any],
        seconds: float,
    ) -> Outcome:
        started = time.perf_counter()
        trials = [
            problem.test(Answers(model, self.name, cov), problem.data(seed))  # type: ignore[arg-type]
            for model, cov, seed in zip(fitted, state["covs"], seeds, strict=True)
        ]
        return stacked(
            trials,
            labels=problem.labels,
            chosen={problem.val_name: state["errors"]},
            fit_seconds=seconds,
            test_seconds=time.perf_counter() - started,
            info=dict(problem.info()),
            notes=problem.notes,
            state=state,
            view=cache(lambda: problem.view(problem.data(seeds[0]))),  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Answers:
    """Whatever form a model's answers have, as `FilterResult`; `cov` where it states none."""

    model: Any
    name: str
    cov: Tensor | None = None

    def filter(self, x: Any) -> FilterResult:
        seen = _array(x)
        means, covs = self.moments(*mean_and_cov(self.model.filter(seen)), steps=len(seen))
        there = np.isfinite(seen).reshape(len(seen), -1).all(1)
        return FilterResult(means, covs, torch.from_numpy(there))

    def moments(self, mean: Any, cov: Any, *, steps: int) -> tuple[Tensor, Tensor]:
        """Means [T, dz] and covariances [T, dz, dz], checked."""
        means = torch.as_tensor(plain(mean), dtype=torch.float64)
        means = means.unsqueeze(-1) if means.ndim == 1 else means
        dz = means.shape[-1]
        if means.shape != (steps, dz) or not bool(means.isfinite().all()):
            wrong = means.ndim != 2 or len(means) != steps
            raise KbrError(
                f"filter(x) of model={self.name} must answer with finite means [T, dz], here of "
                f"T = {steps}; got {f'shape {list(means.shape)}' if wrong else 'NaN or infinity'}."
            )
        if cov is not None:
            return means, torch.as_tensor(plain(cov), dtype=torch.float64).reshape(steps, dz, dz)
        known = torch.eye(dz, dtype=torch.float64) if self.cov is None else self.cov
        return means, known.expand(steps, dz, dz)


def mean_and_cov(answer: Any) -> tuple[Any, Any]:
    """The parts of an answer; the covariance is None where it states none."""
    if isinstance(answer, tuple):
        mean, cov = answer
        return mean, cov
    if isinstance(answer, list) or hasattr(answer, "__array__"):
        return answer, None
    return answer.mean, getattr(answer, "cov", None)


@dataclass(kw_only=True)
class FrameRegressor:
    """z from the one observation seen now, by a regressor with scikit-learn's fit and predict.

    A baseline without memory; where the observation is missing, the last answer stands, and before
    the first one the training mean.
    """

    estimator: Part
    start: Any = field(default=None, init=False)

    def fit(self, x: np.ndarray, z: np.ndarray) -> None:
        rows = x.reshape(len(x), -1)
        known = np.isfinite(rows).all(1)
        self.start = z.mean(0)
        try:
            self.estimator.fit(rows[known], z[known, 0] if z.shape[1] == 1 else z[known])
        except ValueError as error:
            name = type(self.estimator).__name__
            raise KbrError(
                f"{name} cannot be fitted to z with {z.shape[1]} column(s): "
                f"{str(error).strip().splitlines()[0]} One column at a time: "
                "model.estimator._target_=sklearn.multioutput.MultiOutputRegressor "
                "+model.estimator.estimator._target_=..."
            ) from error

    def filter(self, x: np.ndarray) -> np.ndarray:
        rows = x.reshape(len(x), -1)
        known = np.isfinite(rows).all(1)
        answers = np.tile(self.start, (len(x), 1))
        if known.any():
            answers[known] = self.estimator.predict(rows[known]).reshape(int(known.sum()), -1)
        last = np.maximum.accumulate(np.where(known, np.arange(len(x)), -1))
        return np.where(last[:, None] >= 0, answers[last], self.start)


class Rows(NamedTuple):
    """All training sequences end to end, and their lengths."""

    x: np.ndarray
    z: np.ndarray
    lengths: list[int]


def _rows(data: Any) -> Rows:
    several = isinstance(data.z_train, list)
    xs, zs = (data.x_train, data.z_train) if several else ([data.x_train], [data.z_train])
    z = [_array(one) for one in zs]
    x = np.concatenate([_array(one) for one in xs])
    return Rows(x, np.concatenate(z), [len(one) for one in z])


def _array(rows: Any) -> np.ndarray:
    return plain(rows.read() if isinstance(rows, FileRows) else rows)


def plain(values: Any) -> np.ndarray:
    """Tensors as arrays, wherever they are."""
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
