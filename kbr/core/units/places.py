"""Where a row stands: the name of its sequence and its time, as rows and tables state them."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np

from kbr.core.errors import KbrError
from kbr.core.units.columns import is_blank
from kbr.core.units.sampling import longer

Time = int | float  # whole numbers stay integers, which are exact
Place = tuple[str | None, Time | None]  # None: not stated
NANO = 1e9  # of a second


def label(sequence: Any) -> str:
    """The id of a sequence as text, in which ids are compared: 7, 7.0 and "7" are one."""
    value = sequence.item() if isinstance(sequence, np.generic) else sequence
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    if is_blank(text) or text == "nan":
        raise KbrError("the row has no id of its sequence. Fill it.")
    return text


def moment(time: Any, dates: bool | None = None) -> Time:
    """A time stamp as a number: numbers as they are, dates and durations in seconds.

    `dates` says whether the training data had dates; the other kind is refused, for it may count in
    another unit than the longest step that is no gap.
    """
    value = time.item() if isinstance(time, np.generic) and time.dtype.kind in "uif" else time
    if is_blank(value):
        raise KbrError("the row has no time. Fill it.")
    number = _number(value)
    if number is not None:
        if dates:
            raise KbrError(f"time must be a date, as in training; got the number {value}.")
        if number != number:
            raise KbrError("the row has no time. Fill it.")
        return number
    if dates is False:
        raise KbrError(f"time must be a number, as in training; got {value!r}.")
    return _seconds(value)


def moments(column: Any, dates: bool | None = None) -> np.ndarray:
    """The same for a whole column [T]; integers stay exact."""
    array = np.asarray(column)
    if array.dtype.kind in "uif" and not dates and np.isfinite(array).all():
        return array.astype(np.int64) if array.dtype.kind in "ui" else array.astype(np.float64)
    return np.array([moment(stamp, dates) for stamp in array])


def is_gap(before: Time, now: Time, limit: float) -> bool:
    """Whether a step of time is longer than `limit`; one that does not grow is refused."""
    if not now > before:
        raise KbrError(
            f"time must grow from row to row of a sequence; got {now:.15g} after {before:.15g}. "
            "Sort the rows by time, or name the sequences."
        )
    return bool(longer(np.array([now - before]), limit, np.array([now])).all())


def cut(rows: np.ndarray, times: np.ndarray | None, limit: float | None) -> list[np.ndarray]:
    """Row numbers of one sequence, cut where a step of time is a gap."""
    if times is None or limit is None or len(rows) < 2:
        return [rows]
    along = times[rows]
    steps = np.diff(along)
    if not (steps > 0).all():
        at = int(np.flatnonzero(~(steps > 0))[0])
        is_gap(float(along[at]), float(along[at + 1]), limit)  # says which stamps
    return np.split(rows, np.flatnonzero(longer(steps, limit, along[1:])) + 1)


def grouped(labels: Sequence[str]) -> list[np.ndarray]:
    """Row numbers of every sequence, in order of appearance, interleaved or not."""
    _, first, index = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    order = np.argsort(index.reshape(-1), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(index.reshape(-1)))[:-1])
    return [parts[k] for k in np.argsort(first)]


def _number(value: Any) -> Time | None:
    """Whole numbers as integers, others as float; None where it is no number."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        for kind in (int, float):
            with suppress(ValueError):
                return kind(value)
        return None
    if hasattr(value, "dtype") and value.dtype.kind in "uif":
        return float(value)
    return None


def _seconds(value: Any) -> float:
    """A date or a duration; a date without a zone is taken as one of UTC, which has no jumps."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            raise KbrError("the row has no time. Fill it.")
        unit = "datetime64[ns]" if isinstance(value, np.datetime64) else "timedelta64[ns]"
        return int(value.astype(unit).astype(np.int64)) / NANO
    if hasattr(value, "total_seconds"):
        return float(value.total_seconds())
    try:
        stamp = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
        stamp = stamp.replace(tzinfo=UTC) if stamp.tzinfo is None else stamp
        return float(stamp.timestamp())
    except (ValueError, OverflowError):
        raise KbrError(
            f"time must be a number or a date like 2024-05-01T12:00:00; got {str(value)[:60]!r}."
        ) from None
