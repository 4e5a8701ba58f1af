"""What a sweep leaves in its folder: results.csv, summary.csv, table.txt, figure, report.html."""

from itertools import groupby
from pathlib import Path

from omegaconf import DictConfig

from kbr.app.figures.sweep import sweep_figure
from kbr.app.report.comparison import QUICK, Report, report_of
from kbr.app.report.page import write_page
from kbr.app.report.summary import format_table
from kbr.app.run.folder import RESULTS, write_bytes, write_rows
from kbr.app.runs.finished import collect


def gather(folder: Path, figure: DictConfig | None) -> dict[str, str]:
    """Write everything from the cells' folders; failures by name."""
    report = report_of(collect([folder]))
    if report.comparisons:
        write_rows(folder / RESULTS, report.rows)
        _tables(folder, report)
        name = figure.name if figure is not None else "sweep"
        sweep_figure(folder / name, report.comparisons)
    write_page(folder / "report.html", report)
    for problem in report.problems:
        print(f"  problem: {problem}")
    return {Path(name).name: message for name, message in report.collection.failures.items()}


def _tables(folder: Path, report: Report) -> None:
    """summary.csv, and table.txt with one legend for the data sets that share it."""
    text = [f"\n{QUICK}"] if report.is_quick else []
    for (x, reference), alike in groupby(report.comparisons, lambda one: (one.x, one.reference)):
        table = [one for comparison in alike for one in comparison.summary]
        text.append(format_table(table, x, reference))
    rows = [one.row() for comparison in report.comparisons for one in comparison.summary]
    write_rows(folder / "summary.csv", rows)
    write_bytes(folder / "table.txt", ("\n".join(text).lstrip("\n") + "\n").encode())
    print("\n".join(text))
