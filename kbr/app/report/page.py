"""report.html: one page that holds all it shows, of one sweep or of any runs together."""

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kbr.app.figures.sweep import ERROR, error_panel, folded, paired_models, paired_panel
from kbr.app.report.choices import Choices, choices_of
from kbr.app.report.comparison import QUICK, Comparison, Report
from kbr.app.report.settings import facts_by_folder
from kbr.app.report.svg import inline_svg
from kbr.app.run.folder import csv_text, write_bytes
from kbr.app.text.plain import one_line


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What the page shows of one data set; pictures are SVG."""

    comparison: Comparison
    picture: Markup
    pairs: list[Markup]
    choices: Choices | None


def write_page(path: Path, report: Report) -> None:
    write_bytes(path, page(report).encode(errors="backslashreplace"))


def page(report: Report) -> str:
    """The page as text."""
    folders = report.collection.folders
    return render(
        "page.html",
        title=one_line(", ".join(Path(os.path.realpath(folder)).name for folder in folders)),
        quick=QUICK if report.is_quick else "",
        report=report,
        downloads=_downloads(report),
        data_sets=[data_set_of(comparison) for comparison in report.comparisons],
        folders=facts_by_folder(report.collection),
    )


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("kbr.app.report", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """A template of files/, filled in; text in the values is escaped."""
    return _templates().get_template(template).render(values)


def data_set_of(comparison: Comparison) -> DataSet:
    """All tables and pictures of one data set."""
    return DataSet(
        comparison=comparison,
        picture=_picture(comparison),
        pairs=[] if comparison.reference is None else _pairs(comparison),
        choices=choices_of(comparison),
    )


def _downloads(report: Report) -> dict[str, str]:
    """Tables that the page holds, by their names as files."""
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        "summary.csv": [one.row() for part in report.comparisons for one in part.summary],
        "results.csv": report.rows,
    }
    return {
        name: base64.b64encode(csv_text(rows).encode()).decode()
        for name, rows in tables.items()
        if rows
    }


def _picture(comparison: Comparison) -> Markup:
    def draw(axis: Any) -> None:
        error_panel(axis, comparison)
        if comparison.x is not None:
            axis.set_ylabel(ERROR)
            columns = 4 if max(map(len, comparison.models)) < 14 else 2
            axis.figure.legend(loc="outside lower center", ncols=columns)

    lines = sum(folded(name).count("\n") + 1 for name in comparison.models)
    height = 3.3 + 0.08 * lines if comparison.x else 0.8 + 0.3 * lines
    label = f"Error of {', '.join(comparison.models)} on {comparison.data}"
    return Markup(inline_svg(draw, size=(5.0, height), label=label))


def _pairs(comparison: Comparison) -> list[Markup]:
    """The models one by one against the reference."""
    where = f"against {comparison.reference} on {comparison.data}, seed by seed"
    return [
        Markup(
            inline_svg(
                partial(paired_panel, comparison=comparison, model=model),
                size=(2.3, 2.25),
                label=f"Error of {model} {where}",
            )
        )
        for model in paired_models(comparison)
    ]
