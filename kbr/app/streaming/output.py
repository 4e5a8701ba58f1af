"""Beliefs as lines of JSON or CSV; a file appears whole, under its name, when all is written."""

import csv
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief
from kbr.core.units.units import Units


class Unwritten(KbrError):
    """An answer could not be written: neither output nor state may move on."""


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """A file to write. What was there before stays until all is written, whatever goes wrong.

    Devices and pipes are written to as they are, and standard output where `path` is "-"; a link's
    target is replaced, not the link. An error of the system in the block is one of writing.
    """
    target, stays = Path(os.path.realpath(path)), " What was there before is intact."
    try:
        if path == "-":
            path, stays = "standard output", ""
            if sys.stdout is None:
                raise KbrError("standard output is closed. Set output=<file>.")
            yield sys.stdout
            return
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            if target.is_dir():
                raise KbrError(f"output={path} is a folder. Name a file.")
            with target.open("w", encoding="utf-8", newline="") as out:
                yield out
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8", newline="") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritten(f"cannot write {path}: {error.strerror or error}.{stays}") from error


class Writer:
    """Writes each belief as one line, at once; CSV has a header, also where no line follows."""

    def __init__(self, out: TextIO, kind: str, units: Units, *, dz: int, raw: bool) -> None:
        self.out, self.units, self.dz, self.raw = out, units, dz, raw
        self.table = csv.writer(out, lineterminator="\n") if kind == "csv" else None
        self.borders: list[str] | None = None  # of the header, once it is written
        labels = units.labels or units.z_names
        self.named = {} if labels is None else {"names": list(labels)}

    def __call__(self, belief: Belief, shown: Mapping[str, Any]) -> None:
        """`shown` is what the row says of itself: its sequence, its time."""
        mean, cov = belief.mean.tolist(), belief.raw_cov if self.raw else belief.cov
        seen = bool(belief.evidence)
        if self.table is None:
            line = {"step": belief.steps, **shown, **self.named, "mean": mean, "cov": cov.tolist()}
            self.out.write(json.dumps({**line, "evidence": seen}) + "\n")
        else:
            borders = self.header(list(shown))
            places = [shown.get(key, "") for key in borders]
            self.table.writerow([belief.steps, *places, *mean, *cov.flatten().tolist(), int(seen)])
        self.out.flush()

    def header(self, borders: list[str]) -> list[str]:
        """The first line of CSV, once: names of the state, with units where they are known."""
        if self.borders is None and self.table is not None:
            names = list(self.units.z_names or map(str, range(self.dz)))
            means = [f"mean_{label}" for label in self.units.labels or names]
            covs = [f"cov_{a}_{b}" for a in names for b in names]
            self.table.writerow(["step", *borders, *means, *covs, "evidence"])
            self.borders = borders
        return self.borders or []
