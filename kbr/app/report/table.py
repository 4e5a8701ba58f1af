"""Tables of a page: escaped, with headings that sort."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Cell:
    """What is shown, and the number to sort by if it is another."""

    text: str
    value: float | None = None
    best: bool = False


def number(value: float | None, digits: str = "#.4g", mark: str = "") -> Cell:
    """A number to so many digits; nothing for None."""
    return Cell("") if value is None else Cell(f"{value:{digits}}{mark}", value)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, label: str, text: Sequence[str]
) -> str:
    """Columns named in `text` are left-aligned words; the first cell of a row is its heading."""
    kinds = ["text" if name in text else "" for name in columns]
    heads = "".join(
        f'<th scope="col"{_kind(kind)}><button type="button">{escape(name)}</button></th>'
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(_cell(c, i, kinds[i]) for i, c in enumerate(row))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">\n'
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(cell: Cell | str, place: int, kind: str) -> str:
    cell = Cell(cell) if isinstance(cell, str) else cell
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    shown = escape(cell.text)
    if place == 0:
        return f'<th scope="row"{value}>{shown}</th>'
    return f"<td{_kind(f'{kind} best'.strip() if cell.best else kind)}{value}>{shown}</td>"


def _kind(names: str) -> str:
    return f' class="{names}"' if names else ""
