"""The LSTM baseline: the latent from the last few frames, with the same encoder."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.core.filters.result import mean_squared_error
from kbr.core.io.file_rows import FileRows
from kbr.core.linalg import or_one
from kbr.training.data import Batch
from kbr.training.modules.base import SequenceModule


class LSTMModule(SequenceModule):
    """Predicts z_t from the features of x_t-window+1 .. x_t by an LSTM and a linear layer.

    Ref: Xu et al. 2022, section 5.3, the baseline "LSTM" (window 10).

    Each frame is encoded once, not once for every window it is in. Before the first frame the
    window is filled with copies of it. Latents are scaled to mean zero and variance one inside.
    """

    z_mean: Tensor
    z_scale: Tensor

    def __init__(self, *, window: int = 10, hidden: int = 64, **shared: Any) -> None:
        super().__init__(**shared)
        self.window = window
        shape, dz = self.hparams["shape"], self.hparams["dz"]
        with torch.no_grad():
            n_features = self.encoder.eval()(torch.zeros(1, *shape, device="cpu")).shape[-1]
        self.encoder.train()
        self.lstm = nn.LSTM(n_features, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, dz)
        self.register_buffer("z_mean", torch.zeros(dz, device="cpu"))
        self.register_buffer("z_scale", torch.ones(dz, device="cpu"))

    def fit_scales(self, x: Tensor | FileRows, z: Float[Tensor, "n dz"]) -> None:
        super().fit_scales(x, z)
        self.z_mean.copy_(z.mean(0))
        self.z_scale.copy_(or_one(z.std(0, correction=0)))

    def windows(
        self, psi: Float[Tensor, "t d"], lengths: Sequence[int] | None = None
    ) -> Float[Tensor, "t w d"]:
        """The last `window` rows up to every row of a sequence, or of several end to end."""
        padded = (
            torch.cat([rows[:1].expand(self.window - 1, -1), rows])
            for rows in torch.split(psi, list(lengths or [len(psi)]))
        )
        return torch.cat([rows.unfold(0, self.window, 1).mT for rows in padded])

    def scaled_latents(self, windows: Float[Tensor, "t w d"]) -> Float[Tensor, "t dz"]:
        states, _ = self.lstm(windows)
        scaled: Tensor = self.readout(states[:, -1])
        return scaled

    def latents_of(self, windows: Float[Tensor, "t w d"]) -> Float[Tensor, "t dz"]:
        """Latents at the end of every window."""
        return self.z_mean + self.z_scale * self.scaled_latents(windows)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        x, z = batch
        lengths = self.trainer.datamodule.train_lengths  # type: ignore[attr-defined]
        rank, world = self.trainer.global_rank, self.trainer.world_size
        loss = self.share(x, z, lengths, rank=rank, world=world)
        self.log_value("train/loss", loss)
        return loss

    def share(
        self, x: Tensor, z: Tensor, lengths: Sequence[int], *, rank: int, world: int
    ) -> Tensor:
        """The loss of one worker's block of steps; the mean over workers is the loss of all."""
        start, end = (len(z) * k // world for k in (rank, rank + 1))
        before = max(0, start - self.window + 1)  # frames that the block's first windows see
        ends = list(accumulate(lengths))
        seen = [min(e, end) - max(e - n, before) for e, n in zip(ends, lengths, strict=True)]
        psi = self.train_features(x[before:end])
        windows = self.windows(psi, [n for n in seen if n > 0])
        scaled = self.scaled_latents(windows)[start - before :]
        target = (z[start:end].to(scaled) - self.z_mean) / self.z_scale
        return (scaled - target).square().sum(-1).mean() * (world * (end - start) / len(z))

    def validation_step(self, batch: Batch, index: int) -> None:
        """The error on the validation block, entered without memory, as a test sequence is."""
        x, z = batch
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        mean = self.latents_of(self.windows(self.encode(x[data.cut :]), data.val_lengths))
        self.log_value("val/mse", mean_squared_error(mean, z[data.cut :].to(mean)))

    def predict(self, x: Float[Tensor, "t ..."]) -> Float[Tensor, "t dz"]:
        return self.latents_of(self.windows(self.encode_all(x)))
