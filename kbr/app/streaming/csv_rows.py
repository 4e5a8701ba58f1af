"""CSV as it arrives: columns by the names of a header, or numbers in the order of training."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TextIO

from kbr.app.recordings.checks import some_of
from kbr.app.recordings.columns import decimal_hint, is_number, number, value
from kbr.app.recordings.kinds.table import DELIMITERS
from kbr.app.recordings.new import border_notes
from kbr.app.streaming.rows import Format, Row, Say, lines_of
from kbr.core.errors import KbrError
from kbr.core.units.units import did_you_mean


@dataclass(frozen=True)
class Header:
    """Where in a line the columns of x stand, and those of sequence, time and controls."""

    x: tuple[int, ...]
    borders: dict[str, int]  # by name
    width: int  # cells of a line


def csv_rows(
    file: TextIO, expected: Format, decimal: str, say: Say, *, live: bool
) -> Iterator[Row]:
    """A row for each line; `live` ones are answered at once, so that trailing blank lines count.

    In one column an empty line is a missing observation; between other rows it is nothing.
    """
    layout = expected.units.layout
    if len(expected.shape) > 1 or layout is not None:
        what = f"frames {list(expected.shape)}" if layout is None else layout.words()
        raise KbrError(
            f"the filter takes {what}, which a stream of CSV does not hold. Use JSON lines, or a "
            "file: npz, a folder of frames, a CSV that names frames."
        )
    lines, skipped = lines_of(file), 0
    first = next(lines, None)
    while first is not None and not first.strip():
        first, skipped = next(lines, None), skipped + 1
    if first is None:
        return
    delimiter = _delimiter(first, expected, decimal)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    columns: Header | None = None
    blank: list[int] = []  # lines of one column that may be the end of the file
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            text = f"{error}. Is a quotation mark left open?"
            yield Row(skipped + reader.line_num, KbrError(text))
            continue
        line, cells = skipped + reader.line_num, [cell.strip() for cell in cells]
        if columns is None:
            names = expected.units.source.get("rename") or {}
            cells = [str(names.get(cell, cell)) for cell in cells]
            try:
                columns, is_header = _columns(cells, expected, decimal, say)
            except KbrError as error:
                if expected.names:  # without the header nothing is known of the rows below
                    raise KbrError(f"line {line}: {error}") from error
                yield Row(line, error)
                continue
            if is_header:
                continue
        if not any(cells) and len(cells) < 2:
            if columns.width > 1:
                continue
            blank.append(line)
            if not live:
                continue
            cells = []
        yield from (_row(at, [""], columns, expected, decimal) for at in blank)
        blank.clear()
        if cells:
            yield _row(line, cells, columns, expected, decimal)


def _delimiter(line: str, expected: Format, decimal: str) -> str:
    """The one that finds most known columns in the first line; else the one that cuts it most."""
    known = {*expected.names, *expected.read}

    def quality(delimiter: str) -> tuple[int, int]:
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
        except csv.Error:
            return 0, 0
        inside = decimal == "comma" and delimiter == ","  # of the numbers
        return len(known & set(cells)), 0 if inside else len(cells)

    return max(DELIMITERS, key=quality)


def _columns(cells: Sequence[str], expected: Format, decimal: str, say: Say) -> tuple[Header, bool]:
    """The columns that the first line states, and whether it is a header."""
    width, names = expected.width, expected.names
    wide = len(cells)
    while wide > width and not cells[wide - 1]:  # delimiters at the ends of lines
        wide -= 1
    if all(is_number(cell, decimal) for cell in cells):
        return Header(tuple(range(width)), {}, width), False
    borders = {n: cells.index(n) for n in expected.read if n in cells}
    if names and all(name in cells for name in names):
        twice = [name for name in (*names, *borders) if cells.count(name) > 1]
        if twice:
            raise KbrError(f"the header has {twice[0]!r} more than once.")
        used = {*names, *borders}
        others = [cell or f"(column {k + 1})" for k, cell in enumerate(cells[:wide])]
        if others := [cell for cell in others if cell not in used]:
            say(f"columns not used: {some_of(others)}")
        for note in border_notes(expected.units, cells):
            say(note)
        return Header(tuple(cells.index(name) for name in names), borders, wide), True
    rest = [k for k in range(wide) if k not in borders.values()]
    words = not any(cells[k] == "" or is_number(cells[k], decimal) for k in rest)
    if not names and words and len(rest) == width:
        shown = ", ".join(cells[k] for k in rest)
        say(f"the filter knows no column names: {shown} are taken in this order")
        return Header(tuple(rest), borders, wide), True
    shown = ", ".join(map(repr, cells[:8]))
    if not names:
        raise KbrError(f"expected {width} numbers, or as many names; got {shown[:200]}.")
    lost = [name for name in names if name not in cells]
    raise KbrError(
        f"the first line must be numbers, or names among which are {', '.join(names)}; got "
        f"{shown[:200]}. It has no {', '.join(map(repr, lost))}.{did_you_mean(lost, cells)}"
    )


def _row(line: int, cells: Sequence[str], columns: Header, expected: Format, decimal: str) -> Row:
    if len(cells) < columns.width or any(cells[columns.width :]):
        return Row(line, KbrError(f"expected {columns.width} cells; got {len(cells)}."))
    numbers = []
    for cell in (cells[at] for at in columns.x):
        try:
            numbers.append(value(cell, decimal))
        except ValueError:
            hint = decimal_hint(cell, decimal, "")
            return Row(line, KbrError(f"expected a number; got '{cell[:60]}'. {hint}".rstrip()))
    borders: dict[str, str | float] = {}
    for name, at in columns.borders.items():  # text, with a point in numbers
        comma = decimal == "comma" and "," in cells[at] and is_number(cells[at], decimal)
        borders[name] = number(cells[at], decimal) if comma else cells[at]
    return expected.row(line, numbers, borders)
