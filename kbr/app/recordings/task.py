"""Own data as a problem of the command line: read, split, scaled, and answered in its units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from kbr.app.figures.view import BELIEFS, Gaze, Stepping, View, weights_along
from kbr.app.recordings.checks import reading_notes
from kbr.app.recordings.read import Source
from kbr.app.recordings.recording import Recording, listed
from kbr.app.recordings.split import Split, Splitting
from kbr.app.run.folder import DATA, read_json
from kbr.core.errors import KbrError
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.result import FilterResult, joined, mean_squared_error
from kbr.core.io.file_rows import FileRows
from kbr.core.io.memory import check_memory
from kbr.core.units.scaling import TURNS, Scaling, full_turn
from kbr.core.units.units import Units
from kbr.loading import knows_units

CONSTANT = (
    "x is constant over the training rows: it says nothing about z. Choose other columns (data.x), "
    "or another part (data.split, data.test_share)."
)
PICTURED = 500  # test frames that pictures may show, of those that stay in their file


class Filter(Protocol):
    """Anything that filters one sequence."""

    def filter(self, x: Tensor) -> FilterResult: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnTrials:
    """Training and test pieces as recorded; `lead` is (trials,), or () for one trial."""

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
    is_recorded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.angle_unit not in TURNS:
            raise KbrError(
                f"data.angle_unit must be degrees or radians; got {self.angle_unit!r}. Set it."
            )
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

    @property
    def has_own_vectors(self) -> bool:
        return not self.recording.has_images

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut, left out or not used."""
        return reading_notes(self.recording, self.parts)

    @cached_property
    def filter_units(self) -> Units:
        """What the columns mean, fitted on the training rows: all filters of this run have it."""
        recording, source = self.recording, self.source
        return Units(
            self._scale_x(),
            self._scale_z(),
            None if recording.has_images else recording.x_names,
            recording.z_names,
            labels=self.labels,
            max_gap=None if self.parts.sampling is None else self.parts.sampling.limit,
            source={
                "sequence": source.sequence or "sequence",
                "several": recording.ids is not None,
                "time": source.time or "time",
                "dates": recording.time_unit == "s" if recording.time is not None else None,
                "decimal": source.decimal,
                "file": source.file,
                "resize": None if source.resize is None else list(source.resize),
                "channels": source.channels,
            },
        )

    def _scale_x(self) -> Scaling:
        rows, frames = self.parts.train_rows, self.recording.file
        if frames is not None:
            made = Scaling.of_images(frames.part(rows))
            if bool((made.scale == 1).all()) and _is_constant(frames.part(rows)):
                raise KbrError(CONSTANT)
            return made
        values = self.recording.x[rows]
        if not np.ptp(values, axis=0).any():
            raise KbrError(CONSTANT)
        return self._scaling(values, self.recording.x_names)

    def _scale_z(self) -> Scaling:
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
        whole = joined([made.filter(piece) for piece in data.x_test])
        known = self._known
        found = {name: getattr(whole, name) for name in ("mean", "cov", "evidence", "raw_cov")}
        found = {name: value[known] for name, value in found.items() if value is not None}
        truth = self.filter_units.z.nearest(self._truth(known), found["mean"])

        def spread(tensor: Tensor) -> Tensor:
            return tensor.expand(*data.lead, *tensor.shape)

        return FilterResult(**{n: spread(value) for n, value in found.items()}), spread(truth)

    def view(self, data: OwnTrials, filt: Stepping | None = None, gaze: Gaze | None = None) -> View:
        """What pictures show: recorded values, at the test rows that `test` answers."""
        weights = None
        if filt is not None:
            frames = (_one_by_one(piece) for piece in data.x_test)
            along = chain.from_iterable(weights_along(filt, piece) for piece in frames)
            weights = torch.stack(list(islice(compress(along, self._known.tolist()), BELIEFS)))
        train, test = self.parts.train_rows, self.parts.test_rows[self._known.numpy()]
        x_test = self._observed(test if self.recording.file is None else test[:PICTURED])
        return View(
            x_train=self._observed(train),
            z_train=torch.from_numpy(self.recording.z[train]),
            x_test=x_test.read() if isinstance(x_test, FileRows) else x_test,
            weights=weights,
            gaze=gaze,
            labels=self.labels,
            turns=tuple(self._turn(name) for name in self.recording.z_names),
        )

    def _turn(self, name: str) -> float | None:
        return full_turn(self.angle_unit) if name in self.circular else None

    def info(self) -> dict[str, Any]:
        """The error of always answering the training mean: what a filter has to beat."""
        known, scaling = self._known, self.filter_units.z
        k = scaling.mean.shape[-1]
        centre = torch.zeros(int(known.sum()), k, dtype=torch.float64)
        mean, _ = scaling.undo(centre, torch.zeros(*centre.shape, k, dtype=torch.float64))
        truth = scaling.nearest(self._truth(known), mean)
        return {"test/mse_of_mean": float(mean_squared_error(mean, truth))}

    def state_space(self) -> StateSpaceModel:
        raise KbrError(
            "models ekf, ukf, particle and iw_true_ratio need the true dynamics and sensor, which "
            f"data={self.name} does not know. Use model=iw, iw_paper, original, iw_nn or lstm."
        )

    def columns(self) -> dict[str, object]:
        return {"data": self.name, "n_train": len(self.parts.train_rows)}

    def extra_metrics(self, mean: Tensor, truth: Tensor) -> dict[str, float]:
        """What adds columns of different units; the error of each is there by its label."""
        return {"test/mse_standardised": standardised_error(self.filter_units, mean, truth)}

    def record(self) -> dict[str, Any]:
        """What a run keeps about its data, for people and to tell whether the file has changed."""
        return {
            "path": str(self.source.path),
            "content": self.recording.digest(),
            "rows": len(self.recording),
            "x": list(self.recording.x_names),
            "z": list(self.recording.z_names),
            "labels": list(self.labels),
            "shape": list(self.recording.x.shape[1:]),
            "split": self.parts.kind,
            "train_rows": len(self.parts.train_rows),
            "test_rows": len(self.parts.test_rows),
            "scale_x": _plain(self.filter_units.x.record()),
            "scale_z": _plain(self.filter_units.z.record()),
        }

    def check_unchanged(self, folder: Path) -> None:
        """An error where the file is not the one that the run in `folder` was trained on."""
        path = self.source.path
        if not knows_units(folder):
            raise KbrError(
                f"{folder} was written before filters kept their units. Its filter can be used: "
                f"run={folder} data.path={path}, kbr-filter or kbr.load_filter; for its test "
                "rows, train again."
            )
        record = read_json(folder / DATA)
        if record is None or "content" not in record:
            raise KbrError(
                f"{folder / DATA} is missing or damaged: it does not say which data the run had. "
                "Repeat the run."
            )
        if record["content"] == self.recording.digest():
            return
        now = self.record()
        differ = [
            f"{key} {record[key]} then, {now[key]} now"
            for key in ("rows", "x", "z")
            if key in record and record[key] != now[key]
        ]
        raise KbrError(
            f"the data at {path} have changed since this run was trained "
            f"({'; '.join(differ) or 'other values in as many rows'}), so its numbers cannot come "
            f"out the same. Put the old file back, or take this one as a new recording: "
            f"data.path={path}"
        )

    def with_fresh_tests(self, shift: int) -> NoReturn:
        raise KbrError(
            f"data.seed asks for fresh test sequences; data={self.name} is a recording, whose "
            "test rows are all there are. Leave out data.seed; a new recording is data.path."
        )

    def _pieces(self, lead: tuple[int, ...]) -> OwnTrials:
        z, parts = self.recording.z, self.parts
        return OwnTrials(
            x_train=[self._observed(rows) for rows in parts.train],
            z_train=[torch.from_numpy(z[rows]) for rows in parts.train],
            x_test=[self._observed(rows) for rows in parts.test],
            lead=lead,
        )

    def _observed(self, rows: np.ndarray) -> Any:
        """Observations as recorded; frames that stay in their file are read later."""
        if self.recording.file is None:
            return torch.from_numpy(self.recording.x[rows])
        return self.recording.file.part(rows)

    @property
    def _known(self) -> Tensor:
        """[test rows] bool: the state was recorded."""
        return torch.from_numpy(~self.recording.z_missing[self.parts.test_rows])

    def _truth(self, known: Tensor) -> Tensor:
        return torch.from_numpy(self.recording.z[self.parts.test_rows])[known]

    def _scaling(self, rows: np.ndarray, names: Sequence[str]) -> Scaling:
        marks = () if rows.ndim > 2 else tuple(name in self.circular for name in names)
        return Scaling.fit(torch.from_numpy(rows), marks, full_turn(self.angle_unit))


def _one_by_one(x: Tensor | FileRows) -> Iterable[Tensor]:
    """Every observation; those in a file as they are asked for."""
    if isinstance(x, FileRows):
        return (frame for part in x.parts() for frame in part.read())
    return x


def _is_constant(frames: FileRows) -> bool:
    first = frames.part(slice(1)).raw()[0]
    return all(bool((part.raw() == first).all()) for part in frames.parts())


def standardised_error(units: Units, mean: Tensor, truth: Tensor) -> float:
    """Squared error in standard deviations of the training latents, summed over the columns.

    Columns of different units can be added this way; an angle counts by its (cos, sin).
    """
    found = units.z.apply(mean.double()) - units.z.apply(truth.double())
    return float(found.square().sum(-1).mean())


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Tensors as lists, for JSON."""
    return {k: v.flatten().tolist() if isinstance(v, Tensor) else v for k, v in record.items()}


def recording(
    *,
    name: str,
    path: str | None,
    circular: Sequence[str] = (),
    angle_unit: str = "degrees",
    units: Mapping[str, str] | None = None,
    split: str = "auto",
    test_share: float = 0.25,
    max_gap: float | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    **reading: Any,
) -> OwnData:
    """What data=recording names: how the file is read (the keys of `Source`), split and scaled."""
    return OwnData(
        name=name,
        source=Source(path=path, **reading),
        splitting=Splitting(
            split=split, test_share=test_share, max_gap=max_gap, n_train=n_train, n_test=n_test
        ),
        circular=circular,
        angle_unit=angle_unit,
        units=units,
    )
