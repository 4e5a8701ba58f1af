"""Text that others wrote, made safe to show: no hidden characters, no formulas, not too long."""

import unicodedata
from zlib import crc32

LONGEST = 200  # characters of a name
# Characters that turn the direction of the text around them.
TURNING = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
NONE_IN_XML = (0xFFFE, 0xFFFF)
ODD = frozenset(map(chr, (*TURNING, *NONE_IN_XML)))
HIDDEN = frozenset(("Cc", "Cs", "Zl", "Zp"))  # control, surrogate, line and paragraph separators


def visible(text: str, *, keep: str = "\n") -> str:
    """Characters that would not be seen as their escapes: `\\x00`, `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _is_hidden(c) else _escape(c) for c in text)


def one_line(text: str, longest: int = LONGEST) -> str:
    """One visible line; what is too long ends in a number that tells it from its like."""
    line = visible(text.strip(), keep="")
    if len(line) <= longest:
        return line
    return f"{line[: longest - 10]}…{crc32(text.encode(errors='backslashreplace')):08x}"


def _is_hidden(character: str) -> bool:
    return character in ODD or unicodedata.category(character) in HIDDEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
