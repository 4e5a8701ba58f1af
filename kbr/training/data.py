"""The data module: training sequences, their first part to train on, the end to validate on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.validation import split_lengths, validation_start
from kbr.core.filters.sequences import split
from kbr.core.filters.training_data import training_data
from kbr.core.inputs import as_tensor, check_finite
from kbr.core.io.file_rows import FileRows
from kbr.core.units.layout import has_parts
from kbr.core.units.scaling import Scaling
from kbr.core.units.units import Units

Observations = Tensor | FileRows
Batch = tuple[Any, ...]  # observations, latents and, where there are some, controls


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Inner x [T, ...], z [T, dz] and controls [T, du] end to end, and what they mean."""

    x: Observations
    z: Tensor
    lengths: list[int]
    shape: tuple[int, ...]  # of one inner observation
    units: Units
    u: tuple[Tensor, ...] = ()  # one tensor, or none


def training_rows(x: Any, z: Any, *, whole: bool, **about: Any) -> TrainingRows:
    """What users pass to `fit`, checked and scaled; networks scale observations by themselves.

    `about` is what `training_data` takes. Observations in a file stay there, unless they are to be
    `whole`.
    """
    pieces = x if isinstance(x, list | tuple) else [x]
    if about.get("u") is not None and whole:  # which are checked row by row, with x and z
        pieces = [p.read() if isinstance(p, FileRows) else p for p in pieces]
        x = pieces if isinstance(x, list | tuple) else pieces[0]
    if not all(isinstance(piece, FileRows) for piece in pieces):
        units, sensors = about.get("units"), about.get("sensors")
        parted = sensors is not None or (units is not None and units.sensors is not None)
        parted = parted or has_parts(x)
        # Zero, which stands for what is absent, is to be the mean of what is there.
        data = training_data(x, z, standardize=(parted, True), **about)
        if data.z.ndim != 2:
            raise KbrError(
                f"networks train on one sequence, z [T, dz], or a list of them; got z of shape "
                f"{tuple(data.z.shape)}. Pass a list, or loop over data sets."
            )
        rows = data.observed if data.sensors is None else data.sensors.filled(data.observed)
        shape = data.shape if data.sensors is None else tuple(rows.shape[1:])
        rows = rows.to(torch.float32).reshape(-1, *shape)
        controls = split(data.x, data.controls)[1]
        u = () if controls is None else (controls.to(torch.float32),)
        return TrainingRows(rows, data.z, data.lengths, shape, data.units, u)
    latents = list(z) if isinstance(z, list | tuple) else [z]
    lengths = [len(piece) for piece in pieces]
    if lengths != [len(piece) for piece in latents]:
        raise KbrError(
            f"x and z must have as many rows in every sequence; got {lengths} of x and "
            f"{[len(piece) for piece in latents]} of z."
        )
    states = torch.cat([as_tensor(piece, name="z").double() for piece in latents])
    check_finite(states, name="z")
    units = about.get("units") or Units(Scaling.none(states), Scaling.fit(states))
    frames = units.observations(FileRows.join(pieces))
    assert isinstance(frames, FileRows)
    inner = frames.read() if whole else frames
    return TrainingRows(inner, units.z.apply(states), lengths, tuple(frames.shape[1:]), units)


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
    the validation block: the usual one, unless told. `test` is a sequence x, z of its own.
    u [T, du] are control inputs.

    The validation batch is all of it: the filter is built from its first part.
    """

    def __init__(
        self,
        x: Observations,
        z: Tensor,
        lengths: Sequence[int] | None = None,
        *,
        test: Batch | None = None,
        u: Tensor | None = None,
        cut: int | None = None,
    ) -> None:
        super().__init__()
        self.x, self.z, self.test = x, z, test
        self.whole: Batch = (x, z) if u is None else (x, z, u)
        self.lengths = list(lengths or [z.shape[0]])
        self.cut = validation_start(z.shape[0]) if cut is None else cut
        self.train_lengths, pieces = split_lengths(self.lengths, self.cut)
        self.val_lengths = [stop - start for start, stop in pieces]

    @property
    def training_part(self) -> Batch:
        return tuple(rows[: self.cut] for rows in self.whole)

    def train_dataloader(self) -> FullBatch:
        return FullBatch(self.training_part)

    def val_dataloader(self) -> FullBatch:
        return FullBatch(self.whole)

    def test_dataloader(self) -> FullBatch:
        if self.test is None:
            raise KbrError("there is no test sequence: SequenceData(x, z, test=(x_test, z_test)).")
        return FullBatch(self.test)
