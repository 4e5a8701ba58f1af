"""Time stamps as float64, without losing the last digits of large ones."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from kbr.core.errors import KbrError

EXACT = 2**53  # up to here float64 holds every whole number


def whole_numbers(cells: Sequence[str]) -> np.ndarray | None:
    """Whole numbers [T]; counted from the first one where float64 could not tell them apart.

    None where a cell is something else.
    """
    if not all(re.fullmatch(r"[+-]?\d{1,30}", cell, re.ASCII) for cell in cells):
        return None
    return from_integers([int(cell) for cell in cells])


def from_integers(values: Sequence[int]) -> np.ndarray:
    """The same of Python's integers: nanoseconds since 1970 have more digits than float64."""
    first = 0 if max(map(abs, values), default=0) <= EXACT else values[0]
    return np.array([value - first for value in values], dtype=np.float64)


def seconds_of_dates(cells: Sequence[str], where: Sequence[str]) -> np.ndarray:
    """ISO 8601 dates as seconds after the first; all have a time zone, or none has."""
    stamps = []
    for cell, place in zip(cells, where, strict=True):
        try:
            stamps.append(datetime.fromisoformat(cell))
        except (ValueError, OverflowError):
            raise KbrError(
                f"{place} has '{cell[:60]}', which is neither a number nor a date like "
                "2024-05-01T12:00:00."
            ) from None
        if (stamps[-1].tzinfo is None) != (stamps[0].tzinfo is None):
            raise KbrError(
                f"{place} has '{cell}' and the first row '{cells[0]}': one of them has a time "
                "zone. Give it to all rows or to none."
            )
    first = stamps[0] if stamps else datetime.now(tz=UTC)
    return np.array([(stamp - first).total_seconds() for stamp in stamps])
