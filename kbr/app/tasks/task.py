"""What a run is asked to do: which data, how many, and what counts as an error."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import Tensor

from kbr.app.figures.view import Gaze, Stepping, View, first_weights, view_of
from kbr.app.recordings.task import Filter, OwnData
from kbr.core.datasets.dsprites_file import DSpritesFile
from kbr.core.datasets.dynamics import FilteringData, Sampled
from kbr.core.datasets.gaussian import GaussianData, GaussianTask
from kbr.core.datasets.sprites import SpriteRenderer, SpriteSource
from kbr.core.errors import KbrError
from kbr.core.filters.base import BaseFilter
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.result import AXES, FilterResult, joined
from kbr.loading import RECURRENT


class FilteringTask(Protocol):
    """Data for filters: sequences from a seed. Where the true model is known, `state_space()`."""

    def generate(self, *, n_train: int, n_test: int, seed: int) -> FilteringData: ...


@dataclass(frozen=True, kw_only=True)
class Filtering:
    """Estimate the latent at every step of a test sequence from the observations so far."""

    name: str
    n_train: int
    n_test: int
    task: FilteringTask
    shift: int = 0  # the test sequence is that of the seed so much further on

    labels: ClassVar[None] = None  # of the latent's columns; None: z_1, z_2, ...
    filter_units: ClassVar[None] = None  # of x and z; None: numbers as they are
    val_name: ClassVar[str] = "val_mse"
    notes: ClassVar[tuple[str, ...]] = ()  # what a run must say about its data
    is_recorded: ClassVar[bool] = False
    has_own_vectors: ClassVar[bool] = False  # which an MLP takes; tasks have an encoder that suits

    def data(self, seed: int) -> FilteringData:
        """One data set."""
        sizes = {"n_train": self.n_train, "n_test": self.n_test}
        own = self.task.generate(**sizes, seed=seed)
        if not self.shift:
            return own
        other = self.task.generate(**sizes, seed=seed + self.shift)
        if _same(own.z_test, other.z_test):
            raise KbrError(
                f"data={self.name} has the same test sequence whatever the seed. Leave out "
                "data.seed."
            )
        return replace(own, x_test=other.x_test, z_test=other.z_test)

    def trials(self, seeds: Sequence[int]) -> FilteringData:
        """Independent data sets stacked along a leading dimension; seed k always gives the same."""
        if isinstance(self.task, Sampled) and not self.shift:
            return self.task.trials(n_train=self.n_train, n_test=self.n_test, seeds=seeds)
        return FilteringData.stacked([self.data(seed) for seed in seeds])

    def test(self, filt: Filter, data: FilteringData) -> tuple[FilterResult, Tensor]:
        """Answers at every test step, and the truth; of several sequences, end to end."""
        if isinstance(data.x_test, list):
            assert isinstance(data.z_test, list)
            truth = torch.cat(data.z_test, -2)
            result = _tested(filt, data.x_test, truth.ndim - 2)
        else:
            assert isinstance(data.z_test, Tensor)
            result, truth = filt.filter(data.x_test), data.z_test
        return result, truth.to(result.mean)

    def view(
        self, data: FilteringData, filt: Stepping | None = None, gaze: Gaze | None = None
    ) -> View:
        """What pictures show of one data set, or of the first trial; weights are those of filt."""
        first = data.z_train[0] if isinstance(data.z_train, list) else data.z_train
        if first.ndim == 3:
            data = data.each(lambda rows: rows[0])
        seen = data.x_test[0] if isinstance(data.x_test, list) else data.x_test
        weights = None if filt is None else first_weights(filt, seen)
        return view_of(self.task, data, weights=weights, gaze=gaze)

    def info(self) -> dict[str, object]:
        return {}

    def check_unchanged(self, folder: Path) -> None:
        """A seed always gives the same data."""

    def with_fresh_tests(self, shift: int) -> "Filtering":
        """The same training data, with the test sequences of the seeds `shift` further on."""
        return replace(self, shift=shift)

    def state_space(self) -> StateSpaceModel:
        """The true model."""
        known = getattr(self.task, "state_space", None)
        if known is None:
            raise KbrError(
                "models ekf, ukf, particle and iw_true_ratio need the true dynamics and sensor, "
                f"and {type(self.task).__name__} (data={self.name}) has no state_space(). Add it, "
                f"or use model=iw, iw_paper, original, iw_nn, {', '.join(RECURRENT)}."
            )
        model: StateSpaceModel = known()
        return model

    def columns(self) -> dict[str, object]:
        return {"data": self.name, "n_train": self.n_train}

    def extra_metrics(self, mean: Tensor, truth: Tensor) -> dict[str, float]:
        """What the task measures beside the squared error, if anything."""
        measure = getattr(self.task, "extra_metrics", None)
        return measure(mean, truth) if measure else {}


def _same(one: Any, other: Any) -> bool:
    several = isinstance(one, list)
    return all(map(torch.equal, one, other)) if several else torch.equal(one, other)


def _tested(filt: Filter, x: list[Tensor], lead: int) -> FilterResult:
    """Each sequence entered without memory; kbr's own filters take those of one length together.

    `lead` counts the dimensions before that of time.
    """
    if not isinstance(filt, BaseFilter):
        return joined([filt.filter(one) for one in x])
    parts = []
    for _, same in groupby(x, key=lambda one: one.shape):
        alike = list(same)
        result = filt.filter(torch.stack(alike, lead))
        parts += [_taken(result, k, lead) for k in range(len(alike))]
    return joined(parts)


def _taken(result: FilterResult, k: int, axis: int) -> FilterResult:
    """The k-th of the sequences along an axis."""
    there = {name: getattr(result, name) for name in AXES}
    return FilterResult(**{n: v.select(axis, k) for n, v in there.items() if v is not None})


@dataclass(frozen=True, kw_only=True)
class PosteriorMean:
    """Estimate the posterior mean at given observations for a prior other than the data's."""

    name: str
    task: GaussianTask

    labels: ClassVar[None] = None
    filter_units: ClassVar[None] = None
    is_recorded: ClassVar[bool] = False

    def check_unchanged(self, folder: Path) -> None:
        """A seed always gives the same data."""

    def with_fresh_tests(self, shift: int) -> NoReturn:
        raise KbrError(
            f"data.seed asks for fresh test sequences; data={self.name} has none (its seed "
            "decides the distribution itself). Leave out data.seed, or train with another seed."
        )

    def trials(self, seeds: Sequence[int]) -> GaussianData:
        return self.task.trials(list(seeds))

    def columns(self) -> dict[str, object]:
        return {"data": self.name, "n_train": self.task.n_train, "dim": self.task.dim}

    def extra_metrics(self, mean: Tensor, truth: Tensor) -> dict[str, float]:
        return {}


Sequential = Filtering | OwnData  # what filters answer
Problem = Sequential | PosteriorMean


def sprite_source(kind: str, path: str | None) -> SpriteSource:
    """`rendered` sprites need no file; `file` reads the published dSprites archive at `path`."""
    if kind == "rendered":
        return SpriteRenderer()
    if kind != "file":
        raise KbrError(f"data.source must be 'rendered' or 'file'; got {kind!r}.")
    if path is None or not Path(path).is_file():
        raise KbrError(
            f"data.source=file needs the dSprites archive; data.path={path} is no file. Get it "
            "with `python -m kbr.core.datasets.dsprites_file`, or set data.source=rendered."
        )
    return DSpritesFile(path=Path(path))
