"""What modules trained on the closed-form loss share: ridge regression on features, solved."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.io.file_rows import FileRows
from kbr.core.objectives import FeatureSums, add_up, feature_sums, loss_from_sums
from kbr.core.tables import blocks
from kbr.training.data import Batch
from kbr.training.modules.base import PIECE, WHOLE, SequenceModule
from kbr.training.workers import loss_in_parts, loss_over_workers, rows_of, sums_by_pieces


class ClosedFormModule(SequenceModule):
    """Trains psi so that targets phi(z) are a linear function of psi(x), the best one put in.

    Math: min over psi of (sum_i |phi_i|^2 - tr(B'A^-1 B)) / n,  A = Psi'Psi + n lam I, B = Psi'Phi.
    Ref:  Xu et al. 2022, sections 3.3 and 5.3 (r = 1 for filtering).

    Several workers each take a share of the points: their sums are added up, so the loss and its
    gradient are those of the full batch. With `batch`, a step sees so many rows, drawn anew each
    time, in place of all.
    """

    def __init__(
        self, *, lam: float = 1e-3, chunk: int = 1000, batch: int | None = None, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.lam, self.chunk, self.batch = lam, chunk, batch

    @abstractmethod
    def targets(self, z: Float[Tensor, "n dz"]) -> Float[Tensor, "n p"]:
        """What the features are to explain."""

    def fit_scales(self, x: Tensor | FileRows, z: Float[Tensor, "n dz"]) -> None:
        if isinstance(x, FileRows) and self.mixes_rows:
            raise KbrError(
                "the encoder has batch normalisation, whose statistics need all frames at once, "
                "and these stay in their file. Use encoder=cnn."
            )
        super().fit_scales(x, z)

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
        some = self.drawn(len(batch[1]))
        seen = batch if some is None else tuple(rows[some.to(rows.device)] for rows in batch)
        x, z = (rows[rows_of(rank, world, len(rows), piece=PIECE)] for rows in seen)
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

    def drawn(self, n: int) -> Tensor | None:
        """Which of n rows this step sees; None: all of them."""
        if self.batch is None or self.batch >= n:
            return None
        return torch.randint(n, (self.batch,), generator=self.step_generator())
