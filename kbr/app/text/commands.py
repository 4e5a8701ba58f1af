"""Commands as a user can paste them, whatever is in the names of folders."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

PLAIN = re.compile(r"[A-Za-z_./][\w./+@-]*")  # what Hydra takes as it stands
WORDS = ("null", "true", "false", "nan", "inf")  # what it takes for something else


def quoted(word: str) -> str:
    """For a shell: brackets alone need no quotes, quoted names stand in double ones."""
    if re.fullmatch(r"[\w@%+=:,./\[\]-]+", word, re.ASCII):
        return word
    return f'"{word}"' if "'" in word and not re.search(r'["$`\\!]', word) else shlex.quote(word)


def command(program: str, *arguments: str) -> str:
    """`python train.py ...`, or `kbr-train ...` where that was what the user typed."""
    started = Path(sys.argv[0])
    if started.name.startswith("kbr-"):
        return " ".join(map(quoted, [f"kbr-{program}", *arguments]))
    place = started.parent if started.name in ("train.py", "evaluate.py") else Path()
    return " ".join(map(quoted, ["python", str(shown(place / f"{program}.py")), *arguments]))


def setting(key: str, value: str | Path) -> str:
    """`key=value` with the quotes that Hydra needs; the shell's are `command`'s."""
    text = str(value)
    if not PLAIN.fullmatch(text) or text.lower() in WORDS:
        text = QuotedString(text=text, quote=Quote.single).with_quotes()
    return f"{key}={text}"


def resume_command(folder: Path, outside: Sequence[str] = ()) -> str:
    """How a run goes on; modules beside kbr have to be trusted by name."""
    trust = [f"trust=[{','.join(outside)}]"] if outside else []
    return command("train", setting("resume", shown(folder)), *trust)


def shown(path: Path) -> Path:
    """The path as a user would type it from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
