"""report.html: one page about one sweep or any runs together; it loads no other file."""

import base64
import os
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kbr.app.figures.sweep import ERROR, error_panel, folded, paired_panel
from kbr.app.report.choices import choices_of
from kbr.app.report.comparison import QUICK, Comparison, Report
from kbr.app.report.settings import facts_by_folder
from kbr.app.report.svg import inline_svg
from kbr.app.run.folder import csv_text, write_bytes
from kbr.app.text.plain import one_line


def write_page(path: Path, report: Report) -> None:
    write_bytes(path, page(report).encode(errors="backslashreplace"))


def page(report: Report) -> str:
    """The page as text."""
    summary = [one.row() for comparison in report.comparisons for one in comparison.summary]
    tables = {"summary.csv": summary, "results.csv": report.rows}
    folders = report.collection.folders
    return render(
        "page.html",
        title=one_line(", ".join(Path(os.path.realpath(folder)).name for folder in folders)),
        quick=QUICK if report.is_quick else "",
        report=report,
        downloads={
            name: base64.b64encode(csv_text(rows).encode()).decode()
            for name, rows in tables.items()
            if rows
        },
        folders=facts_by_folder(report.collection),
    )


def render(template: str, **values: Any) -> str:
    """A template of files/, filled in; text in the values is escaped."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("kbr.app.report", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "picture_of": _picture,
        "story_of": _story,
        "pairs_of": _pairs,
        "choices_of": choices_of,
    }
    return templates


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


def _story(comparison: Comparison) -> str:
    """The picture of a real recording, as the address of an image; empty without."""
    if comparison.story is None:
        return ""
    return f"data:image/png;base64,{base64.b64encode(comparison.story.read_bytes()).decode()}"


def _pairs(comparison: Comparison) -> list[Markup]:
    """One picture for each model that has two points or more in common with the reference."""
    reference = comparison.reference
    if reference is None:
        return []
    pictures = []
    for model in comparison.models:
        common = comparison.errors(model).keys() & comparison.errors(reference)
        if model != reference and len(common) > 1:
            draw = partial(paired_panel, comparison=comparison, model=model)
            label = f"Error of {model} against {reference} on {comparison.data}, seed by seed"
            pictures.append(Markup(inline_svg(draw, size=(2.3, 2.25), label=label)))
    return pictures
