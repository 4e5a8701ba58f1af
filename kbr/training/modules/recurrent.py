"""Recurrent baselines: latents from all frames so far, with the encoder of the learned filter.

A model is one class: how its recurrence is built, and how it goes on from a state. How it is
trained follows from its memory, see `kbr.training.modules.memory`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from kbr.core.errors import KbrError
from kbr.core.filters.result import mean_squared_error
from kbr.core.io.file_rows import FileRows
from kbr.core.linalg import or_one
from kbr.training.data import Batch
from kbr.training.gaps import hold, random_gaps
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.pieces import Piece, block, cut, rows_of
from kbr.training.precision import Outputs, PrecisionLayer, Whitening, likelihood_loss

State = Float[Tensor, "s ..."]  # what a sequence remembers; None before its first frame
PIECE_STEPS = 50  # of a piece that is drawn for a step, where no `chunk` says it
GOLDEN = 0.6180339887498949  # multiples of it, modulo one, fill the interval evenly


class RecurrentModule(SequenceModule):
    """An encoder, a recurrence over its features, and a linear layer.

    Math: (h_t, s_t) = f(psi(x_t), u_t, b_t; s_t-1),  m_t = A h_t + a,  loss = mean_t |z_t - m_t|^2,
          or with `loss="likelihood"` mean_t |P_t (z_t - m_t)|^2 / 2 - log det P_t, where P_t^-1 is
          a root of the covariance of step t: a function of h_t.

    hidden    units of the recurrence;
    loss      "mse": P_t is fitted once the rest is trained; "likelihood": it is trained with it;
    gaps      share of the training frames that are hidden, in gaps, fresh ones each epoch; then b_t
              says whether frame t is there. With 0 there is no such input;
    controls  how many control inputs u_t there are;
    batch     frames that a step of training sees, about so many: pieces of sequences drawn anew for
              every step, whose loss is on average that of all. None: all frames.

    A hidden or missing frame has the features of the last one. Latents are scaled to mean zero and
    variance one inside.
    """

    z_mean: Tensor
    z_scale: Tensor

    def __init__(
        self,
        *,
        hidden: int = 64,
        gaps: float = 0.0,
        controls: int = 0,
        loss: str = "mse",
        batch: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.gaps, self.controls, self.loss, self.batch = gaps, controls, loss, batch
        shape, dz = self.hparams["shape"], self.hparams["dz"]
        with torch.no_grad():
            self.n_features = self.encoder.eval()(torch.zeros(1, *shape, device="cpu")).shape[-1]
        self.encoder.train()
        self.recurrence = self.build(self.n_features + controls + self.is_told, hidden)
        self.readout = self.build_readout(hidden, dz)
        self.precision = PrecisionLayer(self.n_outputs(hidden), dz)
        self.precision.requires_grad_(self.trains_precision)
        self.register_buffer("z_mean", torch.zeros(dz, device="cpu"))
        self.register_buffer("z_scale", torch.ones(dz, device="cpu"))
        self.register_load_state_dict_pre_hook(_older)  # type: ignore[no-untyped-call]

    @abstractmethod
    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        """The network of the recurrence."""

    @abstractmethod
    def recur(
        self, inputs: Float[Tensor, "s t d"], state: State | None
    ) -> tuple[Float[Tensor, "s t h"], State]:
        """Outputs at the next steps of sequences side by side, and the states after them."""

    def build_readout(self, hidden: int, dz: int) -> nn.Module:
        """From outputs to the means of scaled latents."""
        return nn.Linear(hidden, dz)

    def n_outputs(self, hidden: int) -> int:
        """How many numbers an output has."""
        return hidden

    @property
    def is_told(self) -> bool:
        """Whether the recurrence is told which frames are there."""
        return self.gaps > 0

    @property
    def trains_precision(self) -> bool:
        """Whether the layer of precisions is trained with the network."""
        return self.loss == "likelihood"

    def own_whitening(self, outputs: Outputs) -> Whitening:
        """P_t of scaled errors, as it is trained with the network."""
        whitening: Tensor = self.precision(outputs)
        return whitening

    def whitening(self, outputs: Outputs) -> Whitening:
        """P_t of errors in the units of the latents."""
        if self.loss == "likelihood":
            return self.own_whitening(outputs) / self.z_scale
        fitted: Tensor = self.precision(outputs)
        return fitted

    @property
    def memory(self) -> int | None:
        """How many frames before a step its output depends on; None: all of its piece."""
        return None

    def pieces(self, lengths: Sequence[int]) -> list[int]:
        """How training sequences are cut: no memory is carried from piece to piece."""
        return list(lengths)

    @property
    def piece_steps(self) -> int:
        """How long the pieces are that are drawn for a step of `batch` frames."""
        return PIECE_STEPS

    def first_cut(self, size: int) -> int:
        """Where sequences are cut first in this epoch, from 1 to `size`."""
        return 1 + int(self.current_epoch * GOLDEN % 1 * size)

    def looked_at(self, lengths: Sequence[int], rank: int, world: int) -> tuple[list[Piece], float]:
        """What this step of a worker sees, and how many times as much there is.

        Math: of P pieces, k are drawn without replacement: E[P / k sum_drawn l] = sum_all l.
        """
        n = sum(lengths)
        if self.batch is None or self.batch >= n:
            return block(self.pieces(lengths), self.memory, rank, world), 1.0
        size = self.piece_steps
        every = cut(lengths, size, self.first_cut(size), self.memory)
        count = max(1, round(self.batch * len(every) / n))
        if count < world:
            raise KbrError(
                f"batch={self.batch} is {count} pieces of about {size} frames, fewer than the "
                f"{world} workers. Raise batch to {size * world} or more."
            )
        order = torch.randperm(len(every), generator=self.step_generator())
        return [every[k] for k in order[:count][rank::world].tolist()], len(every) / count

    def run(self, inputs: Float[Tensor, "t d"], lengths: Sequence[int]) -> Outputs:
        """Outputs at every step of pieces end to end, which run side by side."""
        rows = pad_sequence(list(torch.split(inputs, list(lengths))), batch_first=True)
        steps = torch.arange(rows.shape[1], device=rows.device)
        there = steps < torch.tensor(lengths, device=rows.device).unsqueeze(-1)
        return self.recur(rows, None)[0][there]

    def fit_scales(self, x: Tensor | FileRows, z: Float[Tensor, "n dz"]) -> None:
        super().fit_scales(x, z)
        self.z_mean.copy_(z.mean(0))
        self.z_scale.copy_(or_one(z.std(0, correction=0)))

    def inputs(
        self, psi: Float[Tensor, "*t d"], seen: Bool[Tensor, "*t"], *u: Float[Tensor, "*t du"]
    ) -> Float[Tensor, "*t k"]:
        """What the recurrence is fed with: features, controls, and whether the frame is there.

        Without u, as at a sequence's first step, controls are zero.
        """
        parts = [psi, *(part.to(psi) for part in u)]
        if self.controls and not u:
            parts.append(psi.new_zeros(*psi.shape[:-1], self.controls))
        if self.is_told:
            parts.append(seen.to(psi).unsqueeze(-1))
        return torch.cat(parts, -1) if len(parts) > 1 else psi

    def latents(self, outputs: Outputs) -> Float[Tensor, "*t dz"]:
        inner: Tensor = self.z_mean + self.z_scale * self.readout(outputs)
        return inner

    def training_step(self, batch: Batch, index: int) -> Tensor:
        x, z, *u = batch
        lengths = self.trainer.datamodule.train_lengths  # type: ignore[attr-defined]
        rank, world = self.trainer.global_rank, self.trainer.world_size
        loss = self.share(x, z, *u, lengths=lengths, rank=rank, world=world)
        self.log_value("train/loss", loss)
        return loss

    def share(
        self, x: Tensor, z: Tensor, *u: Tensor, lengths: Sequence[int], rank: int, world: int
    ) -> Tensor:
        """The loss of one worker's steps; the mean over workers is the loss of all.

        With `batch`, that is an estimate without bias of the loss of all frames.
        """
        pieces, times = self.looked_at(lengths, rank, world)
        rows, counted = rows_of(pieces)
        seen_lengths = [piece.end - piece.before for piece in pieces]
        psi = self.train_features(x[rows])
        seen = torch.ones(len(psi), dtype=torch.bool, device=psi.device)
        if self.gaps > 0:
            with self.epoch_randomness(part=1):
                seen = random_gaps(seen_lengths, self.gaps).to(psi.device)
            psi = hold(psi.unsqueeze(0), seen.unsqueeze(0))[0]
        counted = counted.to(psi.device)
        outputs = self.run(self.inputs(psi, seen, *(part[rows] for part in u)), seen_lengths)
        outputs = outputs[counted]
        target = (z[rows][counted].to(outputs) - self.z_mean) / self.z_scale
        error: Tensor = self.readout(outputs) - target
        if self.loss == "likelihood":
            with self.blaming_lr():
                loss = likelihood_loss(self.own_whitening(outputs), error)
        else:
            loss = error.square().sum(-1).mean()
        return loss * (times * (world * len(error) / len(z)))

    def validation_step(self, batch: Batch, index: int) -> None:
        """The error on the validation block, entered without memory, as a test sequence is."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        x, z, *u = (rows[data.cut :] for rows in batch)
        mean = self.predict(x, *u, lengths=data.val_lengths)
        self.log_value("val/mse", mean_squared_error(mean, z.to(mean)))

    def predict(
        self, x: Float[Tensor, "t ..."], *u: Tensor, lengths: Sequence[int] | None = None
    ) -> Float[Tensor, "t dz"]:
        psi = self.encode_all(x)
        seen = torch.ones(len(psi), dtype=torch.bool, device=psi.device)
        return self.latents(self.run(self.inputs(psi, seen, *u), lengths or [len(psi)]))


def _older(module: RecurrentModule, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Weights of an LSTM from before it had this base, and a precision of each step."""
    for name in [name for name in state if name.startswith(f"{prefix}lstm.")]:
        state[f"{prefix}recurrence.{name.removeprefix(f'{prefix}lstm.')}"] = state.pop(name)
    for name, value in module.precision.state_dict().items():
        state.setdefault(f"{prefix}precision.{name}", torch.zeros_like(value))
