"""report.html: one page that holds all it shows, of one sweep or of any runs together."""

import base64
import csv
import io
import os
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from kbr.app.figures.sweep import ERROR, error_panel, folded, paired_models, paired_panel
from kbr.app.report.choices import choices_html
from kbr.app.report.sections import QUICK, Section, all_rows, sections_of
from kbr.app.report.settings import runs_html
from kbr.app.report.summary import paired_test, stars, summarize
from kbr.app.report.svg import inline_svg
from kbr.app.report.table import Cell, number, table
from kbr.app.run.folder import write_bytes
from kbr.app.runs.finished import Collection
from kbr.app.text.plain import one_line

PAGE = files("kbr.app.report") / "files"
TESTED = (
    "p: two-sided Wilcoxon signed-rank test over seeds. Holm: corrected over all comparisons of "
    "this data set; stars use it: * p < .05, ** p < .01, *** p < .001, **** p < .0001."
)


def write_report(path: Path, found: Collection) -> list[str]:
    """Write the page; gives back the problems it shows."""
    sections, problems = sections_of(found)
    write_bytes(path, page(found, sections, problems).encode(errors="backslashreplace"))
    return problems


def page(found: Collection, sections: Sequence[Section], problems: Sequence[str]) -> str:
    """The page as text."""
    title = one_line(", ".join(Path(os.path.realpath(f)).name for f in found.folders))
    parts = [
        _head(title, found, sections),
        _alert("Problems", problems),
        _alert("Failed runs", [f"{n}: {m}" for n, m in found.failures.items()], "bad"),
        *(_section(section, i) for i, section in enumerate(sections)),
        runs_html(found),
    ]
    filled = (PAGE / "page.html").read_text()
    contents = {
        "title": escape(f"{title} · kbr"),
        "style": (PAGE / "page.css").read_text().strip(),
        "script": (PAGE / "page.js").read_text().strip(),
        "body": "\n".join(filter(None, parts)),
    }
    for name, content in contents.items():  # the body last: what it holds is never filled in
        filled = filled.replace("{{" + name + "}}", content)
    return filled


def _head(title: str, found: Collection, sections: Sequence[Section]) -> str:
    trials = sum(len(section.rows) for section in sections)
    counts = f"{len(found.runs)} runs, {trials} trials"
    quick = any(run.is_quick for run in found.runs)
    tag = f' <span class="tag">{QUICK}</span>' if quick else ""
    links = "".join(
        f'<a href="#data-{i}">{escape(section.data)}</a>' for i, section in enumerate(sections)
    )
    summary = [row for s in sections for row in summarize(s.rows, s.x, s.reference)]
    links += "".join(
        f'<a download="{name}" href="data:text/csv;base64,{_csv(rows)}">{name}</a>'
        for name, rows in (("summary.csv", summary), ("results.csv", all_rows(found.runs)))
        if rows
    )
    return (
        f'<h1>{escape(title)}</h1>\n<p class="soft">{counts}.{tag}</p>\n'
        f'<nav aria-label="contents">{links}<a href="#runs">what was run</a></nav>'
    )


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return base64.b64encode(text.getvalue().encode()).decode()


def _alert(title: str, lines: Sequence[str], kind: str = "") -> str:
    if not lines:
        return ""
    items = "\n".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<section class="alert {kind}"><h2>{title}</h2>\n<ul>\n{items}\n</ul></section>'


def _section(section: Section, place: int) -> str:
    summary = summarize(section.rows, section.x, section.reference)
    against = f"against {section.reference}" if section.reference else ""
    parts = [
        f'<h2 id="data-{place}">{escape(section.data)}</h2>',
        f'<div class="figure">{_figure(section)}</div>',
        _caption(section),
    ]
    if section.x is not None:
        heading = f"<h3>Mean error by {escape(section.label)}</h3>"
        parts += [heading, _overview(section, section.x, summary)]
    parts += [f"<h3>All numbers{escape(f', tested {against}' if against else '')}</h3>"]
    parts += [_numbers(section, summary)]
    if section.reference:
        parts += [f'<p class="soft">{escape(TESTED)}</p>', _pairs(section)]
    return "\n".join(filter(None, [*parts, choices_html(section)]))


def _figure(section: Section) -> str:
    def draw(axis: Any) -> None:
        error_panel(axis, section)
        if section.x is not None:
            axis.set_ylabel(ERROR)
            columns = 4 if max(map(len, section.models)) < 14 else 2
            axis.figure.legend(loc="outside lower center", ncols=columns)

    lines = sum(folded(name).count("\n") + 1 for name in section.models)
    height = 3.3 + 0.08 * lines if section.x else 0.8 + 0.3 * lines
    label = f"Error of {', '.join(section.models)} on {section.data}"
    return inline_svg(draw, size=(5.0, height), label=label)


def _caption(section: Section) -> str:
    shown = "Bands" if section.x else "Bars"
    return f'<p class="soft">Mean over trials. {shown}: two standard errors.</p>'


def _overview(section: Section, x: str, summary: Sequence[Mapping[str, Any]]) -> str:
    columns = sorted({row[x] for row in summary})
    lowest = {c: min(row["mean"] for row in summary if row[x] == c) for c in columns}
    rows: list[list[Cell | str]] = []
    for model in section.models:
        mine = {row[x]: row for row in summary if row["model"] == model}
        rows.append([model, *(_mean(mine.get(c), lowest[c]) for c in columns)])
    head = ["model", *map(str, columns)]
    return table(head, rows, label=f"Mean error on {section.data}", text=["model"])


def _mean(row: Mapping[str, Any] | None, lowest: float) -> Cell:
    if row is None:
        return Cell("")
    text = f"{row['mean']:#.4g} ± {row['stderr']:#.2g}{stars(row['p_holm'])}"
    return Cell(text, row["mean"], best=row["mean"] == lowest)


def _numbers(section: Section, summary: Sequence[Mapping[str, Any]]) -> str:
    x, tested = section.x, section.reference is not None
    head = ["model", *([x] if x else []), "trials", "mean", "std. error", "median"]
    head += ["difference", "pairs", "p", "p (Holm)", "note"] if tested else []
    rows: list[list[Cell | str]] = []
    for row in summary:
        cells: list[Cell | str] = [row["model"], *([number(row[x], "g")] if x else [])]
        cells += [number(row["trials"], "d"), number(row["mean"])]
        cells += [number(row["stderr"], "#.2g"), number(row["median"])]
        if tested:
            cells += [_difference(section, row), number(row["pairs"], "d")]
            cells += [number(row["p_value"], ".2g")]
            cells += [number(row["p_holm"], ".2g", stars(row["p_holm"])), row["note"]]
        rows.append(cells)
    return table(head, rows, label=f"All numbers on {section.data}", text=["model", "note"])


def _difference(section: Section, row: Mapping[str, Any]) -> Cell:
    """Mean over the common seeds of this model's error minus the reference's."""
    if row["pairs"] is None or section.reference is None:
        return Cell("")
    return number(
        paired_test(
            _errors(section, row["model"], row), _errors(section, section.reference, row)
        ).difference,
        "+#.2g",
    )


def _errors(section: Section, model: str, at: Mapping[str, Any]) -> dict[int, float]:
    x = section.x
    return {
        int(row["seed"]): float(row["mse"])
        for row in section.rows
        if row["model"] == model and (x is None or float(row[x]) == at[x])
    }


def _pairs(section: Section) -> str:
    plots = [
        inline_svg(
            partial(paired_panel, section=section, model=name),
            size=(2.3, 2.25),
            label=f"Error of {name} against {section.reference} on {section.data}, seed by seed",
        )
        for name in paired_models(section)
    ]
    if not plots:
        return ""
    what = f" and {section.label}" if section.x else ""
    return (
        f"<h3>Seed by seed, against {escape(section.reference or '')}</h3>\n"
        f'<p class="soft">A point for each seed{escape(what)}; below the line, the model is better '
        f'than {escape(section.reference or "")}.</p>\n<div class="pairs">{"".join(plots)}</div>'
    )
