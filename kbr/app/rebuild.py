"""evaluate.py report=...: report.html again, over one folder of runs or several."""

import sys
from collections.abc import Sequence
from pathlib import Path

from kbr.app.report import write_report
from kbr.app.runs import collect
from kbr.core.errors import KbrError

PAGE = "report.html"


def rebuild_report(folders: Sequence[Path], out: Path | None) -> Path:
    """Into the first folder that is there, or `out` (a folder, or a file *.html)."""
    there = [folder for folder in folders if folder.is_dir()]
    if not there:
        listed = ", ".join(map(str, folders)) or "none"
        raise KbrError(f"report needs folders that hold runs; there is no {listed}. Set report=...")
    target = out or there[0]
    path = target if target.suffix == ".html" else target / PAGE
    found = collect(folders)
    problems = write_report(path, found)
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    for name, message in found.failures.items():
        print(f"failed: {name}: {message}", file=sys.stderr)
    print(f"report over {len(found.runs)} run(s): {path}")
    if not found.runs:
        raise KbrError(f"no finished runs in {', '.join(map(str, folders))}; the report says why.")
    return path
