"""The data module: training sequences, their first part to train on, the end to validate on."""

from collections.abc import Iterator, Sequence

import lightning
from torch import Tensor

from kbr.core.filters.tuning import split_lengths, validation_start

Batch = tuple[Tensor, Tensor]


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

    def __init__(self, x: Tensor, z: Tensor, lengths: Sequence[int] | None = None) -> None:
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
