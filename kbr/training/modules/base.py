"""What all trained models share: a scaled, augmented encoder and its optimiser."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from kbr.core.errors import Diverged, KbrError
from kbr.core.filters.result import mean_squared_error
from kbr.core.io.file_rows import FileRows
from kbr.core.linalg import or_one
from kbr.training.data import Batch
from kbr.training.encoders import Encoder, SoftArgmaxCNN, describe_encoder, known_encoder

PIECE = 100  # rows that pass the network together on a CPU: their activations stay in the cache
WHOLE = 40 * PIECE  # rows up to which a step is one batch
PARTS = 1_000_000_007  # by which the seeds of a step's blocks differ
WARM_UP = 0.1  # share of the epochs in which the learning rate grows


class SequenceModule(lightning.LightningModule):
    """An encoder with its input scaling; full-batch Adam, warm-up and cosine decay.

    encoder   builds the network from `shape`, the shape of one observation; or what a checkpoint
              says of it;
    dropout   passed on to the encoder; None leaves the encoder's own;
    noise     standard deviation of the fresh noise added to every training observation, in
              standard deviations of the observations;
    flags     so many numbers at the end of an observation say which sensors are there: no noise.

    All random numbers of an epoch (noise, dropout) come from the seed and the epoch's number, so
    that a resumed run draws the same ones. Scales are those of the data module's training part.
    """

    x_mean: Tensor
    x_scale: Tensor

    def __init__(
        self,
        *,
        encoder: Encoder | dict[str, Any],
        shape: Sequence[int],
        dz: int,
        epochs: int = 150,
        lr: float = 3e-3,
        weight_decay: float = 0.0,
        noise: float = 1.0,
        dropout: float | None = None,
        seed: int = 0,
        log_every: int = 10,
        flags: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)  # of the subclass too
        self.hparams["encoder"] = describe_encoder(encoder) if callable(encoder) else encoder
        build = encoder if callable(encoder) else known_encoder(encoder)
        self.encoder = build(shape=shape, **({} if dropout is None else {"dropout": dropout}))
        batch_norm = nn.modules.batchnorm._BatchNorm
        self.mixes_rows = any(isinstance(layer, batch_norm) for layer in self.encoder.modules())
        self.epochs, self.lr, self.weight_decay = epochs, lr, weight_decay
        self.noise, self.seed, self.log_every, self.flags = noise, seed, log_every, flags
        channels = (shape[0], 1, 1) if len(shape) == 3 else shape
        self.register_buffer("x_mean", torch.zeros(1, *channels, device="cpu"))
        self.register_buffer("x_scale", torch.ones(1, *channels, device="cpu"))

    def setup(self, stage: str) -> None:
        if stage == "fit":
            data = self.trainer.datamodule  # type: ignore[attr-defined]
            x, z, *_ = data.training_part
            self.fit_scales(x, z)

    def fit_scales(self, x: Float[Tensor, "n ..."] | FileRows, z: Float[Tensor, "n dz"]) -> None:
        """Means, scales and bandwidths of the training data; a scale of zero becomes one.

        An encoder that takes the parts of sensors sees their units as they are, and flags 0 or 1.
        """
        if getattr(self.encoder, "takes_parts", False):
            return
        mean, scale = input_scaling(x)
        self.x_mean.copy_(mean)
        self.x_scale.copy_(or_one(scale))

    @abstractmethod
    def predict(self, x: Float[Tensor, "t ..."], *u: Tensor) -> Float[Tensor, "t dz"]:
        """Filtered means of one sequence; controls u [t, du] where it was trained with some."""

    def test_step(self, batch: Batch, index: int) -> None:
        x, z, *u = batch
        mean = self.predict(x, *u)
        self.log("test/mse", mean_squared_error(mean, z.to(mean)).float(), sync_dist=True)

    def encode(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        """Features of observations, with noise in training mode."""
        scaled = (x - self.x_mean) / self.x_scale
        if self.training and self.noise > 0:
            noise = self.noise * torch.randn_like(scaled)
            if self.flags:
                noise[..., -self.flags :] = 0.0
            scaled = scaled + noise
        whole = self.mixes_rows or scaled.device.type != "cpu"
        pieces = [scaled] if whole else torch.split(scaled, PIECE)
        return torch.cat([self.encoder(piece) for piece in pieces])

    @torch.no_grad()
    def encode_all(self, x: Float[Tensor, "n ..."] | FileRows) -> Float[Tensor, "n d"]:
        """Features of any number of observations, in the memory of one block of them."""
        device = self.x_mean.device
        if isinstance(x, FileRows):
            return torch.cat([self.encode(part.read().to(device)) for part in x.parts()])
        return torch.cat([self.encode(part) for part in torch.split(x, WHOLE)])

    @torch.no_grad()
    def gaze(
        self, x: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b k i j"], Float[Tensor, "b k 2"]] | None:
        """Heat maps and the places (u, v) they answer with; None for encoders without any."""
        if not isinstance(self.encoder, SoftArgmaxCNN):
            return None
        scaled = (x - self.x_mean) / self.x_scale
        return self.encoder.heat_maps(scaled).cpu(), self.encoder.coordinates(scaled).cpu()

    def train_features(self, x: Float[Tensor, "b ..."], part: int = 0) -> Float[Tensor, "b d"]:
        """Features for this epoch's step; an error once the weights have diverged.

        `part` numbers the blocks of a step that takes them one by one, from 1.
        """
        with self.epoch_randomness(part):
            psi = self.encode(x)
        if not bool(psi.isfinite().all()):
            raise Diverged(
                f"the features are not finite at epoch {self.current_epoch}: training has "
                f"diverged. Lower lr, now {self.lr:g}."
            )
        return psi

    @contextmanager
    def blaming_lr(self) -> Iterator[None]:
        """A system that could be solved before the first step and no longer can: lr did it."""
        try:
            yield
        except KbrError as error:
            if isinstance(error, Diverged) or self.trainer.global_step == 0:
                raise
            raise Diverged(
                f"the features of epoch {self.current_epoch} are too large to solve for: training "
                f"has diverged. Lower lr, now {self.lr:g}."
            ) from error

    @contextmanager
    def epoch_randomness(self, part: int = 0) -> Iterator[None]:
        """Dropout knows the global random state only: set it for this epoch, then put it back."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            worker = self.global_rank
            mixed = (self.seed * 1_000_003 + self.current_epoch) * 1009 + worker
            torch.manual_seed((mixed + part * PARTS) % 2**63)
            yield

    def step_generator(self) -> Generator:
        """What decides which rows this step sees: of the seed and the epoch, alike on all workers.

        Where a step draws its rows, an epoch is one step.
        """
        return Generator().manual_seed((self.seed * 1_000_003 + self.current_epoch) % 2**63)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def rate(self, epoch: int) -> float:
        """The learning rate at this epoch as a share of `lr`."""
        warm = max(1, round(WARM_UP * self.epochs))
        if epoch < warm:
            return (epoch + 1) / warm
        left = (epoch - warm) / max(1, self.epochs - warm)
        return 0.5 * (1 + math.cos(math.pi * min(left, 1.0)))

    def log_value(self, name: str, value: Tensor) -> None:
        """In training now and then: it costs more than a small network's step itself.

        A training of few epochs has ten points in its curve too.
        """
        every = min(self.log_every, max(1, self.epochs // 10))
        if not self.training or self.current_epoch % every == 0:
            value = value.detach().float()
            self.log(name, value, prog_bar=True, sync_dist=self.trainer.world_size > 1)


def input_scaling(x: Float[Tensor, "n ..."] | FileRows) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel of images, or of every entry of vectors."""
    if isinstance(x, FileRows):
        mean, scale = x.moments()
        return mean.float(), scale.float()
    axes = [0, *range(2, x.ndim)] if x.ndim == 4 else [0]
    mean = x.mean(axes, keepdim=True)
    return mean, (x - mean).square().mean(axes, keepdim=True).sqrt()
