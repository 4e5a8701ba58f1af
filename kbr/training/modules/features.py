"""IW(NN): features of observations trained on the closed-form loss."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Features, Identity, PivotedCholesky, RandomFourier, fourier_features
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.large import RECENT, is_large, last_lengths
from kbr.core.io.file_rows import FileRows
from kbr.core.kernels import Gaussian
from kbr.core.objectives import FeatureSums, add_up, feature_sums, loss_from_sums
from kbr.core.rules import ImportanceWeightedRule
from kbr.core.tables import blocks
from kbr.training.data import Batch
from kbr.training.modules.base import PIECE, WHOLE, SequenceModule
from kbr.training.workers import loss_in_parts, loss_over_workers, rows_of, sums_by_pieces

LAMS = tuple(10.0**k for k in range(-6, 2))  # learned features want ridges up to 10
TARGET_TOLERANCE = 1e-6  # of the targets' kernel; their features are float32
COLLAPSED = 0.01  # features that explain less than this share of the targets explain nothing


class FeatureModule(SequenceModule):
    """Trains psi so that phi(z) is a linear function of psi(x), z's features being fixed.

    Math: min over psi of (sum_i |phi_i|^2 - tr(B'A^-1 B)) / n,  A = Psi'Psi + n lam I, B = Psi'Phi,
          phi: random Fourier features of a Gaussian kernel (`targets="fourier"`), or features of
          that kernel itself on the training latents (`targets="cholesky"`).
    Ref:  Xu et al. 2022, sections 3.3 and 5.3 (r = 1 for filtering).

    The validation error is that of the kernel Bayes filter built from the first part of the
    training sequence, on its end. Several workers each take a share of the points: their sums are
    added up, so the loss and its gradient are those of the full batch.
    """

    frequencies: Tensor

    def __init__(
        self,
        *,
        lam: float = 1e-3,
        targets: str = "fourier",
        n_fourier: int = 512,
        scale: float = 1.0,
        lams: Sequence[float] | None = None,
        etas: Sequence[float] | None = None,
        coarse_scales: Sequence[float] = (0.25, 0.5, 1.0),
        chunk: int = 1000,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.lam, self.chunk, self.scale, self.target_kind = lam, chunk, scale, targets
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
        if isinstance(x, FileRows) and self.mixes_rows:
            raise KbrError(
                "the encoder has batch normalisation, whose statistics need all frames at once, "
                "and these stay in their file. Use encoder=cnn."
            )
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

    def explained(self, psi: Float[Tensor, "n d"], z: Float[Tensor, "n dz"]) -> float:
        """Share of the targets that the features explain: near zero, they have collapsed."""
        pairs = zip(torch.split(psi, WHOLE), torch.split(z, WHOLE), strict=True)
        sums = add_up(feature_sums(some, self.targets(those)) for some, those in pairs)
        return float(1 - loss_from_sums(sums, lam=self.lam) * sums.n / sums.energy)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Math: loss = (sum_i |phi_i|^2 - tr(B'A^-1 B)) / n,  A = Psi'Psi + n lam I,  B = Psi'Phi.

        The sums are those of all workers' rows. What does not fit into one batch is summed up block
        by block: the same loss.
        """
        rank, world = self.trainer.global_rank, self.trainer.world_size
        x, z = (rows[rows_of(rank, world, len(rows), piece=PIECE)] for rows in batch)
        with self.blaming_lr():
            if isinstance(x, FileRows) or (len(x) > WHOLE and not self.mixes_rows):
                weights = [p for p in self.encoder.parameters() if p.requires_grad]
                loss, sums = loss_in_parts(weights, lambda: self.parts(x, z), lam=self.lam)
            else:
                psi, phi = self.train_features(x), self.targets(z)
                own = sums_by_pieces(psi, phi, piece=PIECE)  # Psi'Psi, Psi'Phi, sum_i |phi_i|^2, n
                loss, sums = loss_over_workers(own, lam=self.lam)
        self.log_value("train/loss", loss)
        self.log_value("train/explained", 1 - loss * sums.n / sums.energy)
        return loss

    def parts(self, x: Tensor | FileRows, z: Float[Tensor, "n dz"]) -> Iterator[FeatureSums]:
        """The sums of this epoch's step, block by block; the same ones whenever they are asked."""
        for number, rows in enumerate(blocks(len(z), self.chunk), start=1):
            some = x[rows]
            seen = some.read().to(self.x_mean) if isinstance(some, FileRows) else some
            yield feature_sums(self.train_features(seen, number), self.targets(z[rows]))

    def validation_step(self, batch: Batch, index: int) -> None:
        x, z = batch
        lengths = self.trainer.datamodule.lengths  # type: ignore[attr-defined]
        if is_large(len(z)):  # the last steps are all that tuning takes
            x, z, lengths = x[-RECENT:], z[-RECENT:], last_lengths(lengths, RECENT)
        with self.blaming_lr():
            tuned = self.kernel_filter().tune(*self.sequences(x, z, lengths))
        self.log_value("val/mse", tuned.val_mse)

    def predict(self, x: Float[Tensor, "t ..."], *u: Tensor) -> Float[Tensor, "t dz"]:
        """By the kernel Bayes filter on the features of all training steps, tuned as ever."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        filt = self.kernel_filter().fit(*self.sequences(data.x, data.z, data.lengths))
        return filt.filter(self.encode_all(x).to(device="cpu", dtype=torch.float64)).mean

    def kernel_filter(self) -> KernelBayesFilter:
        return KernelBayesFilter(rule=ImportanceWeightedRule(kernel_x=Identity()), **self.tuning)

    def sequences(
        self, x: Tensor | FileRows, z: Tensor, lengths: list[int]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Features and latents of every sequence, on the CPU in float64."""
        rows = x if isinstance(x, FileRows) else x.to(self.x_mean)
        psi, truth = (t.to(device="cpu", dtype=torch.float64) for t in (self.encode_all(rows), z))
        return torch.split(psi, lengths), torch.split(truth, lengths)
