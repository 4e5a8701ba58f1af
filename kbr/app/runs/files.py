"""Files of a run folder, read as if a stranger had written them: kind, size and nesting first."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from kbr.app.runs.facts import location
from kbr.app.text.plain import one_line
from kbr.core.errors import KbrError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, ten times faster
SETTINGS_BYTES = 250_000  # of run.json, metrics.json, config.yaml, hydra.yaml: a few kB each
RESULTS_BYTES = 8_000_000  # of results.csv: about 300 bytes a trial
TRIALS, COLUMNS = 20_000, 500  # of results.csv
NESTING = 50
BITS = 1000  # of an integer; more are no number that float() takes


class DamagedFile(KbrError):
    """A file that cannot be used; the message names it and says why."""


def read_json(path: Path) -> dict[str, Any]:
    """A file of named values."""
    return _settings(path, json.loads)


def read_yaml(path: Path) -> dict[str, Any]:
    """A file of named values, without aliases and tags: Hydra writes none, and few aliases can
    stand for more values than any memory holds."""
    return _settings(path, lambda text: _yaml(text, path))


def read_table(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    """The column names of a CSV file, and its rows as they are."""
    rows = _lines(path)
    header = [one_line(name) for name in next(rows, [])]
    if len(header) > COLUMNS:
        raise DamagedFile(f"{location(path)}: {len(header)} columns; at most {COLUMNS} are read")
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise DamagedFile(f"{location(path)}: column {twice[0]!r} stands there twice")
    return header, rows


def read_bytes(path: Path, limit: int) -> bytes:
    """All of a file that has at most `limit` bytes."""
    content = read_start(path, limit + 1)
    if len(content) > limit:
        raise DamagedFile(f"{location(path)}: larger than {limit:,} bytes, the most that is read")
    return content


def read_start(path: Path, count: int) -> bytes:
    """The first bytes of an ordinary file: no folder, no pipe that never ends."""
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            raise DamagedFile(f"{location(path)}: cannot be read (no ordinary file)")
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise DamagedFile(f"{location(path)}: cannot be read ({error.strerror})") from None


def inside(settings: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Settings within settings; empty where a truncated file has none."""
    for key in keys:
        inner = settings.get(key)
        settings = inner if isinstance(inner, dict) else {}
    return settings


def _lines(path: Path) -> Iterator[list[str]]:
    """The rows of a CSV file that are not empty."""
    text = _decoded(read_bytes(path, RESULTS_BYTES), path)
    try:
        for number, row in enumerate(filter(None, csv.reader(io.StringIO(text, newline="")))):
            if number > TRIALS:
                raise DamagedFile(
                    f"{location(path)}: more than {TRIALS:,} trials, the most of a run"
                )
            yield row
    except csv.Error:
        raise DamagedFile(f"{location(path)}: damaged or truncated") from None


def _settings(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    text = _decoded(read_bytes(path, SETTINGS_BYTES), path)
    try:
        values = parse(text)
    except DamagedFile:
        raise
    except (ValueError, yaml.YAMLError):  # ValueError: bad JSON, or a date or number out of range
        raise DamagedFile(f"{location(path)}: damaged or truncated") from None
    except RecursionError:
        raise DamagedFile(f"{location(path)}: nested more than {NESTING} deep") from None
    if not isinstance(values, dict):
        raise DamagedFile(f"{location(path)}: damaged or truncated")
    _check_sizes(values, path)
    return values


def _yaml(text: str, path: Path) -> Any:
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise DamagedFile(f"{location(path)}: has aliases (*{one_line(event.anchor, 20)})")
        if getattr(event, "tag", None) is not None:
            raise DamagedFile(f"{location(path)}: has tags ({one_line(event.tag, 60)})")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > NESTING:
            raise DamagedFile(f"{location(path)}: nested more than {NESTING} deep")
    return yaml.load(text, Loader=LOADER)  # either loader is a safe one


def _check_sizes(values: dict[str, Any], path: Path) -> None:
    """Neither nested too deep to be shown nor with numbers too large to be one."""
    level: list[Any] = [values]
    for _ in range(NESTING + 1):
        inner = [[*v, *v.values()] if isinstance(v, dict) else v for v in level]
        level = [one for part in inner for one in part]
        if any(isinstance(one, int) and one.bit_length() > BITS for one in level):
            raise DamagedFile(f"{location(path)}: has a number of more than 300 digits")
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return
    raise DamagedFile(f"{location(path)}: nested more than {NESTING} deep")


def _decoded(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DamagedFile(f"{location(path)}: damaged or truncated") from None
