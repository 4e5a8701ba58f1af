"""Docstrings for the site: plain text with `code` and formulas, as Markdown that reads the same."""

import re
import textwrap
from typing import Any

from griffe import Extension, Object

MARKED = re.compile(r"^(Math|Ref): ?", re.MULTILINE)
ALIGNED = re.compile(r"^\S.*?\S? {3,}\S")  # name, a gap, words: a table of plain text
SPECIAL = re.compile(r"([*_<>\[\]|^~])")


class PlainDocstrings(Extension):
    """Turns the docstring of every object into Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """`Math:` and tables become blocks of text, `Ref:` a line of its own; the rest is escaped."""
    return "\n\n".join(_block(lines) for lines in _blocks(text))


def _blocks(text: str) -> list[list[str]]:
    """Lines that belong together: paragraphs, and what begins with `Math:` or `Ref:`."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or MARKED.match(line):
            found.append([])
        if line.strip():
            found[-1].append(line)
    return [lines for lines in found if lines]


def _block(lines: list[str]) -> str:
    marked = MARKED.match(lines[0])
    if marked and marked[1] == "Ref":
        return _escaped(" ".join([lines[0].replace("Ref:", "Reference:", 1), *lines[1:]]))
    if marked:
        first = " " * len(marked[0]) + lines[0][len(marked[0]) :]
        return _as_it_is([first, *lines[1:]])
    if ALIGNED.match(lines[0]):
        return _as_it_is(lines)
    return "\n".join(map(_escaped, lines))


def _as_it_is(lines: list[str]) -> str:
    return f"```text\n{textwrap.dedent(chr(10).join(lines))}\n```"


def _escaped(line: str) -> str:
    """Signs that Markdown would take for its own, outside `code`."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else SPECIAL.sub(r"\\\1", p) for p in parts)
