"""Own data as a problem of the command line: read, split, scaled, and answered in its units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress, islice
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from kbr.app.own.read import Source
from kbr.app.own.recording import Recording, listed
from kbr.app.own.scaling import CONSTANT, Scaling, full_turn
from kbr.app.own.split import Split, Splitting
from kbr.app.view import BELIEFS, Gaze, Stepping, View, weights_along
from kbr.core.errors import KbrError
from kbr.core.file_rows import FileRows
from kbr.core.filters.result import FilterResult, mean_squared_error
from kbr.core.filters.state_space import StateSpaceModel
from kbr.core.memory import check_memory

SHOWN = 500  # test frames that pictures may show, of those that stay in their file


class Filter(Protocol):
    """Anything that filters one sequence."""

    def filter(self, x: Tensor) -> FilterResult: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnTrials:
    """Training and test pieces in inner coordinates; `lead` is (trials,), or () for one trial."""

    x_train: list[Any]  # tensors, or FileRows where frames stay in their file
    z_train: list[Tensor]
    x_test: list[Any]
    lead: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Estimate the recorded state at every test step from the observations so far.

    All seeds see the same rows: trials differ only where a network is trained.
    """

    name: str
    source: Source
    splitting: Splitting
    circular: Sequence[str] = ()
    angle_unit: str = "degrees"
    units: Mapping[str, str] | None = None

    val_name: ClassVar[str] = "val_mse_standardised"

    def __post_init__(self) -> None:
        full_turn(self.angle_unit)
        object.__setattr__(self, "circular", listed(self.circular) or ())

    @cached_property
    def recording(self) -> Recording:
        recording = self.source.read()
        names = (*(() if recording.has_images else recording.x_names), *recording.z_names)
        for key, given in (("circular", self.circular), ("units", self.units or {})):
            for name in given:
                if name not in names:
                    raise KbrError(
                        f"data.{key} names '{name}', which is no column of z "
                        f"({', '.join(recording.z_names)}) or x. Correct data.{key}, or name the "
                        "columns (data.x, data.z)."
                    )
        return recording

    @cached_property
    def parts(self) -> Split:
        return self.splitting(self.recording)

    @cached_property
    def scale_x(self) -> Scaling:
        if self.recording.file is not None:
            frames = self.recording.file.part(self.parts.train_rows)
            return Scaling.of_images(frames, self.recording.x_names, full_turn(self.angle_unit))
        rows = self.recording.x[self.parts.train_rows]
        if not np.ptp(rows, axis=0).any():
            raise KbrError(CONSTANT)
        return self._scaling(rows, self.recording.x_names)

    @cached_property
    def scale_z(self) -> Scaling:
        rows, names = self.recording.z[self.parts.train_rows], self.recording.z_names
        for name, width in zip(names, np.ptp(rows, axis=0), strict=True):
            if width == 0:
                raise KbrError(
                    f"column '{name}' of z is constant over the training rows: there is nothing "
                    "to learn. Take it out of z, or change data.split or data.test_share."
                )
        return self._scaling(rows, names)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the state's columns with their units."""
        return tuple(self.label(name) for name in self.recording.z_names)

    def label(self, name: str) -> str:
        unit = (self.units or {}).get(name)
        if unit is None and name in self.circular:
            unit = {"degrees": "deg", "radians": "rad"}[self.angle_unit]
        return f"{name} [{unit}]" if unit else name

    def data(self, seed: int) -> OwnTrials:
        return self._pieces(())

    def trials(self, seeds: Sequence[int]) -> OwnTrials:
        """For closed forms, which take all observations at once: frames in a file are read."""
        made = self._pieces((len(seeds),))
        frames = self.recording.file
        if frames is None:
            return made
        check_memory(
            8.0 * len(self.parts.train_rows) * math.prod(frames.shape[1:]),
            what=f"a kernel on {len(self.parts.train_rows):,} raw frames",
            advice="Use model=iw_nn, which reads them by blocks, or lower data.n_train.",
        )
        x_train, x_test = ([rows.read() for rows in x] for x in (made.x_train, made.x_test))
        return replace(made, x_train=x_train, x_test=x_test)

    def test(self, made: Filter, data: OwnTrials) -> tuple[FilterResult, Tensor]:
        """Answers at the test rows whose state is known, and that state, in recorded units.

        Every piece is entered without memory; rows with a missing x are predictions.
        """
        found = [made.filter(piece) for piece in data.x_test]
        known = self._known
        joined = FilterResult(
            torch.cat([r.mean for r in found])[known],
            torch.cat([r.cov for r in found])[known],
            torch.cat([r.evidence for r in found])[known],
        )
        result = self.scale_z.undo(joined)
        truth = self.scale_z.nearest(self._truth(known), result.mean)

        def spread(tensor: Tensor) -> Tensor:
            return tensor.expand(*data.lead, *tensor.shape)

        spreaded = FilterResult(*map(spread, (result.mean, result.cov, result.evidence)))
        return spreaded, spread(truth)

    def view(self, data: OwnTrials, filt: Stepping | None = None, gaze: Gaze | None = None) -> View:
        """What pictures show: recorded values, at the test rows that `test` answers."""
        weights = None
        if filt is not None:
            frames = (_one_by_one(piece) for piece in data.x_test)
            along = chain.from_iterable(weights_along(filt, piece) for piece in frames)
            weights = torch.stack(list(islice(compress(along, self._known.tolist()), BELIEFS)))
        train, test = self.parts.train_rows, self.parts.test_rows[self._known.numpy()]
        rows: Any = self.recording.x if self.recording.file is None else self.recording.file
        few = len(test) if self.recording.file is None else SHOWN
        return View(
            x_train=_recorded(rows, train),
            z_train=torch.from_numpy(self.recording.z[train]),
            x_test=_recorded(rows, test[:few], whole=True),
            weights=weights,
            gaze=gaze and (lambda frames: gaze(self.scale_x.apply(frames.numpy()))),
            labels=self.labels,
        )

    def as_recorded(self, x: Tensor) -> Tensor:
        """Frames in recorded values again; vectors are never shown."""
        return x * self.scale_x.scale.to(x) + self.scale_x.mean.to(x)

    def info(self) -> dict[str, Any]:
        """The error of always answering the training mean: what a filter has to beat."""
        known = self._known
        centre = torch.zeros(int(known.sum()), self.scale_z.mean.shape[0], dtype=torch.float64)
        blind = torch.zeros(*centre.shape, centre.shape[-1], dtype=torch.float64)
        here = torch.ones(len(centre), dtype=torch.bool)
        mean = self.scale_z.undo(FilterResult(centre, blind, here)).mean
        truth = self.scale_z.nearest(self._truth(known), mean)
        return {"test/mse_of_mean": float(mean_squared_error(mean, truth))}

    def state_space(self) -> StateSpaceModel:
        raise KbrError(
            "models ekf, ukf, particle and iw_true_ratio need the true dynamics and sensor, which "
            f"data={self.name} does not know. Use model=iw, iw_paper, original, iw_nn or lstm."
        )

    def columns(self) -> dict[str, object]:
        return {"data": self.name, "n_train": len(self.parts.train_rows)}

    def extra_metrics(self, mean: Tensor, truth: Tensor) -> dict[str, float]:
        return {}  # the error of every column is among the metrics by its label

    def record(self) -> dict[str, Any]:
        """What a run keeps about its data: enough to scale new observations and to undo it."""
        return {
            "path": str(self.source.path),
            "content": self.recording.digest(),
            "x": list(self.recording.x_names),
            "z": list(self.recording.z_names),
            "labels": list(self.labels),
            "shape": list(self.recording.x.shape[1:]),
            "split": self.parts.kind,
            "train_rows": len(self.parts.train_rows),
            "test_rows": len(self.parts.test_rows),
            "scale_x": self.scale_x.record(),
            "scale_z": self.scale_z.record(),
        }

    def check_same(self, record: Mapping[str, Any]) -> None:
        """An error where the file is not the one that a run was trained on."""
        if record["content"] != self.recording.digest():
            raise KbrError(
                f"the data at {self.source.path} have changed since this run was trained, so its "
                "numbers cannot come out the same. Put the old file back, or train again."
            )

    def _pieces(self, lead: tuple[int, ...]) -> OwnTrials:
        z, parts = self.recording.z, self.parts
        return OwnTrials(
            x_train=[self._observed(rows) for rows in parts.train],
            z_train=[self.scale_z.apply(z[rows]) for rows in parts.train],
            x_test=[self._observed(rows) for rows in parts.test],
            lead=lead,
        )

    def _observed(self, rows: np.ndarray) -> Any:
        """Observations in inner coordinates; frames that stay in their file are read later."""
        if self.recording.file is None:
            return self.scale_x.apply(self.recording.x[rows])
        return self.recording.file.part(rows).scaled(self.scale_x.mean, self.scale_x.scale)

    @property
    def _known(self) -> Tensor:
        """[test rows] bool: the state was recorded."""
        return torch.from_numpy(~self.recording.z_missing[self.parts.test_rows])

    def _truth(self, known: Tensor) -> Tensor:
        return torch.from_numpy(self.recording.z[self.parts.test_rows])[known]

    def _scaling(self, rows: np.ndarray, names: Sequence[str]) -> Scaling:
        return Scaling.fit(rows, names, self.circular, full_turn(self.angle_unit))


def _one_by_one(x: Tensor | FileRows) -> Iterable[Tensor]:
    """Every observation; those in a file as they are asked for."""
    if isinstance(x, FileRows):
        return (frame for part in x.parts() for frame in part.read())
    return x


def _recorded(x: np.ndarray | FileRows, rows: np.ndarray, *, whole: bool = False) -> Any:
    """Observations in recorded values; of a file, those that are asked for later."""
    if isinstance(x, FileRows):
        return x.part(rows).read() if whole else x.part(rows)
    return torch.from_numpy(x[rows])
