"""IW(NN): features of observations trained on the closed-form loss."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.core.features import Features, Identity, fourier_features
from kbr.core.filters.kernel_bayes import KernelBayesFilter
from kbr.core.objectives import feature_sums, loss_from_sums
from kbr.core.rules import ImportanceWeightedRule
from kbr.training.data import Batch
from kbr.training.sequence_module import PIECE, SequenceModule
from kbr.training.workers import loss_over_workers, rows_of, sums_by_pieces

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
        x: Tensor,
        frequencies: Tensor,
        *,
        lam: float,
        tuning: dict[str, Any],
        exact: Features | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(encoder, x, **shared)
        self.register_buffer("frequencies", frequencies)
        self.lam, self.tuning, self.exact = lam, tuning, exact

    def targets(self, z: Float[Tensor, "n dz"]) -> Float[Tensor, "n p"]:
        if self.exact is not None:
            return self.exact(z.cpu()).to(self.frequencies)
        return fourier_features(z.to(self.frequencies), self.frequencies)

    def explained(self, psi: Float[Tensor, "n d"], z: Float[Tensor, "n dz"]) -> float:
        """Share of the targets that the features explain: near zero, they have collapsed."""
        sums = feature_sums(psi, self.targets(z))
        return float(1 - loss_from_sums(sums, lam=self.lam) * sums.n / sums.energy)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        world, rank = self.trainer.world_size, self.trainer.global_rank
        mine = rows_of(rank, world, len(batch[0]), piece=PIECE)
        x, z = (part[mine] for part in batch)
        part = sums_by_pieces(self.train_features(x), self.targets(z), piece=PIECE)
        loss, total = loss_over_workers(part, lam=self.lam)
        self.log_sometimes("train/loss", loss.detach())
        self.log_sometimes("train/explained", 1 - loss.detach() * total.n / total.energy)
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        x, z = batch
        psi = self.encode(x).to(device="cpu", dtype=torch.float64)
        filt = KernelBayesFilter(rule=ImportanceWeightedRule(kernel_x=Identity()), **self.tuning)
        lengths = self.trainer.datamodule.lengths  # type: ignore[attr-defined]
        truth = z.to(device="cpu", dtype=torch.float64)
        error = filt.fit(torch.split(psi, lengths), torch.split(truth, lengths)).choice.val_mse
        self.log_validation(error)
