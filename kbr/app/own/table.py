"""CSV with named columns; a cell that is no number is named by row and column."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kbr.app.own.recording import check_different
from kbr.core.errors import KbrError

MISSING = {"", "nan", "na", "n/a", "null", "none"}


@dataclass(frozen=True)
class Table:
    """Text cells under named columns, each row with its line in the file."""

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, name: str, key: str) -> list[str]:
        """One column as it stands."""
        if name not in self.names:
            raise KbrError(
                f"data.{key}: {self.path} has no column '{name}'. There are: "
                f"{', '.join(self.names)}."
            )
        at = self.names.index(name)
        return [row[at].strip() for row in self.rows]

    def numbers(self, names: Sequence[str], key: str) -> np.ndarray:
        """Columns as float64 [T, d]; empty cells are NaN."""
        return np.stack([self._column(str(name), key) for name in names], axis=1)

    def labels(self, name: str, key: str) -> np.ndarray:
        """A column of ids as numbers, in order of their text."""
        found = self.text(name, key)
        if "" in found:
            line = self.lines[found.index("")]
            raise KbrError(f"data.{key}={name}: line {line} of {self.path} has no id. Fill it.")
        return np.unique(found, return_inverse=True)[1].reshape(-1)

    def times(self, name: str) -> np.ndarray:
        """Numbers as they are, or dates (ISO 8601) as seconds since 1970."""
        found = self.text(name, "time")
        try:
            return np.array([float(cell) for cell in found])
        except ValueError:
            pass  # not numbers: dates then
        seconds = []
        for line, cell in zip(self.lines, found, strict=True):
            try:
                stamp = datetime.fromisoformat(cell)
            except ValueError:
                raise KbrError(
                    f"data.time={name}: line {line} of {self.path} has '{cell}', which is neither "
                    "a number nor a date like 2024-05-01T12:00:00."
                ) from None
            seconds.append((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp())
        return np.array(seconds)

    def _column(self, name: str, key: str) -> np.ndarray:
        values = np.empty(len(self))
        for i, cell in enumerate(self.text(name, key)):
            try:
                values[i] = np.nan if cell.lower() in MISSING else float(cell)
            except ValueError:
                raise KbrError(
                    f"column '{name}' of {self.path} must hold numbers; line {self.lines[i]} has "
                    f"'{cell}'. Correct it, leave it empty (missing), or take it out of data.{key}."
                ) from None
        values[~np.isfinite(values)] = np.nan
        return values


def read_table(path: Path) -> Table:
    """A CSV file with a header; commas, semicolons or tabs between cells."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise KbrError(f"{path} is no text in UTF-8 ({error.reason}). Save it as CSV.") from error
    head = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=head.count))
    found = [(row, reader.line_num) for row in reader if row]
    if len(found) < 2:
        raise KbrError(f"{path} must have a line of column names and rows; got {len(found)} lines.")
    names = tuple(name.strip() for name in found[0][0])
    check_different(names, "path")
    for row, line in found[1:]:
        if len(row) != len(names):
            raise KbrError(
                f"line {line} of {path} has {len(row)} cells; the header has {len(names)} columns."
            )
    return Table(path, names, [row for row, _ in found[1:]], [line for _, line in found[1:]])
