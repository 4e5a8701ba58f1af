"""Networks that each leave out some of the training rows, so that all rows are told by one that
has not learned from them.
"""

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from kbr.core.filters.kernel.choosing.validation import even_blocks
from kbr.core.filters.sequences import outside
from kbr.training.data import Batch
from kbr.training.modules.base import PIECE, network_of
from kbr.training.modules.readout import ReadoutModule
from kbr.training.workers import loss_over_workers, rows_of, sums_by_pieces


class CrossFittedModule(ReadoutModule):
    """As many networks as `folds`, blocks of rows: network k learns from the rows outside block k.

    Math: psi(x) = (psi_1(x), ..., psi_K(x)), each with its constant feature; the loss is the sum
          over k of the closed-form loss of psi_k on the rows outside block k.

    The validation error is the squared one of the readout of each row by the network that has not
    seen it.
    """

    def __init__(self, *, folds: int = 3, **shared: Any) -> None:
        super().__init__(**shared)
        kind = (shared["encoder"], shared["shape"], shared.get("dropout"))
        self.folds = folds
        self.others = nn.ModuleList([network_of(*kind) for _ in range(folds - 1)])

    def encode_by(self, fold: int, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        """Features by the network of one fold."""
        psi = self.passed([self.encoder, *self.others][fold], x)
        return torch.cat([psi, psi.new_ones(len(psi), 1)], -1)

    def encode(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        return torch.cat([self.encode_by(fold, x) for fold in range(self.folds)], -1)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        x, z = batch
        rank, world = self.trainer.global_rank, self.trainer.world_size
        losses, missed, energy = [], 0.0, 0.0
        for fold, block in enumerate(even_blocks(len(z), self.folds)):
            rows = outside(torch.arange(len(z), device=z.device).unsqueeze(-1), block).squeeze(-1)
            some = self.drawn(len(rows))
            rows = rows if some is None else rows[some.to(rows.device)]
            own = rows[rows_of(rank, world, len(rows), piece=PIECE)]
            with self.blaming_lr():
                with self.epoch_randomness(fold + 1):
                    psi = self.encode_by(fold, x[own])
                sums = sums_by_pieces(psi, self.targets(z[own]), piece=PIECE)
                loss, total = loss_over_workers(sums, lam=self.lam)
            losses.append(loss)
            missed, energy = missed + loss.detach() * total.n, energy + total.energy
        self.log_value("train/loss", torch.stack(losses).mean())
        self.log_value("train/explained", 1 - missed / energy)
        return torch.stack(losses).sum()

    def cross_read(
        self, psi: Float[Tensor, "n d"], z: Float[Tensor, "n dz"]
    ) -> tuple[Float64[Tensor, "n dz"], Float64[Tensor, "d dz"]]:
        """Standardised latents of training rows, and the operator that tells those of new ones.

        Math: E_k = (Psi_k'Psi_k + n_k lam I)^-1 Psi_k'Z on the rows outside block k;
              y_i = E_k'psi_k(x_i) for i in block k,  y(x) = sum_k E_k'psi_k(x) / K.
        """
        told, operators = [], []
        parts = psi.chunk(self.folds, -1)
        for part, block in zip(parts, even_blocks(len(z), self.folds), strict=True):
            operator = self.readout(outside(part, block), outside(z, block))
            told.append(part[block.start : block.stop].to(operator) @ operator)
            operators.append(operator / self.folds)
        return torch.cat(told), torch.cat(operators)

    def validation_step(self, batch: Batch, index: int) -> None:
        x, z = batch
        with self.blaming_lr():
            told, _ = self.cross_read(self.encode_all(x), z)
        error = (told - self.targets(z)) * self.z_scale
        self.log_value("val/mse", error.square().sum(-1).mean())

    def predict(self, x: Float[Tensor, "t ..."], *u: Tensor) -> Float[Tensor, "t dz"]:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        rows, z = (part.to(self.x_mean) for part in (data.x, data.z))
        _, operator = self.cross_read(self.encode_all(rows), z)
        told = self.encode_all(x).to(operator) @ operator
        return told * self.z_scale + self.z_mean
