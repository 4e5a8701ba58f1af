"""The moving filter on what a trained network makes of each frame."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from kbr.core.filters.kernel.choosing.validation import held_out_block
from kbr.core.filters.lifting import lifted
from kbr.core.filters.moving.filter import MovingBelief, MovingFilter
from kbr.core.filters.result import FilterResult
from kbr.core.filters.training_data import TrainingData
from kbr.core.io.file_rows import FileRows
from kbr.core.uncertainty.calibration import Calibration
from kbr.core.units.scaling import Scaling
from kbr.training.data import Observations
from kbr.training.filters.readout import ReadoutTraining
from kbr.training.filters.trained import TrainedFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.readout import ReadoutModule

OVERFIT = 1.1  # times the error on rows the network has seen: held-out rows err more, by learning


@dataclass(kw_only=True, eq=False, repr=False)
class MovingReadoutFilter(ReadoutTraining):
    """Features trained to tell z, and `MovingFilter` on them: points that move between latents.

    Math: rows (y_i, psi_i), y_i = E'psi_i as in `ReadoutFilter`. The moving filter learns from them
          what a latent shows (y alone), or what a frame tells (both), as held-out rows choose.

    Where frames that the network has learned from are told too well, the sensor is learned from the
    others alone.

    n_particles, velocity   of the moving filter.
    """

    n_particles: int = 1000
    velocity: bool | str = False

    kind: ClassVar[str] = "kbr.moving_readout_filter"
    not_of_network: ClassVar[Sequence[str]] = (
        *TrainedFilter.not_of_network,
        "n_particles",
        "velocity",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._filter = self._unfitted()  # which checks its settings

    def _unfitted(self) -> MovingFilter:
        return MovingFilter(n_particles=self.n_particles, velocity=self.velocity)

    def held_out_from(self, lengths: Sequence[int]) -> int:
        """As the kernel filter holds rows out: of many sequences, whole ones at the end."""
        return held_out_block(lengths).start

    def finish(self, module: SequenceModule, x: Observations, z: Tensor, *u: Tensor) -> None:
        psi, cut = self.encode(x)[0][0], self.held_out_from(self._lengths)
        assert isinstance(module, ReadoutModule)
        self._operator = module.readout(psi[:cut], z[:cut])
        error = (psi @ self._operator - module.targets(z)).square().mean(-1)
        rows = self._shown(psi)
        bare: dict[str, Any] = {"x_names": None, "sensors": None, "layout": None, "ranges": None}
        units = replace(self.units, x=Scaling.none(rows), **bare)
        data = TrainingData(rows, z, self._lengths, (rows.shape[-1],), units)
        overfit = bool(error[cut:].mean() > OVERFIT * error[:cut].mean())
        filt = self._unfitted()
        about = {"seen": cut, "fresh": overfit, "shown": z.shape[-1]}
        options = [lifted(data, 1, velocity) for velocity in filt.velocities]
        data = filt.best_of(options, **about)
        self._units = replace(self.units, z=data.units.z)  # which knows rates from the columns of z
        self._filter = filt.learn(data, **about)
        self.val_mse, self.chosen = filt.val_mse, filt.chosen

    def _shown(self, psi: Tensor) -> Tensor:
        """Math: (y, psi), the constant feature left out."""
        return torch.cat([psi @ self._operator, psi[..., :-1]], -1)

    def _features(self, x: Tensor | FileRows) -> Tensor:
        psi, seen, lead = self.encode(x)
        rows = torch.where(seen.unsqueeze(-1), self._shown(psi), torch.nan)
        return rows.reshape(*lead, *rows.shape[1:])

    @property
    def moving_filter(self) -> MovingFilter:
        """The filter on features."""
        self._get()
        return self._filter

    @property
    def calibration(self) -> Calibration | None:
        return self.moving_filter.calibration

    def _facts(self) -> dict[str, Any]:
        """Those of the network, and of the moving filter on its features."""
        own, facts = super()._facts(), self._filter._facts()
        return {
            **facts,
            **{name: own[name] for name in ("observation", "val_mse")},
            "method": f"{own['method']}, {facts['method']}",
            "memory": own["memory"] + facts["memory"],
            "details": {**own["details"], **facts["details"]},
        }

    def _filtered(self, x: Tensor | FileRows, *u: Tensor) -> FilterResult:
        return self.moving_filter._filtered(self._features(x))

    def _start(self, prior: Any) -> MovingBelief:
        return self.moving_filter._start(prior)

    def _stepped(self, belief: MovingBelief, x: Tensor, *u: Tensor) -> MovingBelief:
        return self.moving_filter._stepped(belief, self._features(self._one_row(x))[0])

    def _ahead(self, belief: MovingBelief, steps: int, *u: Tensor) -> MovingBelief:
        return self.moving_filter._ahead(belief, steps)

    def fitted_state(self) -> dict[str, Any]:
        return {"operator": self._operator, "filter": self.moving_filter.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._operator = state["operator"]
        self._filter = MovingFilter.from_state(state["filter"])
