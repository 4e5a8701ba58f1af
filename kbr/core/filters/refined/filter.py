"""A kernel Bayes filter whose values are refined by gradient and whose mean is corrected."""

import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.base import TrainableFilter
from kbr.core.filters.belief import KernelBelief, KernelFilterResult, Moments
from kbr.core.filters.kernel.choosing.held_out import Correction, measured
from kbr.core.filters.kernel.choosing.search import Choice, Progress
from kbr.core.filters.kernel.choosing.validation import FOLDS
from kbr.core.filters.kernel.facts import grids_of, kernel_facts
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.settings import is_free
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storing.storage import member
from kbr.core.filters.refined.descent import descend
from kbr.core.filters.refined.readout import RIDGE, Readout, corrected, fit_readout, readout_without
from kbr.core.filters.training_data import TrainingData
from kbr.core.io import checkpoint
from kbr.core.per_coordinate import PerCoordinate
from kbr.core.uncertainty.calibration import Calibration
from kbr.core.units.units import Units

KIND = "kbr.refined"  # of checkpoints with such filters


@dataclass(frozen=True, eq=False, repr=False)
class RefinedBelief(KernelBelief):
    """The kernel filter's belief with the corrected mean, in inner coordinates."""

    corrected: Float[Tensor, "*e dz"] = field(kw_only=True)

    def inner_moments(self) -> Moments:
        return self.corrected, super().inner_moments()[1]


@dataclass(kw_only=True, eq=False, repr=False)
class RefinedFilter(TrainableFilter):
    """A `base` filter, tuned on all blocks, refined by gradient and corrected by a linear readout.

    Three blocks, each filtered by operators of the others: all training steps have a say in what is
    chosen, so that it depends less on chance than the choice of the validation block alone.

    `steps` of Adam at `rate` (0: the tuned values stand); `ridge` of the readout, in training steps
    (None: no readout). Either part is dropped for data sets where held-out steps say it harms.
    """

    base: KernelBayesFilter = field(default_factory=KernelBayesFilter)
    steps: int = 30
    rate: float = 0.1
    ridge: float | None = RIDGE

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise KbrError(f"steps must be at least 0; got {self.steps}. Set steps.")
        self._parts: tuple[KernelBayesFilter, Readout | None] | None = None

    def __repr__(self) -> str:
        inner = self.base if self._parts is None else self._parts[0]
        return f"RefinedFilter({inner!r}, steps={self.steps}, ridge={self.ridge})"

    @property
    def is_fitted(self) -> bool:
        return self._parts is not None

    def _facts(self) -> dict[str, Any]:
        kernel, readout = self._get()
        grids = grids_of(kernel.settings, kernel.fitted.data.observed.shape[-1])
        if _moved(kernel):
            after = {"searched": "by gradient after a search of", "as eta": "by gradient from eta"}
            grids = {name: (after.get(source, source), b) for name, (source, b) in grids.items()}
        facts = kernel_facts(kernel.fitted, grids)
        corrected = "none" if readout is None else "linear correction of the mean"
        return {**facts, "details": {**facts["details"], "readout": corrected}}

    @property
    def standardized(self) -> tuple[bool, bool]:
        return self.base.standardized

    def _lifted(self, data: TrainingData) -> TrainingData:
        return self.base._lifted(data)

    def _learn(self, data: TrainingData, progress: Progress | None) -> None:
        """Tune, refine and correct, from the training data alone."""
        fitted = self.base.learned(data, folds=FOLDS, progress=progress)
        if self.steps:
            fitted = descend(fitted, steps=self.steps, rate=self.rate)
        readout = None if self.ridge is None else fit_readout(fitted, ridge=self.ridge)
        self._parts = KernelBayesFilter.of(self._calibrated(fitted, readout)), readout

    def _calibrated(self, fitted: Fitted, readout: Readout | None) -> Fitted:
        ridge = self.ridge
        if readout is None or ridge is None:
            return measured(fitted)

        def without(block: range) -> Correction:
            return partial(corrected, readout_without(fitted, block, readout, ridge=ridge))

        return measured(fitted, correct=without)

    def partial_fit(
        self, x: Any, z: Any, *, time: Any = None, continues: bool = False, **about: Any
    ) -> "RefinedFilter":
        """More pairs for the kernel filter: see its `partial_fit`; the readout stays."""
        if self._parts is None:
            return self.fit(x, z, time=time, **about)
        self.kernel_filter.partial_fit(x, z, time=time, continues=continues, **about)
        return self

    @property
    def kernel_filter(self) -> KernelBayesFilter:
        """The refined filter without the readout: an ordinary one, to save, compress or export."""
        return self._get()[0]

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
        """What held-out steps say about the corrected means and their covariances."""
        return self.kernel_filter.calibration

    @property
    def smoothing_calibration(self) -> Calibration | None:
        return self.kernel_filter.smoothing_calibration

    def _filtered(self, x: Tensor, *u: Tensor) -> KernelFilterResult:
        kernel, readout = self._get()
        x = kernel.fitted.windows(x)
        result = kernel.fitted.filtered(x)
        if readout is None:
            return result
        return replace(result, mean=corrected(readout, kernel.operators, result, x))

    def _smoothed(self, x: Tensor, *u: Tensor) -> KernelFilterResult:
        return self.kernel_filter._smoothed(x)

    def _start(self, prior: Any) -> RefinedBelief:
        belief = self.kernel_filter._start(prior)
        return _refined(belief, belief.inner_moments()[0])

    def _stepped(self, belief: RefinedBelief, x: Tensor, *u: Tensor) -> RefinedBelief:
        kernel, readout = self._get()
        after = kernel._stepped(belief, x)
        mean = kernel.operators.readout.mean(after.moments)
        if readout is None:
            return _refined(after, mean)
        before = kernel.operators.readout.mean(kernel._ahead(belief, 1).moments)
        _, seen = kernel.fitted.window(belief.recent, x)
        flat = seen.reshape(*mean.shape[:-1], -1)
        return _refined(after, readout(mean, before, flat, after.evidence))

    def _ahead(self, belief: RefinedBelief, steps: int, *u: Tensor) -> RefinedBelief:
        ahead = self.kernel_filter._ahead(belief, steps)
        return _refined(ahead, self.kernel_filter.operators.readout.mean(ahead.moments))

    def to(self, device: str | torch.device) -> "RefinedFilter":
        kernel, readout = self._get()
        moved = replace(self)
        if readout is not None:
            readout = replace(readout, coefficients=readout.coefficients.to(device))
        moved._parts = kernel.to(device), readout
        return moved

    def save(self, path: str | Path) -> None:
        """A file that `load` reads anywhere: tensors and plain values, nothing that runs."""
        checkpoint.save(Path(path), {"kind": KIND, "refined": self.state()})

    @classmethod
    def load(cls, path: str | Path) -> "RefinedFilter":
        return cls.from_state(checkpoint.load(path, kind=KIND)["refined"])

    def state(self) -> dict[str, Any]:
        """Plain tensors and values from which `from_state` makes the same filter again."""
        kernel, readout = self._get()
        return {
            "filter": kernel.state(),
            "readout": None if readout is None else dict(vars(readout)),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "RefinedFilter":
        try:
            kernel, readout = KernelBayesFilter.from_state(state["filter"]), state["readout"]
            refined = cls(base=kernel)
            refined._parts = kernel, None if readout is None else Readout(**readout)
        except (KeyError, TypeError, AttributeError) as error:
            raise KbrError(
                f"the file holds no refined filter ({error!r}). Fit it again."
            ) from error
        return refined

    def _get(self) -> tuple[KernelBayesFilter, Readout | None]:
        if self._parts is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._parts


def _moved(kernel: KernelBayesFilter) -> bool:
    """Whether the gradient has set bandwidths and ridges: then every coordinate has its own."""
    return isinstance(kernel.rule.kernel_z, PerCoordinate) and not is_free(kernel.rule.kernel_z)


def _refined(belief: KernelBelief, mean: Tensor) -> RefinedBelief:
    parts = {f.name: getattr(belief, f.name) for f in fields(KernelBelief)}
    return RefinedBelief(**parts, corrected=mean)


def trial_state(state: dict[str, Any], trial: int) -> dict[str, Any]:
    """The state of one trial out of a batch that was fitted together."""
    if state["filter"]["z"].ndim < 3:
        return state
    one = copy.deepcopy(member(state["filter"], trial))
    for name in ("kernel_x", "kernel_z"):  # each trial has bandwidths of its own
        kernel = one["settings"]["rule"]["settings"][name]["settings"]
        kernel["bandwidth"] = kernel["bandwidth"][trial]
    readout = state["readout"]
    if readout is not None:
        readout = {**readout, "coefficients": readout["coefficients"][trial]}
    return {"filter": one, "readout": readout}
