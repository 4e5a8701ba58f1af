"""A new recording, read as the filter was trained that is to answer it: by its `Units`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kbr.app.recordings.checks import unused_note
from kbr.app.recordings.files import Paths, files_of
from kbr.app.recordings.kinds.parquet import read_parquet
from kbr.app.recordings.kinds.table import read_csv
from kbr.app.recordings.read import READERS, READING, Source
from kbr.app.recordings.recording import KEEP, Recording
from kbr.app.recordings.resample import resampled
from kbr.core.errors import KbrError
from kbr.core.units.trend import Trend
from kbr.core.units.units import Units

BORDERS = ("sequence", "time")


def read_recording(
    path: Paths,
    filt: Any = None,
    *,
    x: Sequence[str] | None = None,
    z: Sequence[str] | None = None,
    **keys: Any,
) -> Recording:
    """A recording whose state may be unknown: z is the truth where its columns are all there.

    Columns are found by their names, whatever their order and whatever else is there: those that
    `filt` was trained on, or those given. `keys` are those of data=recording: decimal, sequence,
    time, rename, resample, file, resize, channels, max_gb. What comes back is a table that
    `filt.filter` takes, averaged and with trends as the filter was trained.
    """
    if filt is None:
        step, found = keys.pop("resample", None), Source(path=path, x=x, z=z, needs_z=False, **keys)
        return found.read() if step is None else resampled(found.read(), step)
    if x is not None or z is not None or "resample" in keys:
        raise KbrError("a filter knows its columns and its step: leave x, z and resample out.")
    return read_new(filt.units, path, keys)


def read_new(units: Units, path: Paths, keys: Mapping[str, Any]) -> Recording:
    """The recording at `path`; `keys` that are not None take the place of those of training."""
    keys = {key: value for key, value in keys.items() if value is not None}
    for file in files_of(path, READERS):
        is_table = READERS.get(file.suffix.lower()) in (read_csv, read_parquet)
        if units.x_names is None and units.z_names is not None and is_table and not units.layout:
            raise KbrError(
                f"the filter takes frames, which {file} cannot hold. Give an npz file, a video, a "
                "folder of x.npy, or a folder of frames with states.csv."
            )
    known = {key: units.source[key] for key in READING if key in units.source}
    columns = {key: units.column(key) for key in BORDERS}
    trend = Trend.of_source(units.source)
    source = Source(
        path=path,
        x=units.x_names if trend is None else trend.before(units.x_names or ()),
        z=units.z_names,
        needs_z=False,
        parted=units.sensors is not None,
        parts=units.layout.names if units.layout else (),
        known=units.layout,
        may_lack=[key for key in BORDERS if key not in keys],
        **{"channels": KEEP, **known, **columns, **keys},
    )
    called = (columns["sequence"] or "sequence", columns["time"] or "time")
    recording, step = source.read(), units.source.get("resample")
    if step is not None:
        named = [*zip(units.x_names or (), units.x.circular, strict=False)]
        named += [*zip(units.z_names or (), units.z.circular, strict=False)]
        recording = resampled(
            recording,
            step,
            angles=[name for name, is_angle in named if is_angle],
            turn=units.x.turn if any(units.x.circular) else units.z.turn,
            max_gap=units.max_gap,
            added=units.source.get("added", ()),
        )
    if trend is not None:
        recording = recording.with_trend(trend)
    return replace(recording, called=called)


def notes_of(units: Units, recording: Recording) -> Iterator[str]:
    """What a user must know about how a new recording was taken."""
    yield from recording.notes
    yield from border_notes(units, recording.columns)
    yield from unused_note(recording)


def border_notes(units: Units, columns: Collection[str]) -> Iterator[str]:
    """What is lost where a column of time or of sequences is absent that training had."""
    sequence, time = (units.column(key) or key for key in BORDERS)
    if units.max_gap is not None and time not in columns:
        yield f"there is no column '{time}' of time: gaps cannot be seen"
    if units.source.get("several") and sequence not in columns:
        yield f"there is no column '{sequence}' of sequences: all rows are one"
