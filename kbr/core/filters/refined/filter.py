"""A kernel Bayes filter whose bandwidths and ridges are refined by gradient."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.base import TrainableFilter
from kbr.core.filters.belief import KernelBelief, KernelFilterResult
from kbr.core.filters.kernel.choosing.held_out import measured
from kbr.core.filters.kernel.choosing.search import Choice, Progress
from kbr.core.filters.kernel.correcting.learning import with_correction
from kbr.core.filters.kernel.facts import grids_of, kernel_facts
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.settings import is_free
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storing.storage import member
from kbr.core.filters.refined.descent import descend
from kbr.core.filters.training_data import TrainingData
from kbr.core.io import checkpoint
from kbr.core.per_coordinate import PerCoordinate
from kbr.core.uncertainty.calibration import Calibration
from kbr.core.units.units import Units

KIND = "kbr.refined"  # of checkpoints with such filters


@dataclass(kw_only=True, eq=False, repr=False)
class RefinedFilter(TrainableFilter):
    """A `base` filter, with what it chose refined by gradient before its means are corrected.

    `steps` of Adam at `rate`; 0: the tuned values stand. Moved values are dropped for data sets
    where held-out steps say that they harm.
    """

    base: KernelBayesFilter = field(default_factory=KernelBayesFilter)
    steps: int = 30
    rate: float = 0.1

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise KbrError(f"steps must be at least 0; got {self.steps}. Set steps.")
        self._kernel: KernelBayesFilter | None = None

    def __repr__(self) -> str:
        inner = self.base if self._kernel is None else self._kernel
        return f"RefinedFilter({inner!r}, steps={self.steps})"

    @property
    def is_fitted(self) -> bool:
        return self._kernel is not None

    def _facts(self) -> dict[str, Any]:
        kernel = self.kernel_filter
        grids = grids_of(kernel.settings, kernel.fitted.data.observed.shape[-1])
        if _moved(kernel):
            after = {"searched": "by gradient after a search of", "as eta": "by gradient from eta"}
            grids = {name: (after.get(source, source), b) for name, (source, b) in grids.items()}
        return kernel_facts(kernel.fitted, grids)

    @property
    def standardized(self) -> tuple[bool, bool]:
        return self.base.standardized

    def _lifted(self, data: TrainingData) -> TrainingData:
        return self.base._lifted(data)

    def _learn(self, data: TrainingData, progress: Progress | None) -> None:
        """Tune, refine and correct, from the training data alone."""
        fitted = self.base.learned(data, progress=progress)
        if self.steps:
            fitted = descend(fitted, steps=self.steps, rate=self.rate)
        self._kernel = KernelBayesFilter.of(measured(*with_correction(fitted)))

    def partial_fit(
        self, x: Any, z: Any, *, time: Any = None, continues: bool = False, **about: Any
    ) -> "RefinedFilter":
        """More pairs for the kernel filter: see its `partial_fit`."""
        if self._kernel is None:
            return self.fit(x, z, time=time, **about)
        self._kernel.partial_fit(x, z, time=time, continues=continues, **about)
        return self

    @property
    def kernel_filter(self) -> KernelBayesFilter:
        """The refined filter as an ordinary one, to save, compress or export."""
        if self._kernel is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._kernel

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kernel_filter.shape

    @property
    def choice(self) -> Choice:
        return self.kernel_filter.choice

    @property
    def operators(self) -> Operators:
        return self.kernel_filter.operators

    @property
    def units(self) -> Units:
        return self.kernel_filter.units

    @property
    def calibration(self) -> Calibration | None:
        """What held-out steps say about the means and their covariances."""
        return self.kernel_filter.calibration

    @property
    def smoothing_calibration(self) -> Calibration | None:
        return self.kernel_filter.smoothing_calibration

    def _filtered(self, x: Tensor, *u: Tensor) -> KernelFilterResult:
        return self.kernel_filter._filtered(x)

    def _smoothed(self, x: Tensor, *u: Tensor) -> KernelFilterResult:
        return self.kernel_filter._smoothed(x)

    def _start(self, prior: Any) -> KernelBelief:
        return self.kernel_filter._start(prior)

    def _stepped(self, belief: KernelBelief, x: Tensor, *u: Tensor) -> KernelBelief:
        return self.kernel_filter._stepped(belief, x)

    def _ahead(self, belief: KernelBelief, steps: int, *u: Tensor) -> KernelBelief:
        return self.kernel_filter._ahead(belief, steps)

    def to(self, device: str | torch.device) -> "RefinedFilter":
        return self._of(self.kernel_filter.to(device))

    def save(self, path: str | Path) -> None:
        """A file that `load` reads anywhere: tensors and plain values, nothing that runs."""
        checkpoint.save(Path(path), {"kind": KIND, "refined": self.state()})

    @classmethod
    def load(cls, path: str | Path) -> "RefinedFilter":
        return cls.from_state(checkpoint.load(path, kind=KIND)["refined"])

    def state(self) -> dict[str, Any]:
        """Plain tensors and values from which `from_state` makes the same filter again."""
        return {"filter": self.kernel_filter.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "RefinedFilter":
        try:
            inner = state["filter"]
            if state.get("readout") is not None:  # a file from before filters held it themselves
                inner = {**inner, "correction": state["readout"]}
            kernel = KernelBayesFilter.from_state(inner)
        except (KeyError, TypeError, AttributeError) as error:
            raise KbrError(
                f"the file holds no refined filter ({error!r}). Fit it again."
            ) from error
        return cls(base=kernel)._of(kernel)

    def _of(self, kernel: KernelBayesFilter) -> "RefinedFilter":
        made = RefinedFilter(base=self.base, steps=self.steps, rate=self.rate)
        made._kernel = kernel
        return made


def _moved(kernel: KernelBayesFilter) -> bool:
    """Whether the gradient has set bandwidths and ridges: then every coordinate has its own."""
    return isinstance(kernel.rule.kernel_z, PerCoordinate) and not is_free(kernel.rule.kernel_z)


def trial_state(state: dict[str, Any], trial: int) -> dict[str, Any]:
    """The state of one trial out of a batch that was fitted together."""
    if state["filter"]["z"].ndim < 3:
        return state
    one = copy.deepcopy(member(state["filter"], trial))
    for name in ("kernel_x", "kernel_z"):  # each trial has bandwidths of its own
        kernel = one["settings"]["rule"]["settings"][name]["settings"]
        kernel["bandwidth"] = kernel["bandwidth"][trial]
    readout = state.get("readout")  # in files from before the filter held it
    if readout is not None:
        readout = {**readout, "coefficients": readout["coefficients"][trial]}
    return {"filter": one, "readout": readout}
