"""The real recordings as data options: what `_target_` of their config files names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kbr.app.real import battery as cell
from kbr.app.real import pictures
from kbr.app.real import rtt_canteen as walks
from kbr.app.real import uwb_plaza as plaza
from kbr.app.real.battery import battery as read_battery
from kbr.app.real.rtt_canteen import rtt_canteen as read_rtt_canteen
from kbr.app.real.sequences import TEST, RealRecording
from kbr.app.real.thinning import thinned
from kbr.app.real.turbofan import turbofan as read_turbofan
from kbr.app.real.uwb_plaza import uwb_plaza as read_uwb_plaza
from kbr.app.recordings.measure import CYCLES, DISTANCE, PERCENT, Measure
from kbr.app.recordings.read import Source
from kbr.app.recordings.recording import Recording
from kbr.app.recordings.split import Splitting
from kbr.app.recordings.task import OwnData
from kbr.core.units.layout import Layout
from kbr.core.units.sensors import Sensors, sensors_of


@dataclass(frozen=True, kw_only=True)
class RealSource(Source):
    """A reader in the place of files; names of columns are kept for new recordings."""

    reader: Callable[[], RealRecording]

    def read(self) -> Recording:
        found = replace(self.reader().recording, parted=self.parted)
        return found if self.u else replace(found, u=None, u_names=())


@dataclass(frozen=True, kw_only=True)
class Documented(Splitting):
    """The split of the recording's own: by the ids of its sequences."""

    more_train: ClassVar[str] = "Raise data.n_train, or data.hold where there is one"
    more_test: ClassVar[str] = "Raise data.n_test"

    def held_out(self, recording: Recording) -> tuple[str, np.ndarray]:
        assert recording.ids is not None
        return "documented", np.char.startswith(recording.ids, TEST)


@dataclass(frozen=True, kw_only=True)
class RealData(OwnData):
    """Own data with a picture of their own, and an error that people of the field know."""

    measure: Measure
    story: Callable[[Path, OwnData, Any], None]  # into a file, of the problem and a filter
    rows: int | None  # at most so many training rows, evenly thinned

    def suited(self, method: Any) -> OwnData:
        """Models without controls see them as columns of x, those without sensors whole rows."""
        found = self
        if not getattr(method, "takes_controls", False):
            found = replace(found, controls_in_x=True)
        if self.sensors is not None and not getattr(method, "takes_sensors", False):
            found = replace(found, sensors=None, source=replace(self.source, parted=False))
        return found

    def _sensors(self) -> Sensors | None:
        """Columns that begin with the same name are one sensor."""
        if self.sensors is None:
            return None
        groups: dict[str, list[str]] = {}
        for name in self.recording.x_names:
            groups.setdefault(name.partition(plaza.SINCE)[0], []).append(name)
        return sensors_of(groups, Layout.of_numbers(self.recording.x_names), ())

    def _steps(self, recording: Recording) -> Recording:
        steps = super()._steps(recording)
        if self.rows is None:
            return steps
        _, held_out = self.splitting.held_out(steps)
        return thinned(steps, held_out, self.rows, tuple(self.added))


def _task(
    name: str,
    reader: Callable[[], RealRecording],
    *,
    root: str | None,
    rows: int | None,
    keys: Mapping[str, Any],
    units: Mapping[str, str],
    measure: Measure,
    story: Callable[[Path, OwnData, Any], None],
    circular: Sequence[str] = (),
    resample: float | None = None,
    added: Sequence[str] = (),
    sensors: bool = False,
    trend: int | None = None,
    **source: Any,
) -> OwnData:
    return RealData(
        name=name,
        rows=rows,
        source=RealSource(path=root, reader=reader, parted=sensors, **source),
        sensors="each" if sensors else None,
        splitting=Documented(**keys),
        circular=circular,
        angle_unit="radians",
        units=units,
        resample=resample,
        added=added,
        trend=trend,
        measure=measure,
        story=story,
    )


METRES = {"position_1": "m", "position_2": "m"}


def rtt_canteen(
    *,
    name: str,
    root: str | None,
    rows: int | None = None,
    missing: bool,
    resample: float | None,
    **keys: Any,
) -> OwnData:
    return _task(
        name,
        lambda: read_rtt_canteen(root, missing=missing),
        root=root,
        rows=rows,
        keys=keys,
        units=METRES,
        measure=DISTANCE,
        story=pictures.canteen_walk,
        circular=["Azimuth"],
        resample=resample,
        time=walks.TIME,
        rename=walks.RENAME,
    )


def battery(
    *,
    name: str,
    root: str | None,
    rows: int | None = None,
    step: float | None,
    controls: bool,
    **keys: Any,
) -> OwnData:
    return _task(
        name,
        lambda: read_battery(root, step=None),
        root=root,
        rows=rows,
        keys=keys,
        units={},
        measure=PERCENT,
        story=pictures.discharges,
        resample=step,
        time=cell.TIME,
        u=cell.U if controls else None,
    )


def turbofan(
    *,
    name: str,
    root: str | None,
    rows: int | None = None,
    truth: str,
    trend: int | None = None,
    **keys: Any,
) -> OwnData:
    return _task(
        name,
        lambda: read_turbofan(root, truth=truth),
        root=root,
        rows=rows,
        keys=keys,
        units={"remaining": "cycles"},
        measure=CYCLES,
        story=pictures.engine_life,
        trend=trend,
    )


def uwb_plaza(
    *,
    name: str,
    root: str | None,
    rows: int | None = None,
    site: str,
    hold: float,
    sensors: bool,
    resample: float | None,
    controls: bool,
    **keys: Any,
) -> OwnData:
    return _task(
        name,
        lambda: read_uwb_plaza(root, site=site, hold=hold),
        sensors=sensors,
        root=root,
        rows=rows,
        keys=keys,
        units=METRES,
        measure=DISTANCE,
        story=pictures.robot_path,
        resample=resample,
        u=plaza.U if controls else None,
        added=plaza.U if controls else (),
    )
