"""Features of observations trained to tell the latent itself."""

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from kbr.core.io.file_rows import FileRows
from kbr.core.linalg import or_one, ridge_solve
from kbr.core.objectives import add_up, feature_sums
from kbr.core.tables import blocks
from kbr.training.data import Batch
from kbr.training.modules.closed_form import ClosedFormModule

READ = 8000  # rows at most that a look at the validation error fits its readout to


class ReadoutModule(ClosedFormModule):
    """Targets are the standardised latents; one more feature is constant.

    The validation error is the squared one of the readout at the rows held out, each by itself.
    """

    z_mean: Tensor
    z_scale: Tensor

    def __init__(self, **shared: Any) -> None:
        super().__init__(**shared)
        dz = self.hparams["dz"]
        self.register_buffer("z_mean", torch.zeros(dz, device="cpu"))
        self.register_buffer("z_scale", torch.ones(dz, device="cpu"))

    def fit_scales(self, x: Tensor | FileRows, z: Float[Tensor, "n dz"]) -> None:
        super().fit_scales(x, z)
        self.z_mean.copy_(z.mean(0))
        self.z_scale.copy_(or_one(z.std(0, correction=0)))

    def targets(self, z: Float[Tensor, "n dz"]) -> Float[Tensor, "n dz"]:
        return (z.to(self.z_mean) - self.z_mean) / self.z_scale

    def encode(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        psi = super().encode(x)
        return torch.cat([psi, psi.new_ones(len(psi), 1)], -1)

    def readout(
        self, psi: Float[Tensor, "n d"], z: Float[Tensor, "n dz"]
    ) -> Float64[Tensor, "d dz"]:
        """The best linear operator from features to standardised latents."""
        parts = (feature_sums(psi[rows], self.targets(z[rows])) for rows in blocks(len(z)))
        sums = add_up(parts)
        return ridge_solve(sums.second, sums.cross, ridge=sums.n * self.lam, name="n lam")

    def validation_step(self, batch: Batch, index: int) -> None:
        x, z = batch
        cut = self.trainer.datamodule.cut  # type: ignore[attr-defined]
        some = torch.linspace(0, cut - 1, min(cut, READ), device=z.device).round().long()
        with self.blaming_lr():
            operator = self.readout(self.encode_all(x[some]), z[some])
            told = self.encode_all(x[cut:]).to(operator) @ operator
        error = (told - self.targets(z[cut:])) * self.z_scale
        self.log_value("val/mse", error.square().sum(-1).mean())

    def predict(self, x: Float[Tensor, "t ..."], *u: Tensor) -> Float[Tensor, "t dz"]:
        """What each observation tells by itself."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        rows, z = (part.to(self.x_mean) for part in (data.x[: data.cut], data.z[: data.cut]))
        operator = self.readout(self.encode_all(rows), z)
        told = self.encode_all(x).to(operator) @ operator
        return told * self.z_scale + self.z_mean
