"""What was recorded: observations and reference states row by row, with names and borders."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kbr.core.errors import KbrError
from kbr.core.io.file_rows import FileRows
from kbr.core.units.layout import Layout
from kbr.core.units.sampling import GAP, Sampling, longer, sampling_of
from kbr.core.units.trend import Trend

SMALLEST_IMAGE = 4  # pixels; arrays with a shorter side are flattened to vectors
CHANNELS = (1, 3, 4)
KEEP = "keep"  # for filters trained on arrays in Python: observations stay as they are


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """Rows in order; NaN marks what is missing. x is [T, dx], or images [T, c, h, w].

    Without truth (`has_truth` false: a new recording, to be filtered only) z is all NaN.
    """

    kind: str
    x: np.ndarray
    z: np.ndarray  # [T, dz] float64
    x_names: tuple[str, ...]  # of columns, or of channels
    z_names: tuple[str, ...]
    sequence: np.ndarray  # [T] number of the sequence, 0, 1, ... in order of appearance
    row: np.ndarray  # [T] the row's place in the file, from 0
    time: np.ndarray | None = None  # [T] float64; dates: seconds after the file's first row
    time_unit: str = ""  # "s" where the file holds dates; else what the user knows
    dtypes: tuple[str, str] = ("", "")  # of x and z in the file
    file: FileRows | None = None  # where images stay that are not to be read whole; x maps them
    has_truth: bool = True
    unused: tuple[str, ...] = ()  # columns or arrays of the file that play no part
    ids: np.ndarray | None = None  # [T] of the sequences and
    stamps: np.ndarray | None = None  # [T] of the time, as the file has them
    files: tuple[str, ...] = ()  # the names of several that were read
    step: float | None = None  # of time, where rows were averaged into even ones
    notes: tuple[str, ...] = ()  # what was done to the rows of the file
    called: tuple[str, str] = ("sequence", "time")  # their columns, for a filter
    u: np.ndarray | None = None  # [T, du] control inputs: what led to the row
    u_names: tuple[str, ...] = ()
    parted: bool = False  # whether columns of x may be absent by themselves
    layout: Layout | None = None  # of a flat x that holds frames or vectors beside numbers
    trend: Trend | None = None  # what columns of x were turned into

    def __len__(self) -> int:
        return len(self.z)

    @property
    def columns(self) -> list[str]:
        """With `recording[name]`: the recording as a table that filters take."""
        borders = zip(self.called, (self.ids, self.stamps), strict=True)
        return ["x", *self.u_names, *(name for name, values in borders if values is not None)]

    def __getitem__(self, name: str) -> Any:
        if self.u is not None and name in self.u_names:
            return self.u[:, self.u_names.index(name)]
        seen = self.x if self.file is None else self.file
        return {"x": seen, self.called[0]: self.ids, self.called[1]: self.stamps}[name]

    def with_controls_in_x(self) -> "Recording":
        """For models that take no control inputs: those that x lacks are further columns of it."""
        if self.u is None:
            return self
        new = [k for k, name in enumerate(self.u_names) if name not in self.x_names]
        names = tuple(self.u_names[k] for k in new)
        taken = f"{', '.join(names)} further columns of x" if new else "they are in x already"
        return replace(
            self,
            x=np.hstack([self.x, self.u[:, new]]),
            x_names=(*self.x_names, *names),
            u=None,
            u_names=(),
            notes=(*self.notes, f"this model takes no control inputs: {taken}"),
        )

    def with_trend(self, trend: Trend) -> "Recording":
        """Its columns of x as trends of every sequence; others follow as they are."""
        if self.has_images or self.parted:
            raise KbrError("data.trend takes rows of numbers: no frames and no data.sensors.")
        seen = [self.x_names.index(name) for name in trend.columns]
        rest = [k for k in range(len(self.x_names)) if k not in seen]
        parts = np.split(self.x[:, seen], np.flatnonzero(np.diff(self.sequence)) + 1)
        x = np.concatenate([trend(part) for part in parts])
        note = (
            f"x: means of the last {trend.rows} rows, how far they are from those of the first "
            f"{trend.rows}, and the age in rows (data.trend={trend.rows})"
        )
        return replace(
            self,
            x=np.hstack([x, self.x[:, rest]]),
            x_names=(*trend.names, *(self.x_names[k] for k in rest)),
            notes=(*self.notes, note),
            trend=trend,
        )

    @property
    def has_images(self) -> bool:
        return self.x.ndim == 4

    @property
    def parts(self) -> list[tuple[str, np.ndarray]]:
        """What x holds by name, [T, d] each; of images nothing."""
        layout = self.layout or Layout.of_numbers(() if self.has_images else self.x_names)
        return [(name, self.x[:, at.start : at.stop]) for name, at in layout.spans.items()]

    @property
    def numbers(self) -> list[tuple[str, np.ndarray]]:
        """The columns of x by name, [T] each, without the pixels of frames."""
        if self.has_images:
            return []
        names = self.x_names if self.layout is None else self.layout.columns
        return [(name, values) for name, values in zip(names, self.x.T, strict=True) if name]

    @property
    def has_ids(self) -> bool:
        """Whether the files themselves say which rows are of one sequence."""
        return self.ids is not None and not 0 < len(self.files) == int(self.sequence[-1]) + 1

    @cached_property
    def x_missing(self) -> np.ndarray:
        """[T] bool: a number of x is missing; all of them, where they may be absent one by one."""
        if self.parted:
            nothing: np.ndarray = ~np.isfinite(self.x).any(1)
            return nothing
        if self.file is None:
            return _missing(self.x)
        if self.file.dtype.kind != "f":
            return np.zeros(len(self), dtype=bool)
        return np.concatenate([_missing(part.raw()) for part in self.file.parts()])

    @cached_property
    def z_missing(self) -> np.ndarray:
        return _missing(self.z) if self.has_truth else np.ones(len(self), dtype=bool)

    def digest(self) -> str:
        """A hash of the content, to tell whether a file has changed."""
        digest = hashlib.sha256()
        for some in () if self.file is None else self.file.parts():
            digest.update(some.raw().tobytes())
        seen = self.x if self.file is None else None
        for part in (seen, self.z, self.sequence, self.time, self.u):
            digest.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()[:16]

    def starts(self, max_gap: float | None = None) -> np.ndarray:
        """[T] bool: the row begins a new piece, by its sequence or after a gap in time."""
        starts, sampling = np.ones(len(self), dtype=bool), self.sampling(max_gap)
        starts[1:] = np.diff(self.sequence) != 0
        if self.time is not None and sampling is not None:
            starts[1:] |= longer(np.diff(self.time), sampling.limit, self.time[1:])
        return starts

    def sampling(self, max_gap: float | None = None) -> Sampling | None:
        """The steps of time and the gaps among them; None without time stamps."""
        if self.time is None:
            return None
        even = None if self.step is None else GAP * self.step
        found = sampling_of(self.time, self.sequence, even if max_gap is None else float(max_gap))
        return found and replace(found, given=max_gap is not None)


def check(recording: Recording) -> None:
    """Not all of x, or of a known z, is missing."""
    for name, missing in (("x", recording.x_missing), ("z", recording.z_missing)):
        if missing.all() and (name == "x" or recording.has_truth):
            raise KbrError(
                f"every row of {name} has missing values, so there is nothing to learn from. "
                f"Leave empty columns out of data.{name}."
            )


def check_time(time: np.ndarray, sequence: np.ndarray, row: np.ndarray) -> None:
    """Time is there and grows within sequences."""
    absent = ~np.isfinite(time)
    if absent.any():
        first = row[absent.argmax()] + 1
        raise KbrError(f"time must be there in every row; row {first} has none. Fill it.")
    wrong = (np.diff(time) <= 0) & (np.diff(sequence) == 0)
    if not wrong.any():
        return
    at = int(wrong.argmax())
    before, now = time[at : at + 2]
    what = f"time must grow from row to row of a sequence; row {row[at + 1] + 1} has"
    if before == now:
        raise KbrError(
            f"{what} the time of the row before, {before:.15g}. Take a column with more digits "
            "(data.time), drop the row, or name the sequences (data.sequence)."
        )
    raise KbrError(
        f"{what} {now:.15g} after {before:.15g}. Sort the rows by time, or name the sequences "
        "(data.sequence)."
    )


def _missing(values: np.ndarray) -> np.ndarray:
    """[T] bool: something in the row is not a number."""
    missing: np.ndarray = ~np.isfinite(values).reshape(len(values), -1).all(1)
    return missing


def are_frames(shape: Sequence[int], channels: str = "auto") -> bool:
    """Whether observations [T, ...] of this shape are images: no side is shorter than four."""
    if len(shape) == 4:
        sides = shape[1:3] if _colours_last(shape, channels) else shape[2:]
        return min(sides) >= SMALLEST_IMAGE
    return len(shape) == 3 and min(shape[1:]) >= SMALLEST_IMAGE


def _colours_last(shape: Sequence[int], channels: str) -> bool:
    last = shape[-1] in CHANNELS and shape[1] not in CHANNELS
    return channels == "last" or (channels == "auto" and last)


def as_observations(x: np.ndarray, channels: str) -> np.ndarray:
    """[T, dx] or [T, c, h, w] from [T], [T, dx], [T, h, w], [T, h, w, c], [T, c, h, w]."""
    if channels not in ("auto", "first", "last", KEEP):
        raise KbrError(f"data.channels must be auto, first or last; got {channels!r}.")
    if channels == KEEP and x.ndim > 1:
        return x
    if x.ndim == 4 and _colours_last(x.shape, channels):
        x, channels = np.moveaxis(x, -1, 1), "first"
    if are_frames(x.shape, channels):
        return x[:, None] if x.ndim == 3 else x
    return x.reshape(len(x), -1)


def names_for(given: Sequence[str] | None, count: int, letter: str, key: str) -> tuple[str, ...]:
    """The given names, or z_1, z_2, ...; as many as there are columns, all different."""
    if given is None:
        return tuple(f"{letter}_{k + 1}" for k in range(count))
    names = tuple(str(name) for name in given)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise KbrError(f"data.{key} names {', '.join(twice)} twice. Name every column once.")
    if len(names) != count:
        raise KbrError(
            f"data.{key} names {len(names)} columns ({', '.join(names)}); {key} in the file has "
            f"{count}. Give one name for each column."
        )
    return names


def listed(names: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Names as given; one alone may come without brackets."""
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(str(name) for name in names)
