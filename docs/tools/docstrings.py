"""Docstrings for the site: plain text with `code` and formulas, as Markdown that reads the same."""

import re
import textwrap
from typing import Any

from griffe import Extension, Object

MARKED = re.compile(r"^(Math|Ref): ?", re.MULTILINE)
ALIGNED = re.compile(r"(?P<name>\S.*?) {3,}(?=\S)")  # name, a gap, words: a table of plain text
SPECIAL = re.compile(r"([*_<>\[\]|^~])")


class PlainDocstrings(Extension):
    """Turns the docstring of every object into Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """`Math:` becomes a block of text, `Ref:` a line, a table a list; the rest is escaped."""
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
        lines[0] = " " * len(marked[0]) + lines[0][len(marked[0]) :]
        return "\n".join(["```text", textwrap.dedent("\n".join(lines)), "```"])
    if head := ALIGNED.match(lines[0]):
        return _list(lines, column=head.end())
    is_list = any(re.match(r"\s*(-|\d+\.) ", line) for line in lines)
    return ("\n" if is_list else " ").join(map(_escaped, lines))


def _list(lines: list[str], column: int) -> str:
    """A table whose words begin at a column: one item for each name."""
    items: list[str] = []
    for line in lines:
        if line[0] == " ":
            items[-1] += " " + _escaped(line.strip())
            continue
        wide = ALIGNED.match(line)  # also a name that is wider than the column
        at = wide.end() if wide and wide.end() > column else column
        items.append(f"- **{_escaped(line[:at].strip())}**: {_escaped(line[at:].strip())}")
    return "\n".join(items)


def _escaped(line: str) -> str:
    """Signs that Markdown would take for its own, outside `code`."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else SPECIAL.sub(r"\\\1", p) for p in parts)
