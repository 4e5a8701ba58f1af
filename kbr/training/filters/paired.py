"""Learned features and a kernel regression of the frames side by side: two filters, averaged."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.averaging import PairedBelief, best_share, error_of, mixed, mixture
from kbr.core.filters.belief import KernelBelief
from kbr.core.filters.kernel.choosing.held_out import (
    SMOOTHED,
    calibrated,
    held_out_rows,
    smoothed_rows,
)
from kbr.core.filters.kernel.facts import kernel_facts
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.storing.storage import calibration_from
from kbr.core.filters.result import FilterResult
from kbr.core.frame_regression import FrameRegression
from kbr.core.io.memory import tensor_bytes
from kbr.core.uncertainty.calibration import Calibration, next_horizon
from kbr.training.data import Observations
from kbr.training.filters.learned import LearnedFilter
from kbr.training.filters.trained import ENCODE_ROWS
from kbr.training.modules.base import SequenceModule


@dataclass(kw_only=True, eq=False, repr=False)
class PairedFilter(LearnedFilter):
    """`LearnedFilter`, and the kernel filter on y(x) = E[z | x] by kernel ridge regression.

    Math: the belief is s p1 + (1 - s) p2, p1 given features psi(x), p2 given y(x); s has the least
          error at the steps that the network has not seen.

    Both learn from the same few frames and err in different ways. Training frames are told y by
    regressions without the rows around them, or without their whole sequence, so p2 knows how far
    off y is for new ones. Where one of both finds no evidence in an observation, it is a prediction
    in both; a regression whose share is zero is not asked.
    """

    kind: ClassVar[str] = "kbr.paired_filter"
    takes_files: ClassVar[bool] = False
    takes_sensors: ClassVar[bool] = False
    in_blocks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.share = 1.0  # of the filter on learned features
        self._regression: FrameRegression | None = None
        self._second: KernelBayesFilter | None = None
        self._calibration: Calibration | None = None
        self._smoothing: Calibration | None = None

    def finish(self, module: SequenceModule, x: Observations, z: Tensor, *u: Tensor) -> None:
        super().finish(module, x, z, *u)
        assert isinstance(x, Tensor)
        self._smoothing = None
        self._regression, told = FrameRegression.fit(x, z, self._lengths)
        plain = KernelBayesFilter(standardize=False, correction=None)
        self._second = KernelBayesFilter.of(plain.learned(self._on(told, z), in_order=True))
        first, second = self._both_filters()
        both = first.fitted, second.fitted
        one, other = (held_out_rows(part, first_too=False, parts=1) for part in both)
        self.share = best_share(one, other)
        rows = mixed(self.share, one, other)
        self._calibration = calibrated(first.fitted, rows) if rows else None
        error = error_of(rows)
        self.val_mse = self.val_mse if math.isnan(error) else error  # of few rows, the network's
        self.chosen = {**self.chosen, "share": self.share, "pool": float(self._regression.pool)}

    def _both_filters(self) -> tuple[KernelBayesFilter, KernelBayesFilter]:
        first = self.kernel_filter
        assert self._second is not None
        return first, self._second

    @property
    def calibration(self) -> Calibration | None:
        self._get()  # which refuses what is not fitted
        return self._calibration

    @property
    def smoothing_calibration(self) -> Calibration | None:
        """Measured when first asked for."""
        if self._smoothing is None and self.calibration is not None:
            first, second = self._both_filters()
            measured = first.fitted.changed(known=True), second.fitted.changed(known=True)
            rows = mixed(self.share, *(smoothed_rows(part, most=SMOOTHED) for part in measured))
            self._smoothing = calibrated(first.fitted, rows) if rows else None
        return self._smoothing

    def _seen_by_both(self, x: Tensor) -> tuple[Float[Tensor, "*s t d"], Float[Tensor, "*s t dz"]]:
        """Features of inner observations, and what the regression tells of them.

        NaN in both, a missing observation, where it is missing or unlike any of training to one.
        """
        assert self._regression is not None
        psi = self._features(x)
        rows = torch.split(x.reshape(-1, *self._shape), ENCODE_ROWS)
        parts = [self._regression(part.nan_to_num(0.0, 0.0, 0.0)) for part in rows]
        told = torch.cat(parts).reshape(*psi.shape[:-1], -1)
        first, second = self._both_filters()
        known = _familiar(first, psi)
        if self._asks_both:
            known = known & _familiar(second, told)
        known = known.unsqueeze(-1)
        return torch.where(known, psi, torch.nan), torch.where(known, told, torch.nan)

    @property
    def _asks_both(self) -> bool:
        """Whether both decide what is evidence."""
        return self.share < 1

    def _filtered(self, x: Any, *u: Tensor) -> FilterResult:
        return self._averaged(*self._agreed(*self._seen_by_both(x))[1])

    def _smoothed(self, x: Any, *u: Tensor) -> FilterResult:
        first, second = self._both_filters()
        (psi, told), _ = self._agreed(*self._seen_by_both(x))
        return self._averaged(first._smoothed(psi), second._smoothed(told))

    def _agreed(
        self, psi: Float[Tensor, "*s t d"], told: Float[Tensor, "*s t dz"]
    ) -> tuple[tuple[Tensor, Tensor], tuple[FilterResult, FilterResult]]:
        """What both see, NaN where it is no evidence to one of them; and what they answer.

        Where both agree at once, as they mostly do, one pass tells; sequences in which they do not
        are told step by step.
        """
        first, second = self._both_filters()
        one, other = first._filtered(psi), second._filtered(told)
        apart = (one.evidence != other.evidence).reshape(-1, psi.shape[-2]).any(-1)
        if not (self._asks_both and bool(apart.any())):
            return (psi, told), (one, other)
        seen, heard = (part.reshape(-1, *part.shape[-2:]).clone() for part in (psi, told))
        for k in apart.nonzero().flatten().tolist():
            unused = ~self._used(seen[k], heard[k])
            seen[k, unused], heard[k, unused] = torch.nan, torch.nan
        psi, told = seen.reshape(psi.shape), heard.reshape(told.shape)
        return (psi, told), (first._filtered(psi), second._filtered(told))

    def _used(self, psi: Float[Tensor, "t d"], told: Float[Tensor, "t dz"]) -> Bool[Tensor, "t"]:
        """At which steps of a sequence the observation is evidence to both."""
        belief, flags = self._start(None), []
        for row in zip(psi, told, strict=True):
            belief = self._after(belief, *row)
            flags.append(belief.evidence)
        return torch.stack(flags)

    def _averaged(self, one: FilterResult, other: FilterResult) -> FilterResult:
        moments = mixture(self.share, (one.mean, one.cov), (other.mean, other.cov))
        return FilterResult(*moments, self._evidence(one, other))

    def _evidence(self, one: Any, other: Any) -> Tensor:
        found: Tensor = one.evidence & other.evidence if self._asks_both else one.evidence
        return found

    def _start(self, prior: Any) -> PairedBelief:
        first, second = self._both_filters()
        return self._paired(first._start(prior), second._start(prior), None)

    def _stepped(self, belief: PairedBelief, x: Tensor, *u: Tensor) -> PairedBelief:
        _check(belief)
        psi, told = (rows[0] for rows in self._seen_by_both(self._one_row(x)))
        return self._after(belief, psi, told)

    def _after(self, belief: PairedBelief, psi: Tensor, told: Tensor) -> PairedBelief:
        """One more step; a prediction in both where one of them has no evidence."""
        first, second = self._both_filters()
        one, other = first._stepped(belief.one, psi), second._stepped(belief.other, told)
        if self._asks_both and bool(one.evidence != other.evidence):
            one = first._stepped(belief.one, torch.full_like(psi, torch.nan))
            other = second._stepped(belief.other, torch.full_like(told, torch.nan))
        return self._paired(one, other, belief)

    def _ahead(self, belief: PairedBelief, steps: int, *u: Tensor) -> PairedBelief:
        _check(belief)
        first, second = self._both_filters()
        for _ in range(steps):
            parts = first._ahead(belief.one, 1), second._ahead(belief.other, 1)
            belief = self._paired(*parts, belief)
        return belief

    def _paired(
        self, one: KernelBelief, other: KernelBelief, before: PairedBelief | None
    ) -> PairedBelief:
        evidence = self._evidence(one, other)
        since = one.since if before is None else next_horizon(before.since, evidence)
        return PairedBelief(
            evidence,
            since,
            one.steps,
            self._answering(),
            stretch=None if before is None else before.stretch,
            one=one,
            other=other,
            share=self.share,
        )

    def partial_fit(self, *args: Any, **about: Any) -> Self:
        raise KbrError(
            "PairedFilter takes no more pairs once it is fitted. LearnedFilter (model=iw_nn) does."
        )

    def _facts(self) -> dict[str, Any]:
        facts, (_, second) = super()._facts(), self._both_filters()
        assert self._regression is not None
        known, count = self._regression.record().values(), len(self._regression.landmarks)
        tables = tensor_bytes(*(part for part in known if isinstance(part, Tensor)))
        return {
            **facts,
            "method": f"{facts['method']}; beside it a kernel regression of each observation",
            "memory": facts["memory"] + kernel_facts(second.fitted)["memory"] + tables,
            "details": {
                **facts["details"],
                "regression": f"share {1 - self.share:.0%}, {count} landmarks",
            },
        }

    def fitted_state(self) -> dict[str, Any]:
        _, second = self._both_filters()
        assert self._regression is not None
        tables = {"regression": self._regression.record(), "second": second.state()}
        known = None if self._calibration is None else self._calibration.record()
        return {**super().fitted_state(), **tables, "calibration": known, "share": self.share}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._regression = FrameRegression(**state["regression"])
        self._second = KernelBayesFilter.from_state(state["second"])
        self.share = float(state["share"])
        self._calibration = calibration_from(state["calibration"], self._z)


def _familiar(filt: KernelBayesFilter, rows: Float[Tensor, "*s t d"]) -> Bool[Tensor, "*s t"]:
    """Which of the rows are there, and like some of training."""
    _, there, near = filt.fitted.known(rows.flatten(0, -2))
    return (there & near).reshape(rows.shape[:-1])


def _check(belief: Any) -> None:
    if not isinstance(belief, PairedBelief):
        raise KbrError(
            f"this belief is of another kind of filter: {type(belief).__name__}. Begin with init()."
        )
