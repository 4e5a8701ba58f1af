"""A kernel Bayes filter whose values are refined by gradient and whose mean is corrected."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.calibration import Calibration
from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief, KernelFilterResult
from kbr.core.filters.kernel_bayes import KernelBayesFilter
from kbr.core.filters.operators import FilterOperators
from kbr.core.filters.readout import RIDGE, Readout, fit_readout, predicted_means
from kbr.core.filters.refine import refine
from kbr.core.filters.retune import retune
from kbr.core.filters.storage import member
from kbr.core.filters.tuning import Choice, Progress
from kbr.core.inputs import ArrayLike, as_tensor

KIND = "kbr.refined"  # of checkpoints with such filters


@dataclass(frozen=True, eq=False)
class RefinedBelief:
    """The kernel filter's belief with the corrected mean; all else is the belief's."""

    belief: Belief
    mean: Float[Tensor, "*e dz"]

    @property
    def cov(self) -> Float[Tensor, "*e dz dz"]:
        return self.belief.cov

    @property
    def evidence(self) -> Bool[Tensor, "*e"]:
        return self.belief.evidence

    @property
    def steps(self) -> int:
        return self.belief.steps


@dataclass(kw_only=True, eq=False)
class RefinedFilter:
    """A `base` filter, tuned on all blocks, refined by gradient and corrected by a linear readout.

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

    def fit(
        self,
        x: ArrayLike | Sequence[ArrayLike],
        z: ArrayLike | Sequence[ArrayLike],
        *,
        progress: Progress | None = None,
    ) -> "RefinedFilter":
        """Tune, refine and correct, from the training data alone; shapes as in the base filter."""
        made = retune(replace(self.base).fit(x, z, progress=progress))
        if self.steps:
            made = refine(made, steps=self.steps, rate=self.rate)
        self._parts = made, None if self.ridge is None else fit_readout(made, ridge=self.ridge)
        return self

    @property
    def kernel_filter(self) -> KernelBayesFilter:
        """The refined filter without the readout: an ordinary one, to save, compress or export."""
        return self._get()[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self.kernel_filter.shape

    @property
    def choice(self) -> Choice:
        return self.kernel_filter.choice

    @property
    def operators(self) -> FilterOperators:
        return self.kernel_filter.operators

    @property
    def calibration(self) -> Calibration:
        """That of the filter without the readout, whose covariances these are."""
        return self.kernel_filter.calibration

    def filter(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step, with corrected means; see `KernelBayesFilter.filter`."""
        made, readout = self._get()
        result = made.filter(x)
        if readout is None:
            return result
        flat = as_tensor(x, name="x").reshape(*result.mean.shape[:-1], -1)
        before = predicted_means(made, result)
        return replace(result, mean=readout(result.mean, before, flat, result.evidence))

    def init(self) -> RefinedBelief:
        """The belief before any observation."""
        belief = self.kernel_filter.init()
        return RefinedBelief(belief, belief.mean)

    def step(self, belief: RefinedBelief, x: ArrayLike) -> RefinedBelief:
        """The belief after one more observation x [*b ...]; NaN in x: a prediction only."""
        made, readout = self._get()
        after = made.step(belief.belief, x)
        if readout is None:
            return RefinedBelief(after, after.mean)
        before = made.forecast(belief.belief).mean
        flat = as_tensor(x, name="x").reshape(*after.mean.shape[:-1], -1)
        return RefinedBelief(after, readout(after.mean, before, flat, after.evidence))

    def state(self) -> dict[str, Any]:
        """Plain tensors and values from which `from_state` makes the same filter again."""
        made, readout = self._get()
        return {"filter": made.state(), "readout": None if readout is None else dict(vars(readout))}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "RefinedFilter":
        try:
            made, readout = KernelBayesFilter.from_state(state["filter"]), state["readout"]
            refined = cls(base=made)
            refined._parts = made, None if readout is None else Readout(**readout)
        except (KeyError, TypeError, AttributeError) as error:
            raise KbrError(
                f"the file holds no refined filter ({error!r}). Fit it again."
            ) from error
        return refined

    def _get(self) -> tuple[KernelBayesFilter, Readout | None]:
        if self._parts is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._parts


def trial_state(state: dict[str, Any], trial: int) -> dict[str, Any]:
    """The state of one trial out of a batch that was fitted together."""
    if state["filter"]["z"].ndim < 3:
        return state
    made = copy.deepcopy(member(state["filter"], trial))
    for name in ("kernel_x", "kernel_z"):  # each trial has bandwidths of its own
        kernel = made["settings"]["rule"]["settings"][name]["settings"]
        kernel["bandwidth"] = kernel["bandwidth"][trial]
    readout = state["readout"]
    if readout is not None:
        readout = {**readout, "coefficients": readout["coefficients"][trial]}
    return {"filter": made, "readout": readout}
