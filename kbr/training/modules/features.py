"""IW(NN): features of observations trained on the closed-form loss."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.core.errors import KbrError
from kbr.core.features import Features, Identity, fourier_features
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.large import RECENT, is_large, last_lengths
from kbr.core.io.file_rows import FileRows
from kbr.core.objectives import FeatureSums, add_up, feature_sums, loss_from_sums
from kbr.core.rules import ImportanceWeightedRule
from kbr.core.tables import blocks
from kbr.training.data import Batch
from kbr.training.modules.base import PIECE, WHOLE, SequenceModule
from kbr.training.workers import loss_in_parts, loss_over_workers, rows_of, sums_by_pieces

COLLAPSED = 0.01  # features that explain less than this share of the targets explain nothing


class FeatureModule(SequenceModule):
    """Trains psi so that phi(z) is a linear function of psi(x), z's features being fixed.

    Math: min over psi of (sum_i |phi_i|^2 - tr(B'A^-1 B)) / n,  A = Psi'Psi + n lam I, B = Psi'Phi,
          phi: random Fourier features of a Gaussian kernel, `frequencies` already over bandwidth;
          or, where they are given, `exact` features of that kernel on the training latents.
    Ref:  Xu et al. 2022, sections 3.3 and 5.3 (r = 1 for filtering).

    The validation error is that of the kernel Bayes filter built from the first part of the
    training sequence, on its end. Several workers each take a share of the points: their sums are
    added up, so the loss and its gradient are those of the full batch.
    """

    frequencies: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        x: Tensor | FileRows,
        frequencies: Tensor,
        *,
        lam: float,
        tuning: dict[str, Any],
        exact: Features | None = None,
        chunk: int = 1000,
        **shared: Any,
    ) -> None:
        super().__init__(encoder, x, **shared)
        self.register_buffer("frequencies", frequencies)
        self.lam, self.tuning, self.exact, self.chunk = lam, tuning, exact, chunk
        if isinstance(x, FileRows) and self.mixes_rows:
            raise KbrError(
                "the encoder has batch normalisation, whose statistics need all frames at once, "
                "and these stay in their file. Use encoder=cnn."
            )

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
        world, rank = self.trainer.world_size, self.trainer.global_rank
        mine = rows_of(rank, world, len(batch[0]), piece=PIECE)
        x, z = batch[0][mine], batch[1][mine]
        with self.blaming_lr():
            if isinstance(x, FileRows) or (len(x) > WHOLE and not self.mixes_rows):
                weights = [p for p in self.encoder.parameters() if p.requires_grad]
                loss, total = loss_in_parts(weights, lambda: self.parts(x, z), lam=self.lam)
            else:
                part = sums_by_pieces(self.train_features(x), self.targets(z), piece=PIECE)
                loss, total = loss_over_workers(part, lam=self.lam)
        self.log_sometimes("train/loss", loss.detach())
        self.log_sometimes("train/explained", 1 - loss.detach() * total.n / total.energy)
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
        psi = self.encode_all(x).to(device="cpu", dtype=torch.float64)
        filt = KernelBayesFilter(rule=ImportanceWeightedRule(kernel_x=Identity()), **self.tuning)
        truth = z.to(device="cpu", dtype=torch.float64)
        with self.blaming_lr():
            tuned = filt.tune(torch.split(psi, lengths), torch.split(truth, lengths))
        self.log_validation(tuned.val_mse)
