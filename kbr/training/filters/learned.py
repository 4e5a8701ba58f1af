"""IW(NN): the kernel Bayes filter on learned features of the observations."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from kbr.core.errors import Diverged, KbrError
from kbr.core.features import Identity, RandomFourier
from kbr.core.filters.kernel.choosing.held_out import measured
from kbr.core.filters.kernel.choosing.search import ETA_BOUNDS, SCALE_BOUNDS, Space
from kbr.core.filters.kernel.facts import Grids, grid_of
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.growing.growing import goes_on
from kbr.core.filters.kernel.growing.more_rows import joined
from kbr.core.inputs import check_positive, check_sizes
from kbr.core.rules import ImportanceWeightedRule
from kbr.training.data import Observations
from kbr.training.filters.on_features import FilterOnFeatures
from kbr.training.filters.trained import TrainedFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.features import COLLAPSED, LAMS, FeatureModule

LAM_BOUNDS = (1e-9, 1e4)
LARGEST = 1e6  # features above this are too large to solve for
WIDEST = 1.0  # wider kernels of z only win by luck of the validation block: no edge to widen


@dataclass(kw_only=True, eq=False, repr=False)
class LearnedFilter(FilterOnFeatures):
    """Features psi(x) trained once with r = 1, then the kernel Bayes filter on them.

    lam           ridge of the training loss; far too large a one collapses the features to zero;
    targets       features of z that psi is to explain: "fourier" (random), or "cholesky" (those of
                  the kernel itself on the training latents);
    n_fourier     how many random Fourier features;
    scale         their bandwidth, in median distances of the training latents;
    lams, scales, etas   of the filter fitted after training, on all training steps; None: searched;
    coarse_scales the scales tried when the validation error is computed during training; the search
                  begins with them;
    chunk         frames at once where there are more than 4000: the exact loss, in less memory.

    Ref: Xu et al. 2022, sections 3.3 and 5.3, Algorithm 2.
    """

    lam: float = 1e-3
    targets: str = "fourier"
    n_fourier: int = 512
    scale: float = 1.0
    lams: Sequence[float] | None = None
    scales: Sequence[float] | None = None
    etas: Sequence[float] | None = None
    coarse_scales: Sequence[float] = (0.25, 0.5, 1.0)
    chunk: int = 1000

    kind: ClassVar[str] = "kbr.learned_filter"
    network: ClassVar[type[SequenceModule]] = FeatureModule
    not_of_network: ClassVar[Sequence[str]] = (*TrainedFilter.not_of_network, "scales")
    in_blocks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lam", "scale"):
            check_positive(float(getattr(self, name)), name=name)
        check_sizes(chunk=self.chunk)
        RandomFourier(n_features=self.n_fourier)  # which checks that it is even
        if self.targets not in ("fourier", "cholesky"):
            raise KbrError(f"targets must be fourier or cholesky; got {self.targets!r}.")
        self.collapsed = False
        self._psi = self._z = torch.empty(0, device="cpu")

    def finish(self, module: SequenceModule, x: Observations, z: Tensor, *u: Tensor) -> None:
        psi, _, _ = self.encode(x)
        self._psi, self._z = psi[0], z
        if (size := float(self._psi.abs().max())) > LARGEST:
            raise Diverged(
                f"the learned features are as large as {size:.0e}: training has diverged. Lower "
                f"lr, now {self.lr:g}."
            )
        assert isinstance(module, FeatureModule)
        explained = module.explained(self._psi, z)
        self.collapsed = explained < COLLAPSED
        if self.collapsed:
            warnings.warn(
                "the learned features have collapsed: they tell nothing about the latents (they "
                f"explain {explained:.2%} of the targets). Lower lam, now {self.lam:g}.",
                stacklevel=3,
            )
        rule = ImportanceWeightedRule(kernel_x=Identity())
        etas = None if self.etas is None else tuple(self.etas)
        searched = KernelBayesFilter(rule=rule, etas=etas, correction=None)
        tuned = searched.learned(self._on(psi[0], z), space=self._space, in_order=True)
        choice = tuned.data.choice
        capped = self.scales is None
        self.val_mse = float(choice.val_mse)
        self.edges = tuple(
            edge
            for edge in choice.edges
            if not (capped and edge.setting == "scales" and edge.end == "upper")
        )
        self.chosen = {
            "lam": float(choice.lam),
            "eta": float(choice.eta),
            "lam_transition": float(choice.lam_transition),
            "scale": float(choice.scale_z),
        }
        self._filter = self._build_filter()

    @property
    def _space(self) -> Space:
        """Where the filter on features is searched; values that were given are the only ones."""
        return Space(
            scales=tuple(self.coarse_scales if self.scales is None else self.scales),
            scale_bounds=None if self.scales is not None else (SCALE_BOUNDS[0], WIDEST),
            lams=LAMS if self.lams is None else tuple(self.lams),
            lam_bounds=LAM_BOUNDS if self.lams is None else None,
        )

    @property
    def _grids(self) -> Grids:
        space = self._space
        return {
            "scale_z": grid_of(space.scales, space.scale_bounds),
            "lam": grid_of(space.lams, space.lam_bounds),
            "eta": grid_of(self.etas or (), None if self.etas else ETA_BOUNDS),
            "lam_transition": ("as eta", None),
        }

    def _build_filter(self) -> KernelBayesFilter:
        """The filter of the chosen hyper-parameters: the same after training and from a file."""
        rule = ImportanceWeightedRule(kernel_x=Identity(), lam=self.chosen["lam"])
        filt = KernelBayesFilter(
            rule=rule,
            eta=self.chosen["eta"],
            lam_transition=self.chosen["lam_transition"],
            scales=(self.chosen["scale"],),
            correction=None,
        )
        fitted = filt.learned(self._on(self._psi, self._z), in_order=True)
        # The network has seen all but the validation block.
        return KernelBayesFilter.of(measured(fitted, first_too=False))

    def fitted_state(self) -> dict[str, Any]:
        state = {"psi": self._psi, "z": self._z, "lengths": self._lengths}
        data, more = self.kernel_filter.fitted.data, {}
        if data.basis is not None:
            new, begun = data.outside(range(data.basis)), goes_on(data, data.basis)
            rows = {"psi": new.x, "z": new.z, "lengths": new.lengths, "goes_on": begun}
            more = {"more": rows}
        return {**state, "collapsed": self.collapsed, **more}

    def restore(self, state: dict[str, Any]) -> None:
        self._psi, self._z, self.collapsed = state["psi"], state["z"], state["collapsed"]
        self._lengths = state.get("lengths", [len(self._z)])
        self._filter, more = self._build_filter(), state.get("more")
        if more is not None:
            fitted, about = self._filter.fitted, self._on(self._psi, self._z)
            rows = replace(about, x=more["psi"], z=more["z"], lengths=more["lengths"])
            grown = fitted.grown(joined(fitted.data, rows, more["goes_on"]))
            self._filter = KernelBayesFilter.of(grown)
