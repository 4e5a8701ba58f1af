"""The tables and pictures of docs/real_data.md, from a finished sweep of experiment=real.

    python train.py -m experiment=real data.root=real
    python benchmarks/real_tables.py outputs/real

Rows of summary.csv go into docs/results/real.csv in the place of those of the same data and model,
pictures of the reference become docs/results/real_<data>.png, and every table of the page that
stands between `<!-- table: <data> -->` and `<!-- end -->` is written anew. What a sweep of a part
lacks stays.
"""

import argparse
import csv
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from yaml import SafeLoader, load

from kbr.app.report.comparison import report_of
from kbr.app.runs.finished import collect

ROOT = Path(__file__).resolve().parent.parent
DOCS, CONFIG = ROOT / "docs", ROOT / "configs" / "experiment" / "real.yaml"
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = Mapping[str, str]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a model a line, with the error in units, coverage and CPU seconds."""
    heads = [
        "model",
        rows[0]["measure"],
        "MSE",
        "in 90 %",
        "CPU s to fit",
        "CPU ms a step",
        "seeds",
    ]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        cells = [
            row["model"],
            f"{float(row['error']):.3g}",
            f"{float(row['mean']):.3g}",
            f"{float(row['coverage_90']):.0%}",
            f"{float(row['fit_cpu_seconds']):.3g}",
            f"{1000 * float(row['step_cpu_seconds']):.2g}",
            row["trials"],
        ]
        lines.append(cells)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def fill(text: str, rows: Sequence[Row]) -> str:
    """The page with the tables of these rows; those of other data stay."""

    def filled(found: re.Match[str]) -> str:
        mine = [row for row in rows if row["data"] == found[2]]
        return f"{found[1]}{table(mine)}{found[3]}" if mine else found[0]

    return TABLE.sub(filled, text)


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def joined(old: Sequence[Row], new: Sequence[Row], models: Sequence[str]) -> list[Row]:
    """The new rows in the place of the old ones; data as they stand, models in the usual order."""
    rows = {(row["data"], row["model"]): row for row in [*old, *new]}
    data = list(dict.fromkeys(name for name, _ in rows))
    order = [*models, *sorted({model for _, model in rows} - set(models))]
    return [rows[name, model] for name in data for model in order if (name, model) in rows]


def main(sweep: Path, docs: Path = DOCS) -> None:
    kept = docs / "results" / "real.csv"
    figure = load(CONFIG.open(), Loader=SafeLoader)["figure"]
    new = read(sweep / "summary.csv")
    rows = joined(read(kept) if kept.is_file() else [], new, figure["models"])
    with kept.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    page = docs / "real_data.md"
    page.write_text(fill(page.read_text(), rows))
    for comparison in report_of(collect([sweep])).comparisons:
        if comparison.story is not None and figure["reference"] in comparison.models:
            shutil.copyfile(comparison.story, docs / "results" / f"real_{comparison.data}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path, help="the folder of the sweep")
    main(parser.parse_args().sweep)
