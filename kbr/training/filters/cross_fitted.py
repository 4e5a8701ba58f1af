"""The kernel Bayes filter on what several networks tell, each of rows it has not learned from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.held_out import measured
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.training.data import Observations
from kbr.training.filters.on_features import FilterOnFeatures
from kbr.training.filters.readout import ReadoutTraining
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.cross_fitted import CrossFittedModule


@dataclass(kw_only=True, eq=False, repr=False)
class CrossFittedFilter(ReadoutTraining, FilterOnFeatures):
    """Networks that tell z, each trained without a block of the rows, and the kernel filter on it.

    Math: training rows have y_i = E_k'psi_k(x_i), k the network that has not seen row i; new ones
          y(x) = sum_k E_k'psi_k(x) / K. The kernel filter sees y, with Gaussian kernels.

    A few hundred frames are told too well by the network that has learned from them, and a filter
    then trusts them too much. Here errors of all training rows are those of new frames, no row is
    kept from training, and new frames have the mean of K networks, whose errors are smaller.

    folds   how many networks; each learns from all but a block of the rows;
    batch   rows drawn anew for every step of every network, for many frames; None: all at once.
    """

    epochs: int = 150
    noise: float = 1.0
    dropout: float | None = None
    val_every: int = 25
    slack: float = 0.25
    checkpoint_every: int = 50
    lam: float = 1e-3
    batch: int | None = None
    folds: int = 3

    kind: ClassVar[str] = "kbr.cross_fitted_filter"
    network: ClassVar[type[SequenceModule]] = CrossFittedModule

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.folds, int) or self.folds < 2:
            raise KbrError(f"folds must be a whole number, at least 2; got {self.folds!r}.")

    def held_out_from(self, lengths: Sequence[int]) -> int:
        """None of the rows: each is held out from one of the networks."""
        return sum(lengths)

    def finish(self, module: SequenceModule, x: Observations, z: Tensor, *u: Tensor) -> None:
        assert isinstance(module, CrossFittedModule)
        told, self._operator = module.cross_read(self.encode(x)[0][0], z)
        kernel = KernelBayesFilter(standardize=False)
        self._filter = KernelBayesFilter.of(measured(kernel.learned(self._on(told, z))))
        choice = self._filter.choice
        self.val_mse, self.edges = float(choice.val_mse), choice.edges
        names = ("lam", "eta", "lam_transition", "scale_x", "scale_z")
        self.chosen = {name: float(getattr(choice, name)) for name in names}

    def _shown(self, psi: Tensor) -> Tensor:
        return psi @ self._operator

    def fitted_state(self) -> dict[str, Any]:
        return {"operator": self._operator, "filter": self.kernel_filter.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._operator = state["operator"]
        self._filter = KernelBayesFilter(standardize=False).restore(state["filter"])
