"""IW(NN): features of observations trained on the closed-form loss."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.features import Features, Identity, PivotedCholesky, RandomFourier, fourier_features
from kbr.core.filters.kernel.engines.large import RECENT, is_large, last_lengths
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.training_data import training_data
from kbr.core.io.file_rows import FileRows
from kbr.core.kernels import Gaussian
from kbr.core.rules import ImportanceWeightedRule
from kbr.training.data import Batch
from kbr.training.modules.closed_form import ClosedFormModule

LAMS = tuple(10.0**k for k in range(-6, 2))  # learned features want ridges up to 10
TARGET_TOLERANCE = 1e-6  # of the targets' kernel; their features are float32
COLLAPSED = 0.01  # features that explain less than this share of the targets explain nothing


class FeatureModule(ClosedFormModule):
    """Targets are features of z: random Fourier features of a Gaussian kernel
    (`targets="fourier"`), or those of that kernel itself on the training latents ("cholesky").

    The validation error is that of the kernel Bayes filter built from the first part of the
    training sequence, on its end.
    """

    frequencies: Tensor

    def __init__(
        self,
        *,
        targets: str = "fourier",
        n_fourier: int = 512,
        scale: float = 1.0,
        lams: Sequence[float] | None = None,
        etas: Sequence[float] | None = None,
        coarse_scales: Sequence[float] = (0.25, 0.5, 1.0),
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.scale, self.target_kind = scale, targets
        self.tuning: dict[str, Any] = {
            "lams": LAMS if lams is None else tuple(lams),
            "scales": tuple(coarse_scales),
            "etas": None if etas is None else tuple(etas),
        }
        self.fourier = RandomFourier(n_features=n_fourier, seed=self.seed)
        frequencies = self.fourier.frequencies(self.hparams["dz"])
        self.register_buffer("frequencies", frequencies.float())
        self.exact: Features | None = None

    def fit_scales(self, x: Tensor | FileRows, z: Float[Tensor, "n dz"]) -> None:
        super().fit_scales(x, z)
        kernel = Gaussian(scale=self.scale).fit(z)
        assert kernel.bandwidth is not None
        self.frequencies.copy_(self.fourier.frequencies(z.shape[-1]) / kernel.bandwidth)
        if self.target_kind == "cholesky":
            self.exact = PivotedCholesky(kernel=kernel, tolerance=TARGET_TOLERANCE).fit(z)

    def targets(self, z: Float[Tensor, "n dz"]) -> Float[Tensor, "n p"]:
        if self.exact is not None:
            return self.exact(z.cpu()).to(self.frequencies)
        return fourier_features(z.to(self.frequencies), self.frequencies)

    def validation_step(self, batch: Batch, index: int) -> None:
        x, z = batch
        lengths = self.trainer.datamodule.lengths  # type: ignore[attr-defined]
        if is_large(len(z)):  # the last steps are all that tuning takes
            x, z, lengths = x[-RECENT:], z[-RECENT:], last_lengths(lengths, RECENT)
        with self.blaming_lr():
            tuned = self.kernel_filter().tune(*self.sequences(x, z, lengths), in_order=True)
        self.log_value("val/mse", tuned.val_mse)

    def predict(self, x: Float[Tensor, "t ..."], *u: Tensor) -> Float[Tensor, "t dz"]:
        """By the kernel Bayes filter on the features of all training steps, tuned as ever."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        filt, sequences = self.kernel_filter(), self.sequences(data.x, data.z, data.lengths)
        rows = training_data(*sequences, standardize=filt.standardized)
        filt = KernelBayesFilter.of(filt.learned(rows, in_order=True))
        return filt.filter(self.encode_all(x).to(device="cpu", dtype=torch.float64)).mean

    def kernel_filter(self) -> KernelBayesFilter:
        rule = ImportanceWeightedRule(kernel_x=Identity())
        return KernelBayesFilter(rule=rule, correction=None, **self.tuning)

    def sequences(
        self, x: Tensor | FileRows, z: Tensor, lengths: list[int]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Features and latents of every sequence, on the CPU in float64."""
        rows = x if isinstance(x, FileRows) else x.to(self.x_mean)
        psi, truth = (t.to(device="cpu", dtype=torch.float64) for t in (self.encode_all(rows), z))
        return torch.split(psi, lengths), torch.split(truth, lengths)
