"""CSV with named columns; a cell that is no number is named by row and column."""

import codecs
import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbr.app.recordings.stamps import seconds_of_dates, whole_numbers
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory
from kbr.core.units.units import did_you_mean

MISSING = {"", "nan", "na", "n/a", "#n/a", "null", "none"}
BLOWN_UP = 15.0  # bytes of memory for each byte of text, once it is cut into cells
DECIMALS = {"point": ".", "comma": ","}
SNIFFED = 20  # lines by which the delimiter is chosen


@dataclass(frozen=True, kw_only=True)
class Table:
    """Text cells under named columns, each row with its line in the file."""

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    decimal: str = "point"

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, name: str, key: str) -> list[str]:
        """One column as it stands."""
        self.check([name], key)
        at = self.names.index(name)
        return [row[at].strip() for row in self.rows]

    def check(self, names: Sequence[str], key: str) -> None:
        """All these columns are there, each of them once."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise KbrError(
                f"data.{key}: {self.path} has no column {', '.join(map(repr, absent))}."
                f"{did_you_mean(absent, self.names)} {self.there()}"
            )
        for name in names:
            if self.names.count(name) > 1:
                raise KbrError(
                    f"data.{key}: {self.path} has {self.names.count(name)} columns '{name}'. Give "
                    "each a name of its own."
                )

    def there(self) -> str:
        """The columns, for an error; what is wrong with a first line that holds no names."""
        if all(_is_number(name) for name in self.names):
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

    def numbers(self, names: Sequence[str], key: str) -> np.ndarray:
        """Columns as float64 [T, d]; empty cells are NaN."""
        self.check(names, key)
        return np.stack([self._column(str(name), key) for name in names], axis=1)

    def labels(self, name: str, key: str) -> np.ndarray:
        """A column of ids as numbers, in order of their text."""
        ids = self.text(name, key)
        if "" in ids:
            line = self.lines[ids.index("")]
            raise KbrError(f"data.{key}={name}: line {line} of {self.path} has no id. Fill it.")
        return np.unique(ids, return_inverse=True)[1].reshape(-1)

    def times(self, name: str) -> tuple[np.ndarray, str, np.ndarray]:
        """Numbers as they are, or dates (ISO 8601) as seconds after the first; and their unit.

        Last come the stamps themselves: numbers, or the text of dates.
        """
        cells = self.text(name, "time")
        if (whole := whole_numbers(cells)) is not None:
            return whole, "", np.array([int(cell) for cell in cells])
        try:
            numbers = np.array([number(cell, self.decimal) for cell in cells])
        except ValueError:
            pass  # not numbers: dates then
        else:
            return numbers, "", numbers
        where = [f"data.time={name}: line {line} of {self.path}" for line in self.lines]
        return seconds_of_dates(cells, where), "s", np.array(cells)

    def _column(self, name: str, key: str) -> np.ndarray:
        values = np.empty(len(self))
        for i, cell in enumerate(self.text(name, key)):
            try:
                values[i] = value(cell, self.decimal)
            except ValueError:
                raise KbrError(
                    f"column '{name}' of {self.path} must hold numbers; line {self.lines[i]} has "
                    f"'{cell[:60]}'. {self._hint(cell, key)}"
                ) from None
        return values

    def _hint(self, cell: str, key: str) -> str:
        return decimal_hint(cell, self.decimal, "data.") or (
            f"Correct it, leave it empty (missing), or take it out of data.{key}."
        )


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


def decimal_hint(cell: str, decimal: str, prefix: str) -> str:
    """What may be wrong with a cell that is no number; empty where nothing is known."""
    if re.fullmatch(r"[+-]?[\d.]*,\d+(e[+-]?\d+)?", cell, re.I) and decimal == "point":
        return (
            f"Is it a decimal comma? Set {prefix}decimal=comma. If it separates thousands, take it "
            "out."
        )
    if decimal == "comma" and _is_number(cell):
        return f"With {prefix}decimal=comma no cell may have a point."
    if len(re.findall(r"\d+(?:\.\d+)?", cell)) > 1 and re.search(r"[\s,;\[(]", cell):
        return "Give each number a column of its own."
    return ""


def read_table(path: Path, decimal: str = "point") -> Table:
    """A CSV file with a header; commas, semicolons or tabs between cells."""
    if decimal not in DECIMALS:
        raise KbrError(f"data.decimal must be point or comma; got {decimal!r}.")
    check_memory(
        BLOWN_UP * path.stat().st_size,
        what=f"the text of {path}",
        advice="Save it as npz, or as a folder of x.npy and z.npy.",
    )
    text = _text(path)
    delimiter = _delimiter(text)
    try:
        reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
        kept = _without_blank_lines([(row, reader.line_num) for row in reader])
    except csv.Error as error:
        raise KbrError(
            f"{path} cannot be read as CSV near line {reader.line_num}: {error}. Is a quotation "
            "mark left open?"
        ) from error
    if len(kept) < 2:
        raise KbrError(f"{path} must have a line of column names and rows; got {len(kept)} lines.")
    names = [name.strip() for name in kept[0][0]]
    named = max((k + 1 for k, name in enumerate(names) if name), default=0)
    if not any(cell.strip() for row, _ in kept[1:] for cell in row[named : len(names)]):
        names = names[:named]  # only delimiters at the ends of lines come after these
    rows = []
    for row, line in kept[1:]:
        if len(row) < len(names) or any(cell.strip() for cell in row[len(names) :]):
            raise KbrError(
                f"line {line} of {path} has {len(row)} cells; the header has {len(names)} columns "
                f"(cells are separated by {delimiter!r}; one that holds it needs quotation marks)."
            )
        rows.append(row[: len(names)])
    lines = [line for _, line in kept[1:]]
    return Table(path=path, names=tuple(names), rows=rows, lines=lines, decimal=decimal)


def _without_blank_lines(found: list[tuple[list[str], int]]) -> list[tuple[list[str], int]]:
    """Blank lines between rows are nothing; in a file of one column they are missing values."""

    def blank(row: list[str]) -> bool:
        return len(row) < 2 and not "".join(row).strip()

    kept = [at for at, (row, _) in enumerate(found) if not blank(row)]
    if kept and all(len(found[at][0]) == 1 for at in kept):
        return [(row or [""], line) for row, line in found[kept[0] : kept[-1] + 1]]
    return [found[at] for at in kept]


def _text(path: Path) -> str:
    """UTF-8, or UTF-16 where the file says so."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise KbrError(f"{path} cannot be read: {error.strerror}.") from error
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = raw.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise KbrError(
            f"{path} is no text in UTF-8: line {line} has the byte 0x{raw[error.start]:02x}. Save "
            "it as CSV in UTF-8."
        ) from error
    if "\x00" in text:
        line = text.count("\n", 0, text.index("\x00")) + 1
        raise KbrError(
            f"{path} is no text in UTF-8: line {line} has a zero byte. Save it as CSV in UTF-8."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _delimiter(text: str) -> str:
    """The one that cuts the first lines into equally many cells, and most of them."""
    lines = list(filter(str.strip, text[:100_000].splitlines()[:SNIFFED]))

    def quality(delimiter: str) -> tuple[bool, int]:
        try:
            counts = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        except csv.Error:
            return False, 0
        return len(set(counts)) == 1 and counts[0] > 1, counts[0] if counts else 0

    return max(",;\t", key=quality)


def _is_number(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return False
    return True
