"""Trained filters that end in a kernel Bayes filter, on what a network makes of observations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief
from kbr.core.filters.kernel.choosing.validation import held_out_block
from kbr.core.filters.kernel.facts import Grids, kernel_facts
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.growing.more_rows import recorded
from kbr.core.filters.result import FilterResult
from kbr.core.filters.training_data import TrainingData
from kbr.core.inputs import as_tensor
from kbr.core.io.file_rows import FileRows
from kbr.core.uncertainty.calibration import Calibration
from kbr.core.units.scaling import Scaling
from kbr.core.units.training_range import ranges_of
from kbr.training.filters.trained import TrainedFilter


@dataclass(kw_only=True, eq=False, repr=False)
class FilterOnFeatures(TrainedFilter):
    """`finish` of a subclass fits the kernel filter, which then filters, smooths and steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._filter: KernelBayesFilter | None = None

    def held_out_from(self, lengths: Sequence[int]) -> int:
        """As the kernel filter holds rows out: of many sequences, whole ones at the end."""
        return held_out_block(lengths).start

    @property
    def _grids(self) -> Grids | None:
        """Where settings of the kernel filter come from; None: as its own settings say."""
        return None

    def _facts(self) -> dict[str, Any]:
        """Those of the network, and of the kernel filter on its features."""
        own = super()._facts()
        facts = kernel_facts(self.kernel_filter.fitted, self._grids, self.edges)
        return {
            **facts,
            **{name: own[name] for name in ("observation", "val_mse")},
            "method": f"{own['method']}, {facts['method']}",
            "memory": own["memory"] + facts["memory"],
            "details": {**own["details"], **facts["details"]},
        }

    def _on(self, rows: Float[Tensor, "n d"], z: Float[Tensor, "n dz"]) -> TrainingData:
        """What the kernel filter is fitted to: these rows as they are, latents in their units."""
        bare: dict[str, Any] = {"x_names": None, "sensors": None, "layout": None, "ranges": None}
        units = replace(self.units, x=Scaling.none(rows), **bare)
        return TrainingData(rows, z, self._lengths, (rows.shape[-1],), units)

    def partial_fit(
        self, x: Any, z: Any, *, time: Any = None, continues: bool = False, **about: Any
    ) -> Self:
        """More pairs for the kernel filter, see its `partial_fit`; the network stays as it is."""
        if self._filter is None:
            return self.fit(x, z, time=time, **about)
        x, z, _, time = recorded(self.units, x, z, None, time)
        several = isinstance(x, list | tuple) and hasattr(x[0], "shape")
        psi = [self._features(self.units.observations(part)) for part in (x if several else [x])]
        rows: Any = psi if several else psi[0]
        self._filter.partial_fit(rows, z, time=time, continues=continues, **about)
        for part in zip(psi, x, z, strict=True) if several else [(psi[0], x, z)]:
            self._reach(*part)
        return self

    def _reach(self, psi: Tensor, x: Any, z: Any) -> None:
        """The training range grows by the rows that the kernel filter has taken."""
        known, latents = self.units.ranges, as_tensor(z, name="z")
        latents = latents.unsqueeze(-1) if latents.ndim == 1 else latents
        taken = psi.isfinite().all(-1) & latents.isfinite().all(-1)
        if known is not None and bool(taken.any()):
            new = ranges_of(self.units, as_tensor(x, name="x")[taken], latents[taken])
            self._units = replace(self.units, ranges=known.joined(new))

    @property
    def kernel_filter(self) -> KernelBayesFilter:
        """The filter on features, for its operators, smoothing and forecasts."""
        if self._filter is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train, ...) first.")
        return self._filter

    @property
    def calibration(self) -> Calibration | None:
        return self.kernel_filter.calibration

    @property
    def smoothing_calibration(self) -> Calibration | None:
        return self.kernel_filter.smoothing_calibration

    def _filtered(self, x: Tensor | FileRows, *u: Tensor) -> FilterResult:
        return self.kernel_filter._filtered(self._features(x))

    def _smoothed(self, x: Tensor | FileRows, *u: Tensor) -> FilterResult:
        return self.kernel_filter._smoothed(self._features(x))

    def _start(self, prior: Any) -> Belief:
        return self.kernel_filter._start(prior)

    def _stepped(self, belief: Any, x: Tensor, *u: Tensor) -> Belief:
        return self.kernel_filter._stepped(belief, self._features(self._one_row(x))[0])

    def _ahead(self, belief: Any, steps: int, *u: Tensor) -> Belief:
        return self.kernel_filter._ahead(belief, steps)

    def _features(self, x: Tensor | FileRows) -> Tensor:
        psi, seen, lead = self.encode(x)
        rows = torch.where(seen.unsqueeze(-1), self._shown(psi), torch.nan)
        return rows.reshape(*lead, *rows.shape[1:])

    def _shown(self, psi: Tensor) -> Tensor:
        """What the kernel filter sees of features [... d]."""
        return psi
