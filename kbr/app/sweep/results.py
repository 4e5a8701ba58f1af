"""What a sweep leaves in its folder: results.csv, summary.csv, table.txt, figure, report.html."""

from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from kbr.app.figures.sweep import sweep_figure
from kbr.app.report.page import write_report
from kbr.app.report.sections import QUICK, Section, all_rows, sections_of
from kbr.app.report.summary import format_table, summarize
from kbr.app.run.folder import RESULTS, write_bytes, write_rows
from kbr.app.runs.finished import collect


def gather(folder: Path, figure: DictConfig | None) -> dict[str, str]:
    """Write everything from the cells' folders; failures by name."""
    found = collect([folder])
    sections, problems = sections_of(found)
    if sections:
        write_rows(folder / RESULTS, all_rows(found.runs))
        _tables(folder, sections)
        sweep_figure(folder / (figure.name if figure is not None else "sweep"), sections)
    write_report(folder / "report.html", found)
    for problem in problems:
        print(f"  problem: {problem}")
    return {Path(name).name: message for name, message in found.failures.items()}


def _tables(folder: Path, sections: list[Section]) -> None:
    """summary.csv, and table.txt with one legend for the sections that share it."""
    rows: list[dict[str, Any]] = []
    text = [f"\n{QUICK}"] if any(section.is_quick for section in sections) else []
    for (x, reference), alike in groupby(sections, key=lambda s: (s.x, s.reference)):
        table = [row for s in alike for row in summarize(s.rows, x, reference)]
        text.append(format_table(table, x, reference))
        rows += table
    write_rows(folder / "summary.csv", rows)
    write_bytes(folder / "table.txt", ("\n".join(text).lstrip("\n") + "\n").encode())
    print("\n".join(text))
