"""Named columns: what a file of any kind is read as, before it is said what they mean."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from kbr.core.errors import KbrError
from kbr.core.units.units import did_you_mean

MISSING = {"", "nan", "na", "n/a", "#n/a", "null", "none"}
DECIMALS = {"point": ".", "comma": ","}
EXACT = 2**53  # up to here float64 holds every whole number


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """What a file holds by name. A new kind of file needs one reader that returns this.

    get    a column by its name: a list of text cells, or an array [T, ...];
    x, z   what holds observations and states: names of columns of one number each, or the name of
           one array [T, ...] with columns of its own. z may be absent from the file;
    lines  of text: where each row stands in its file.
    """

    kind: str
    path: Path
    names: tuple[str, ...]
    get: Callable[[str], Any]
    x: str | tuple[str, ...]
    z: str | tuple[str, ...]
    lines: Sequence[int] = ()
    decimal: str = "point"

    def check(self, names: Sequence[str], setting: str) -> None:
        """All these columns are there, each of them once; `setting` is what names them."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise KbrError(
                f"{setting}: {self.path} has no column {', '.join(map(repr, absent))}."
                f"{did_you_mean(absent, self.names)} {self.there()}"
            )
        for name in names:
            if self.names.count(name) > 1:
                raise KbrError(
                    f"{setting}: {self.path} has {self.names.count(name)} columns '{name}'. Give "
                    "each a name of its own."
                )

    def there(self) -> str:
        """The columns, for an error; what is wrong with a first line that holds no names."""
        if all(map(is_number, self.names)):
            return (
                "Its first line holds numbers only: is the line of column names missing? Put one "
                "above the rows."
            )
        if len(self.names) == 1 and " " in self.names[0]:
            return (
                f"Its first line is one column, '{self.names[0][:60]}': cells must be separated by "
                "commas, semicolons or tabs."
            )
        return f"There are: {', '.join(self.names)}."

    def others(self, used: Sequence[str | None]) -> tuple[str, ...]:
        """Columns that are not used."""
        named = [name or f"(column {k + 1}, without a name)" for k, name in enumerate(self.names)]
        return tuple(name for name in named if name not in used)

    def place(self, row: int) -> str:
        return f"line {self.lines[row]} of {self.path}"

    def numbers(self, names: Sequence[str], key: str) -> tuple[np.ndarray, str]:
        """Columns as float64 [T, d], and what they are in the file; NaN: empty or infinite."""
        self.check(names, f"data.{key}")
        columns, kinds = [], set()
        for name in names:
            cells = self.get(name)
            kinds.add("text" if isinstance(cells, list) else str(cells.dtype))
            columns.append(self._parsed(cells, name, key))
        return np.column_stack(columns), ", ".join(sorted(kinds))

    def ids(self, name: str) -> np.ndarray:
        """A column of sequence ids [T]: text or numbers, none of them missing."""
        self.check([name], f"data.sequence={name}")
        cells = self.get(name)
        if isinstance(cells, list) and "" in cells:
            place = self.place(cells.index(""))
            raise KbrError(f"data.sequence={name}: {place} has no id. Fill it.")
        ids = np.asarray(cells)
        kind = ids.dtype.kind
        if ids.ndim != 1 or kind not in "buifUS" or (kind == "f" and not np.isfinite(ids).all()):
            raise KbrError(
                f"sequence in {self.path} must be one id for each row [T]; none may be missing."
            )
        return ids

    def times(self, name: str) -> tuple[np.ndarray, np.ndarray, str]:
        """Time stamps [T] as the file has them, as float64, and their unit where it is known.

        Dates (ISO 8601, or datetime64) are seconds after the first row. Whole numbers that float64
        cannot tell apart, such as nanoseconds since 1970, are counted from the first one.
        """
        self.check([name], f"data.time={name}")
        cells = self.get(name)
        stamps = self._stamps(cells) if isinstance(cells, list) else cells
        kind = stamps.dtype.kind
        if stamps.ndim != 1 or (isinstance(cells, np.ndarray) and kind not in "uifMm"):
            raise KbrError(
                f"time in {self.path} must be numbers or datetime64 [T]; got {stamps.dtype} of "
                f"shape {list(stamps.shape)}."
            )
        if kind == "U":
            return stamps, self._seconds(name, cells), "s"
        if kind in "Mm":
            since = (stamps - stamps[0]) / np.timedelta64(1, "s")
            return stamps, np.where(np.isnat(stamps), np.nan, since), "s"
        if kind == "f":
            return stamps, stamps.astype(np.float64), ""
        whole = stamps.tolist()  # Python's integers have any number of digits
        first = 0 if max(map(abs, whole), default=0) <= EXACT else whole[0]
        return stamps, np.array([value - first for value in whole], dtype=np.float64), ""

    def _parsed(self, cells: Any, name: str, key: str) -> np.ndarray:
        if isinstance(cells, np.ndarray):
            values = real_numbers(cells, key, self.path).astype(np.float64)
            if values.ndim > 2:
                raise KbrError(
                    f"{key} in {self.path} must be [T, d{key}] or [T]; got shape "
                    f"{list(values.shape)}."
                )
            return np.where(np.isfinite(values), values, np.nan)
        numbers = np.empty(len(cells))
        for i, cell in enumerate(cells):
            try:
                numbers[i] = value(cell, self.decimal)
            except ValueError:
                hint = decimal_hint(cell, self.decimal, "data.") or (
                    f"Correct it, leave it empty (missing), or take it out of data.{key}."
                )
                raise KbrError(
                    f"column '{name}' of {self.path} must hold numbers; line {self.lines[i]} has "
                    f"'{cell[:60]}'. {hint}"
                ) from None
        return numbers

    def _stamps(self, cells: list[str]) -> np.ndarray:
        """Text as whole numbers, else as other numbers, else as it is."""
        if all(re.fullmatch(r"[+-]?\d{1,30}", cell, re.ASCII) for cell in cells):
            return np.array([int(cell) for cell in cells])
        try:
            return np.array([number(cell, self.decimal) for cell in cells])
        except ValueError:
            return np.array(cells)

    def _seconds(self, name: str, cells: list[str]) -> np.ndarray:
        """ISO 8601 dates as seconds after the first; all have a time zone, or none has."""
        dates: list[datetime] = []
        for row, cell in enumerate(cells):
            place = f"data.time={name}: {self.place(row)} has '{cell[:60]}'"
            try:
                dates.append(datetime.fromisoformat(cell))
            except (ValueError, OverflowError):
                raise KbrError(
                    f"{place}, which is neither a number nor a date like 2024-05-01T12:00:00."
                ) from None
            if (dates[-1].tzinfo is None) != (dates[0].tzinfo is None):
                raise KbrError(
                    f"{place} and the first row '{cells[0]}': one of them has a time zone. Give it "
                    "to all rows or to none."
                )
        return np.array([(date - dates[0]).total_seconds() for date in dates])


def real_numbers(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The array, once it is known to hold rows of real numbers."""
    if array.dtype.kind not in "buif":
        raise KbrError(f"{name} in {path} must hold real numbers; got dtype {array.dtype}.")
    if array.ndim == 0 or array.size == 0:
        raise KbrError(f"{name} in {path} must have rows; got shape {list(array.shape)}.")
    return array


def value(cell: str, decimal: str) -> float:
    """A cell as a number; NaN where it is missing or infinite. Raises ValueError for others."""
    parsed = math.nan if cell.lower() in MISSING else number(cell, decimal)
    return parsed if math.isfinite(parsed) else math.nan


def number(cell: str, decimal: str) -> float:
    """Raises ValueError where Python would read more than a plain number (1_000) too."""
    mark = DECIMALS[decimal]
    if "_" in cell or (mark == "," and "." in cell):
        raise ValueError(cell)
    return float(cell.replace(mark, "."))


def is_number(cell: str, decimal: str = "point") -> bool:
    """Whether the cell is a number, or one that is missing."""
    try:
        value(cell, decimal)
    except ValueError:
        return False
    return True


def decimal_hint(cell: str, decimal: str, prefix: str) -> str:
    """What may be wrong with a cell that is no number; empty where nothing is known."""
    if re.fullmatch(r"[+-]?[\d.]*,\d+(e[+-]?\d+)?", cell, re.I) and decimal == "point":
        return (
            f"Is it a decimal comma? Set {prefix}decimal=comma. If it separates thousands, take it "
            "out."
        )
    if decimal == "comma" and is_number(cell):
        return f"With {prefix}decimal=comma no cell may have a point."
    if len(re.findall(r"\d+(?:\.\d+)?", cell)) > 1 and re.search(r"[\s,;\[(]", cell):
        return "Give each number a column of its own."
    return ""
