"""Own data as a problem of the command line: read, split, scaled, and answered in its units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from kbr.app.figures.view import BELIEFS, Gaze, Stepping, View, weights_along
from kbr.app.recordings.checks import reading_notes
from kbr.app.recordings.files import Paths
from kbr.app.recordings.read import READING, Source
from kbr.app.recordings.recording import Recording, listed
from kbr.app.recordings.resample import resampled
from kbr.app.recordings.split import Split, Splitting
from kbr.app.run.folder import DATA, read_json
from kbr.core.errors import KbrError
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.result import FilterResult, joined, mean_squared_error
from kbr.core.io.file_rows import FileRows
from kbr.core.io.memory import check_memory
from kbr.core.units.controls import Controls
from kbr.core.units.layout import Layout
from kbr.core.units.scaling import TURNS, Scaling, full_turn
from kbr.core.units.sensors import Sensors, Wanted, sensors_of
from kbr.core.units.training_range import ranges_of
from kbr.core.units.trend import Trend
from kbr.core.units.units import Units
from kbr.loading import RECURRENT, knows_units

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
    u_train: list[Tensor] | None = None  # control inputs, where there are some
    u_test: list[Tensor] | None = None
    lead: tuple[int, ...] = ()


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
    resample: str | float | None = None
    added: Sequence[str] = ()  # control inputs that add up over longer steps, others are averaged
    controls_in_x: bool = False  # for a model that takes none
    sensors: Wanted = None
    trend: int | None = None  # x as trailing means of so many rows, their change, and the age

    val_name: ClassVar[str] = "val_mse_standardised"
    is_recorded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.angle_unit not in TURNS:
            raise KbrError(
                f"data.angle_unit must be degrees or radians; got {self.angle_unit!r}. Set it."
            )
        for key in ("circular", "added"):
            object.__setattr__(self, key, listed(getattr(self, key)) or ())

    @cached_property
    def recording(self) -> Recording:
        recording = self.source.read()
        seen = (name for name, _ in recording.numbers)
        names = (*seen, *recording.z_names, *recording.u_names)
        for key, marked in (("circular", self.circular), ("units", self.units or {})):
            for name in marked:
                if name not in names:
                    raise KbrError(
                        f"data.{key} names '{name}', which is no column of z "
                        f"({', '.join(recording.z_names)}) or x. Correct data.{key}, or name the "
                        "columns (data.x, data.z)."
                    )
        if unknown := [name for name in self.added if name not in recording.u_names]:
            raise KbrError(f"data.added names '{unknown[0]}', which is no control input (data.u).")
        if self.trend is not None and (angles := set(self.circular) & set(recording.x_names)):
            raise KbrError(
                f"data.trend takes plain means, and '{min(angles)}' of x is an angle. Leave it out."
            )
        recording = self._steps(recording)
        return recording.with_controls_in_x() if self.controls_in_x else recording

    def _steps(self, recording: Recording) -> Recording:
        """The rows that count as steps, and what is seen in them."""
        if self.resample is not None:
            recording = resampled(
                recording,
                self.resample,
                angles=self.circular,
                turn=full_turn(self.angle_unit),
                max_gap=self.splitting.max_gap,
                added=self.added,
            )
        if self.trend is None:
            return recording
        return recording.with_trend(Trend(self.trend, recording.x_names))

    def suited(self, method: Any) -> "OwnData":
        """These data as a model can take them; an error where it cannot."""
        if self.source.u is not None and not getattr(method, "takes_controls", False):
            raise KbrError(
                f"data.u: model={method.name} takes no control inputs; model=iw, iw_paper, "
                f"original, {', '.join(RECURRENT)} do. Else put them among data.x."
            )
        if self.sensors is not None and not getattr(method, "takes_sensors", False):
            raise KbrError(
                f"data.sensors: model={method.name} takes whole rows only; model=iw, iw_nn, "
                f"iw_readout, {', '.join(RECURRENT)} know absent sensors. Use one, or leave "
                "data.sensors out."
            )
        return self

    @cached_property
    def parts(self) -> Split:
        return self.splitting(self.recording)

    @property
    def has_own_vectors(self) -> bool:
        return not self.recording.has_images and self.recording.layout is None

    @property
    def test_steps(self) -> int:
        """Rows that a filter goes through; some of them may not be scored."""
        return len(self.parts.test_rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut, left out or not used."""
        return reading_notes(self.recording, self.parts)

    @cached_property
    def filter_units(self) -> Units:
        """What the columns mean, fitted on the training rows: all filters of this run have it."""
        units, rows = self._units_without_ranges(), self.parts.train_rows
        z, moves = torch.from_numpy(self.recording.z[rows]), None
        if units.u is not None and any(units.u.used):
            moves = units.u.given(None, self._moves())
        return replace(units, ranges=ranges_of(units, self._observed(rows), z, moves))

    def _units_without_ranges(self) -> Units:
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
                "several": recording.has_ids,
                "time": source.time or "time",
                "dates": recording.time_unit == "s" if recording.time is not None else None,
                **{key: getattr(source, key) for key in READING},
                **({"u": None} if self.controls_in_x else {}),
                "resample": self.resample,
                "added": list(self.added),
                "trend": recording.trend and recording.trend.source,
            },
            u=self._controls(),
            sensors=self._sensors(),
            layout=recording.layout,
        )

    def _scale_x(self) -> Scaling:
        x = self._observed(self.parts.train_rows)
        if isinstance(x, FileRows):
            scaling = Scaling.of_images(x)
            constant = bool((scaling.scale == 1).all()) and _is_constant(x)
        else:
            layout = self.recording.layout or Layout.of_numbers(self.recording.x_names)
            scaling = self._scaling(x, layout.columns, channels=layout.channels)
            constant = bool((x == x[0]).all())
        if constant:
            raise KbrError(
                "x is constant over the training rows: it says nothing about z. Choose other "
                "columns (data.x), or another part (data.split, data.test_share)."
            )
        return scaling

    def _sensors(self) -> Sensors | None:
        if self.sensors is None:
            return None
        recording = self.recording
        if recording.has_images:
            raise KbrError("data.sensors are groups of columns; x are frames. Leave it out.")
        layout = recording.layout or Layout.of_numbers(recording.x_names)
        marks = [name in self.circular for name in layout.columns]
        return sensors_of(self.sensors, layout, marks)

    def _controls(self) -> Controls | None:
        recording = self.recording
        if recording.u is None:
            return None
        moves = self._moves()
        tested = np.concatenate([recording.u[rows[1:]] for rows in self.parts.test])
        if not len(moves) or not np.isfinite(tested).all():
            raise KbrError(
                f"data.u ({', '.join(recording.u_names)}) has missing values in test rows, or in "
                "all training rows; without its control a step cannot be predicted. Fill them."
            )
        turn = full_turn(self.angle_unit)
        return Controls.fit(moves, recording.u_names, circular=self.circular, turn=turn)

    def _moves(self) -> Tensor:
        """The controls of training rows that have some; what leads to a first row is none."""
        assert self.recording.u is not None
        rows = np.concatenate([rows[1:] for rows in self.parts.train])
        moves = torch.from_numpy(self.recording.u[rows])
        return moves[moves.isfinite().all(-1)]

    def _scale_z(self) -> Scaling:
        rows, names = self.recording.z[self.parts.train_rows], self.recording.z_names
        for name, column in zip(names, rows.T, strict=True):
            if (column == column[0]).all():
                raise KbrError(
                    f"column '{name}' of z is constant over the training rows: there is nothing "
                    "to learn. Take it out of z, or change data.split or data.test_share."
                )
        return self._scaling(torch.from_numpy(rows), names)

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
        z, u, parts = self.recording.z, self.recording.u, self.parts
        return OwnTrials(
            u_train=None if u is None else [torch.from_numpy(u[rows]) for rows in parts.train],
            u_test=None if u is None else [torch.from_numpy(u[rows]) for rows in parts.test],
            x_train=[self._observed(rows) for rows in parts.train],
            z_train=[torch.from_numpy(z[rows]) for rows in parts.train],
            x_test=[self._observed(rows) for rows in parts.test],
        )

    def trials(self, seeds: Sequence[int]) -> OwnTrials:
        """For closed forms, which take all observations at once: frames in a file are read."""
        pieces = replace(self.data(0), lead=(len(seeds),))
        frames = self.recording.file
        if frames is None:
            return pieces
        check_memory(
            8.0 * len(self.parts.train_rows) * math.prod(frames.shape[1:]),
            what=f"a kernel on {len(self.parts.train_rows):,} raw frames",
            advice="Use model=iw_nn, which reads them by blocks, or lower data.n_train.",
        )
        x_train, x_test = ([rows.read() for rows in x] for x in (pieces.x_train, pieces.x_test))
        return replace(pieces, x_train=x_train, x_test=x_test)

    def test(self, filt: Filter, data: OwnTrials) -> tuple[FilterResult, Tensor]:
        """Answers at the test rows whose state is known, and that state, in recorded units.

        Every piece is entered without memory; rows with a missing x are predictions.
        """
        if data.u_test is None:
            results = [filt.filter(piece) for piece in data.x_test]
        else:
            pairs = zip(data.x_test, data.u_test, strict=True)
            results = [filt.filter(piece, u=u) for piece, u in pairs]  # type: ignore[call-arg]
        whole = joined(results)
        answers = {name: getattr(whole, name) for name in ("mean", "cov", "evidence", "raw_cov")}
        answers = {name: value[self._known] for name, value in answers.items() if value is not None}
        truth = self.filter_units.z.nearest(self._truth, answers["mean"])

        def spread(tensor: Tensor) -> Tensor:
            return tensor.expand(*data.lead, *tensor.shape)

        spread_out: dict[str, Any] = {name: spread(value) for name, value in answers.items()}
        return FilterResult(**spread_out, units=whole.units), spread(truth)

    def view(self, data: OwnTrials, filt: Stepping | None = None, gaze: Gaze | None = None) -> View:
        """What pictures show: recorded values, at the test rows that `test` answers."""
        weights = None
        if filt is not None and data.u_test is None:
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
            turns=tuple(
                full_turn(self.angle_unit) if name in self.circular else None
                for name in self.recording.z_names
            ),
        )

    def info(self) -> dict[str, Any]:
        """The error of always answering the training mean: what a filter has to beat."""
        scaling, truth = self.filter_units.z, self._truth
        centre = torch.zeros(len(truth), scaling.mean.shape[-1], dtype=torch.float64)
        mean, _ = scaling.undo(centre, torch.diag_embed(centre))
        error = mean_squared_error(mean, scaling.nearest(truth, mean))
        return {"test/mse_of_mean": float(error)}

    def state_space(self) -> StateSpaceModel:
        raise KbrError(
            "models ekf, ukf, particle and iw_true_ratio need the true dynamics and sensor, which "
            f"data={self.name} does not know. Use model=iw, iw_paper, original, iw_nn, "
            f"{', '.join(RECURRENT)}."
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

    def _observed(self, rows: np.ndarray) -> Any:
        """Observations as recorded; frames that stay in their file are read later."""
        if self.recording.file is None:
            return torch.from_numpy(self.recording.x[rows])
        return self.recording.file.part(rows)

    @property
    def _known(self) -> Tensor:
        """[test rows] bool: the state was recorded."""
        return torch.from_numpy(~self.recording.z_missing[self.parts.test_rows])

    @property
    def _truth(self) -> Tensor:
        return torch.from_numpy(self.recording.z[self.parts.test_rows])[self._known]

    def _scaling(self, rows: Tensor, names: Sequence[str], **about: Any) -> Scaling:
        marks = () if rows.ndim > 2 else tuple(name in self.circular for name in names)
        return Scaling.fit(rows, marks, full_turn(self.angle_unit), **about)


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
    error = units.z.apply(mean.double()) - units.z.apply(truth.double())
    return float(error.square().sum(-1).mean())


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Tensors as lists, for JSON."""
    return {k: v.flatten().tolist() if isinstance(v, Tensor) else v for k, v in record.items()}


def _named(sensors: Wanted) -> list[str]:
    """The columns that sensors name."""
    groups = sensors.values() if isinstance(sensors, Mapping) else ()
    each = ([group] if isinstance(group, str | int) else group for group in groups)
    return [str(name) for group in each for name in group]


def recording(
    *,
    name: str,
    path: Paths | None,
    circular: Sequence[str] = (),
    angle_unit: str = "degrees",
    units: Mapping[str, str] | None = None,
    resample: str | float | None = None,
    added: Sequence[str] = (),
    sensors: Wanted = None,
    trend: int | None = None,
    **keys: Any,
) -> OwnData:
    """What data=recording names: how the file is read (`Source`), split (`Splitting`), scaled."""
    splitting = {each.name: keys.pop(each.name) for each in fields(Splitting) if each.name in keys}
    return OwnData(
        name=name,
        source=Source(path=path, parted=sensors is not None, parts=_named(sensors), **keys),
        splitting=Splitting(**splitting),
        circular=circular,
        angle_unit=angle_unit,
        units=units,
        resample=resample,
        added=added,
        sensors=sensors,
        trend=trend,
    )
