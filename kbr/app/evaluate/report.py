"""evaluate.py report=...: report.html again, over one folder of runs or several."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kbr.app.report.comparison import report_of
from kbr.app.report.page import write_page
from kbr.app.report.run_page import PAGE
from kbr.app.run.folder import MANIFEST
from kbr.app.runs.facts import location
from kbr.app.runs.finished import collect
from kbr.app.text.plain import one_line
from kbr.core.errors import KbrError

BESIDE = "comparison.html"  # in the folder of a run, which has a page of its own


def rebuild_report(folders: Sequence[Path], out: Path | None) -> Path:
    """Into the first folder that is there, or `out` (a folder, or a file *.html)."""
    there = [folder for folder in folders if os.path.isdir(folder)]
    if not there:
        listed = ", ".join(map(location, folders)) or "none"
        raise KbrError(f"report needs folders that hold runs; there is no {listed}. Set report=...")
    target = out or there[0]
    name = BESIDE if (target / MANIFEST).is_file() else PAGE
    path = target if target.suffix == ".html" else target / name
    report = report_of(collect(folders))
    problems, runs = report.problems, report.collection.runs
    try:
        write_page(path, report)
    except OSError as error:
        raise KbrError(f"cannot write {location(path)} ({error.strerror}). Set out=...") from None
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    for name, message in report.collection.failures.items():
        print(f"failed: {name}: {one_line(message.partition(chr(10))[0])}", file=sys.stderr)
    said = f"; {len(problems)} problem(s), listed there too" if problems else ""
    print(f"report over {len(runs)} run(s): {location(path)}{said}")
    if not runs:
        raise KbrError(
            f"no finished runs in {', '.join(map(location, folders))}; the report says why."
        )
    return path
