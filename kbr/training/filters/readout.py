"""The kernel Bayes filter on what a trained network tells of the latent, frame by frame."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.held_out import measured
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.inputs import check_positive, check_sizes
from kbr.core.linalg import ridge_cholesky
from kbr.training.data import Observations
from kbr.training.filters.on_features import FilterOnFeatures
from kbr.training.filters.trained import TrainedFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.readout import ReadoutModule

LEAST = 1e-6  # of the latents' variance: no error of a readout is taken for smaller


@dataclass(kw_only=True, eq=False, repr=False)
class ReadoutTraining(TrainedFilter):
    """A network whose features tell z itself, read out in closed form.

    Math: y_i = E'psi(x_i),  E = (Psi'Psi + n lam I)^-1 Psi'Z on the rows the network has seen.

    lam           ridge of the training loss and of the readout, z standardised;
    batch         rows drawn anew for every step of training, several times as many as features;
                  None: all, in chunks;
    chunk         frames at once where there are more than 4000.

    Of four sequences or more, with more than 2000 rows, whole ones at the end are held out.
    """

    epochs: int = 3000
    noise: float = 0.0
    dropout: float | None = 0.0
    val_every: int = 100
    slack: float = 0.0
    checkpoint_every: int = 500
    lam: float = 1e-5
    batch: int | None = 128
    chunk: int = 1000

    network: ClassVar[type[SequenceModule]] = ReadoutModule

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(float(self.lam), name="lam")
        check_sizes(chunk=self.chunk, **({} if self.batch is None else {"batch": self.batch}))
        self._operator = torch.empty(0, device="cpu")

    def readout(self, x: Any) -> Float[Tensor, "*s t dz"]:
        """What each observation tells of the latent by itself, in the units of the data."""
        psi, seen, lead = self.encode(self.units.observations(x))
        module = self._get()
        assert isinstance(module, ReadoutModule)
        inner = psi @ self._operator * module.z_scale.cpu() + module.z_mean.cpu()
        inner = torch.where(seen.unsqueeze(-1), inner, torch.nan).reshape(*lead, *inner.shape[1:])
        nothing = inner.new_zeros(*inner.shape, inner.shape[-1])
        return self.units.z.undo(inner, nothing)[0]


@dataclass(kw_only=True, eq=False, repr=False)
class ReadoutFilter(ReadoutTraining, FilterOnFeatures):
    """A fine kernel on the readout of features that were trained to tell z itself.

    Math: C = mean (y_i - z_i)(y_i - z_i)' over the rows held out from the network,  C = L L';
          the kernel filter sees L^-1 y, whose errors are of size one in every direction.

    Where dynamics are accurate, so must be the likelihood: kernels on 32 features are wide beside
    what a frame tells, and those on dz coordinates can be fine. Rows the network has seen have
    smaller errors than new ones; they are stretched to the size of those held out.

    history, velocity, engine   of the kernel filter, see `KernelBayesFilter`: velocity for z that
                  is a position alone.
    """

    history: int | str = 1
    velocity: bool | str = False
    engine: str = "local"

    kind: ClassVar[str] = "kbr.readout_filter"
    not_of_network: ClassVar[Sequence[str]] = (
        *TrainedFilter.not_of_network,
        "history",
        "velocity",
        "engine",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kernel_filter()  # which checks its settings
        self._whitening = torch.empty(0, device="cpu")

    def _kernel_filter(self) -> KernelBayesFilter:
        kinds = {"history": self.history, "velocity": self.velocity, "engine": self.engine}
        return KernelBayesFilter(standardize=False, correction=None, **kinds)  # type: ignore[arg-type]

    def finish(self, module: SequenceModule, x: Observations, z: Tensor, *u: Tensor) -> None:
        psi, cut = self.encode(x)[0][0], self.held_out_from(self._lengths)
        assert isinstance(module, ReadoutModule)
        truth = module.targets(z)
        self._operator = module.readout(psi[:cut], z[:cut])
        told = psi @ self._operator
        error = told - truth
        new, old = error[cut:], error[:cut]
        stretch = (new.square().mean(0) / old.square().mean(0).clamp_min(LEAST)).sqrt()
        told = torch.cat([truth[:cut] + old * stretch.clamp_min(1.0), told[cut:]])
        second = new.mT @ new / len(new)
        self._whitening = ridge_cholesky(second, ridge=LEAST, name="errors of the readout")
        kernel = self._kernel_filter()
        data = kernel._lifted(self._on(self._white(told), z))
        self._units = replace(self.units, z=data.units.z)  # which knows rates from the columns of z
        fitted = kernel.learned(data, in_order=True)
        self._filter = KernelBayesFilter.of(measured(fitted, first_too=False))
        choice = self._filter.choice
        self.val_mse, self.edges = float(choice.val_mse), choice.edges
        names = ("lam", "eta", "lam_transition", "scale_x", "scale_z", "floor")
        self.chosen = {name: float(getattr(choice, name)) for name in names}

    def _white(self, told: Tensor) -> Tensor:
        """Math: L^-1 y."""
        flat = told.reshape(-1, told.shape[-1])
        white: Tensor = torch.linalg.solve_triangular(self._whitening, flat.mT, upper=False).mT
        return white.reshape(told.shape)

    def _shown(self, psi: Tensor) -> Tensor:
        return self._white(psi @ self._operator)

    def fitted_state(self) -> dict[str, Any]:
        tables = {"operator": self._operator, "whitening": self._whitening}
        return {**tables, "filter": self.kernel_filter.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._operator, self._whitening = state["operator"], state["whitening"]
        if not bool(self._whitening.diagonal().gt(0).all()):
            raise KbrError("the readout in the file has errors of no size. Train again.")
        self._filter = self._kernel_filter().restore(state["filter"])
