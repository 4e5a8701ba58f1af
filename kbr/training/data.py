"""The data module: training sequences, their first part to train on, the end to validate on."""

from collections.abc import Iterator, Sequence
from typing import Any

import lightning
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.file_rows import FileRows
from kbr.core.filters.sequences import training_sequences
from kbr.core.filters.tuning import split_lengths, validation_start
from kbr.core.inputs import check_finite

Observations = Tensor | FileRows
Batch = tuple[Any, Tensor]  # observations and latents


def training_rows(
    x: Any, z: Any, *, whole: bool
) -> tuple[Observations, Tensor, list[int], tuple[int, ...]]:
    """Checked x [T, ...] and z [T, dz] end to end, the sequences' lengths, an observation's shape.

    Observations in a file stay there, unless they are to be `whole`.
    """
    pieces = x if isinstance(x, list | tuple) else [x]
    if not all(isinstance(piece, FileRows) for piece in pieces):
        return training_sequences(x, z)
    latents = list(z) if isinstance(z, list | tuple) else [z]
    lengths = [len(piece) for piece in pieces]
    if lengths != [len(piece) for piece in latents]:
        raise KbrError(
            f"x and z must have as many rows in every sequence; got {lengths} of x and "
            f"{[len(piece) for piece in latents]} of z."
        )
    rows, states = FileRows.join(pieces), torch.cat([torch.as_tensor(piece) for piece in latents])
    check_finite(states, name="z")
    return rows.read() if whole else rows, states, lengths, rows.shape[1:]


class FullBatch:
    """A loader of one batch: the closed-form loss is a function of all points together."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Batch]:
        yield self.batch

    def __len__(self) -> int:
        return 1


class SequenceData(lightning.LightningDataModule):
    """x [T, ...] and z [T, dz], sequences of the given lengths end to end; rows from `cut` on are
    the validation block.

    The validation batch is all of it: the filter is built from its first part.
    """

    def __init__(self, x: Observations, z: Tensor, lengths: Sequence[int] | None = None) -> None:
        super().__init__()
        self.x, self.z = x, z
        self.lengths = list(lengths or [z.shape[0]])
        self.cut = validation_start(z.shape[0])
        self.train_lengths, pieces = split_lengths(self.lengths, self.cut)
        self.val_lengths = [stop - start for start, stop in pieces]

    def train_dataloader(self) -> FullBatch:
        return FullBatch((self.x[: self.cut], self.z[: self.cut]))

    def val_dataloader(self) -> FullBatch:
        return FullBatch((self.x, self.z))
