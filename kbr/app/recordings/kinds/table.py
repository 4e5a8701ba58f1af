"""CSV as named columns: a line of names, then rows of cells between commas, semicolons or tabs."""

import codecs
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from kbr.app.recordings.columns import DECIMALS, Columns
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source

BLOWN_UP = 15.0  # bytes of memory for each byte of text, once it is cut into cells
DELIMITERS = ",;\t"
SNIFFED = 20  # lines by which the delimiter is chosen


def read_csv(source: "Source", path: Path) -> Columns:
    """The columns of a table; which of them are x and z, the user has to say."""
    return chosen(source, read_table(path, source))


def chosen(source: "Source", table: Columns) -> Columns:
    """The table, once its columns of x and z are named."""
    for key, names in (("x", table.x), ("z", source.z)):
        if not names and (key == "x" or source.needs_z):
            raise KbrError(
                f"say which columns of {table.path} are {key}: data.{key}=[...]. {table.there()}"
            )
    return table


def read_table(path: Path, source: "Source") -> Columns:
    """The cells of a CSV file, by the names in its first line."""
    if source.decimal not in DECIMALS:
        raise KbrError(f"data.decimal must be point or comma; got {source.decimal!r}.")
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
    (header, _), *rows = kept
    names = [source.renamed(name.strip()) for name in header]
    named = max((k + 1 for k, name in enumerate(names) if name), default=0)
    if not any(cell.strip() for row, _ in rows for cell in row[named : len(names)]):
        names = names[:named]  # only delimiters at the ends of lines come after these
    for row, line in rows:
        if len(row) < len(names) or any(cell.strip() for cell in row[len(names) :]):
            raise KbrError(
                f"line {line} of {path} has {len(row)} cells; the header has {len(names)} columns "
                f"(cells are separated by {delimiter!r}; one that holds it needs quotation marks)."
            )

    def cells(name: str) -> list[str]:
        at = names.index(name)
        return [row[at].strip() for row, _ in rows]

    return Columns(
        kind="csv",
        path=path,
        names=tuple(names),
        get=cells,
        x=tuple(source.x or source.parts or ()),
        z=tuple(source.z or ()),
        lines=[line for _, line in rows],
        decimal=source.decimal,
    )


def _without_blank_lines(rows: list[tuple[list[str], int]]) -> list[tuple[list[str], int]]:
    """Blank lines between rows are nothing; in a file of one column they are missing values."""

    def blank(row: list[str]) -> bool:
        return len(row) < 2 and not "".join(row).strip()

    kept = [at for at, (row, _) in enumerate(rows) if not blank(row)]
    if kept and all(len(rows[at][0]) == 1 for at in kept):
        return [(row or [""], line) for row, line in rows[kept[0] : kept[-1] + 1]]
    return [rows[at] for at in kept]


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

    return max(DELIMITERS, key=quality)
