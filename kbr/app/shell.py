"""Commands that a user can paste into a shell."""

import re
import shlex


def quoted(word: str) -> str:
    """For a shell: brackets alone need no quotes, quoted names stand in double ones."""
    if re.fullmatch(r"[\w@%+=:,./\[\]-]+", word, re.ASCII):
        return word
    return f'"{word}"' if "'" in word and not re.search(r'["$`\\!]', word) else shlex.quote(word)
