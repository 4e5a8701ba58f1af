"""Rows of the input as a filter's step takes them, each with its line and what it says of itself.

A row that cannot be read is a `Row` with the error in place of its value.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from kbr.app.recordings.new import notes_of, read_new
from kbr.core.errors import KbrError
from kbr.core.units.trend import Trend
from kbr.core.units.units import Units, X

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the input: what `step` takes, and its sequence and time as they were given."""

    line: int
    value: Any
    shown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Format:
    """What a filter expects of a row: names and shape of x, columns of sequence and time."""

    units: Units
    shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.units.x_names or ()

    @property
    def borders(self) -> dict[str, str]:
        """The columns of the sequence and of the time, by what they hold."""
        columns = {key: self.units.column(key) for key in ("sequence", "time")}
        return {key: name for key, name in columns.items() if name is not None}

    @property
    def read(self) -> tuple[str, ...]:
        """All columns beside x: these borders, and those of control inputs."""
        return (*self.borders.values(), *((self.units.u and self.units.u.names) or ()))

    @property
    def width(self) -> int:
        """Numbers in one observation."""
        return math.prod(self.shape)

    def before(self, trend: Trend) -> "Format":
        """What is expected of the rows from which a filter's own are made."""
        names = trend.before(self.names)
        return Format(replace(self.units, x_names=names), (len(names),))

    def row(self, line: int, x: Any, borders: Mapping[str, Any]) -> Row:
        """x [shape], None where it is missing; `borders` by the names of their columns."""
        seen = np.full(self.shape, np.nan) if x is None else np.asarray(x, dtype=np.float64)
        if seen.size == 1 and (self.width == 1 or (seen.ndim == 0 and bool(np.isnan(seen)))):
            seen = np.full(self.shape, seen.item())  # the only number there is, or a lone null
        if not borders:
            return Row(line, seen)
        shown = {
            key: _plain(borders[name]) for key, name in self.borders.items() if name in borders
        }
        alone = self.names == (X,)  # then the entry x is a column, of one cell
        return Row(line, {**borders, X: seen.reshape(()) if alone else seen}, shown)


def lines_of(file: TextIO) -> Iterator[str]:
    """Lines as they come, without the mark of a byte order and without zero bytes."""
    try:
        for line, text in enumerate(iter(file.readline, "")):
            text = text.lstrip("\ufeff") if line == 0 else text
            yield text.replace("\x00", "\ufffd")  # which no number holds
    except OSError as error:
        raise KbrError(f"cannot read the input: {error.strerror or error}.") from error


def json_rows(file: TextIO, expected: Format, say: Say) -> Iterator[Row]:
    """A line is a list, nested for frames, a number, null, or an object: columns by name, or x."""
    said = False
    for line, text in enumerate(lines_of(file), 1):
        if not text.strip():
            continue
        try:
            entries = json.loads(text)
            if not isinstance(entries, dict):
                yield expected.row(line, entries, {})
                continue
            row, unused = _from_object(line, entries, expected)
            if unused and not said:
                say(f"entries not used: {', '.join(unused)}")
                said = True
            yield row
        except KbrError as error:
            yield Row(line, error)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            what = 'numbers, null, {"x": ...} or columns by name'
            yield Row(line, KbrError(f"expected {what}; {type(error).__name__}: {error}"[:200]))


def recording_rows(
    path: Path, expected: Format, keys: Mapping[str, Any], say: Say
) -> Iterator[Row]:
    """The rows of an npz file or of a folder of arrays or frames."""
    recording = read_new(expected.units, path, keys)
    if (np.diff(recording.row) != 1).any():
        raise KbrError(f"the rows of a sequence must follow each other; sort those of {path}.")
    for note in notes_of(expected.units, recording):
        say(note)
    seen = recording.x.shape[1:]
    if seen != expected.shape and not (seen == (1,) and expected.width == 1):
        raise KbrError(
            f"observations in {path} have shape {list(seen)}; the filter was trained on "
            f"{list(expected.shape)}."
        )
    columns = [name for name in recording.columns if name != X]
    for at in range(len(recording)):
        frame = recording.x[at] if recording.file is None else recording.file.part([at]).raw()[0]
        borders = {name: recording[name][at] for name in columns}
        yield expected.row(at + 1, frame.reshape(expected.shape), borders)


def trend_rows(rows: Iterator[Row], trend: Trend, expected: Format) -> Iterator[Row]:
    """Rows as a filter of trends takes them; another sequence begins anew."""
    memory, before, width = None, None, len(trend.columns)
    for row in rows:
        if isinstance(row.value, KbrError):
            yield row
            continue
        borders = {}
        if isinstance(row.value, dict):
            borders = {name: value for name, value in row.value.items() if name != X}
        try:
            now, _ = expected.units.place(borders)
        except KbrError as error:
            yield Row(row.line, error)
            continue
        x = row.value[X].reshape(-1) if isinstance(row.value, dict) else row.value
        memory, seen = trend.step(memory if now in (None, before) else None, x[:width])
        before = before if now is None else now
        x = np.concatenate([seen, x[width:]])
        yield Row(row.line, {**borders, X: x} if borders else x, row.shown)


def _from_object(line: int, entries: Mapping[str, Any], expected: Format) -> tuple[Row, list[str]]:
    """The row, by its columns or by its entry x, and the entries that are not used."""
    names, layout = expected.names, expected.units.layout
    if not names or not all(name in entries for name in names):
        names = (X,)
    if X in names and X not in entries:
        expected.units.observations(entries)  # says which columns there must be
        raise KbrError(f"the object has no entry {X!r}.")
    x: Any = [entries[name] for name in names]
    if layout is not None and names == layout.names:
        x = expected.units.observed(entries)
    elif len(names) == 1:
        x = x[0]
        if expected.names == names and isinstance(x, list) and x:
            x = x[0]
    borders = {name: entries[name] for name in expected.read if name in entries}
    unused = [key for key in entries if key not in (*names, *expected.read)]
    return expected.row(line, x, borders), unused


def _plain(value: Any) -> Any:
    """A sequence id or a time as JSON can hold it."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value
