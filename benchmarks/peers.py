"""Finished runs on lorenz_images or pendulum_images: their filters on fresh test sequences.

    python train.py -m experiment=lorenz_images
    python benchmarks/peers.py outputs/lorenz_images/* --keep

Prints for each run and each length of the test sequences 10 log10 of the squared error averaged
over coordinates, steps and sequences, as published tables have it; the squared error summed over
coordinates; the log-likelihood of a truth; and the share of truths in 90 % regions. Test sequences
are those of the run's seed, 10,000 further on. With --keep, rows go into docs/results/peers.csv in
the place of those of the same training and length, and the tables of docs/peers.md are written
anew from that file; without runs, from what it holds.
"""

import argparse
import csv
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from kbr import load_filter
from kbr.core.datasets.lorenz import LorenzImages
from kbr.core.datasets.pendulum import PendulumImages
from kbr.core.uncertainty import gaussian_log_likelihood

FURTHER = 10_000  # from the run's seed to that of the test sequences
DOCS = Path(__file__).resolve().parent.parent / "docs"
TASKS = {
    "lorenz_images": (LorenzImages, ("p", "sigma_z", "dt"), (200, 2000)),
    "pendulum_images": (PendulumImages, ("friction", "sigma_z", "dt", "clean"), (75,)),
}
KEY = ("data", "p", "sequences", "steps", "model", "seed", "length")  # what tells rows apart
TABLE = re.compile(r"(<!-- table: (\w+) (\S+) (\d+) (\d+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = Mapping[str, Any]


def measured(run: Path, lengths: Sequence[int], steps: int) -> Iterable[dict[str, Any]]:
    """A row for each length, of about so many steps in sequences of this length."""
    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    data, seed, training = config["data"], int(config["seed"]), config["model"]["filter"]
    made, settings, usual = TASKS[data["name"]]
    task, filt = made(**{name: data[name] for name in settings}), load_filter(run)
    fit = json.loads((run / "metrics.json").read_text())["fit/cpu_seconds"]
    for length in lengths or usual:
        count = max(steps // length, 1)
        generator = torch.Generator().manual_seed(seed + FURTHER)
        x, z = task.sample(length, generator, (count,))
        started = time.process_time()
        result = filt.filter(x)
        spent = time.process_time() - started
        alone = filt.readout(x) if hasattr(filt, "readout") else None
        yield {
            "data": data["name"],
            "p": data.get("p", "-"),
            "sequences": data["n_train"] // data["length"],
            "steps": training["epochs"],
            "model": config["model"]["name"],
            "seed": seed,
            "length": length,
            "test_sequences": count,
            "db": decibels(result.mean, z),
            "db_alone": "" if alone is None else decibels(alone, z),
            "mse": float((result.mean - z).square().sum(-1).mean()),
            "log_likelihood": float(gaussian_log_likelihood(result.mean, result.cov, z).mean()),
            "in_90": float(filt.credible_region(result).contains(z).double().mean()),
            "fit_cpu_seconds": fit,
            "step_cpu_ms": 1000 * spent / (count * length),
        }


def decibels(mean: torch.Tensor, truth: torch.Tensor) -> float:
    return LorenzImages().extra_metrics(mean, truth)["test/mse_db"]


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Row]) -> str:
    """Markdown: a model a line, the best first; in dB for Lorenz, with both lengths."""
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row)
    is_db = rows[0]["data"] == "lorenz_images"
    lengths = sorted({int(row["length"]) for row in rows})
    heads = ["model", *(f"dB, T = {length}" for length in lengths)] if is_db else ["model", "MSE"]
    heads += ["log-likelihood", "in 90 %", "CPU s to fit", "CPU ms a step"]
    lines = [heads, ["---"] * len(heads)]
    for model, found in sorted(by_model.items(), key=lambda pair: float(pair[1][0]["mse"])):
        ordered = sorted(found, key=lambda row: int(row["length"]))
        first = ordered[0]
        errors = [f"{float(row['db']):.2f}" for row in ordered]
        lines.append(
            [
                f"`{model}`",
                *(errors if is_db else [f"{float(first['mse']):.4f}"]),
                f"{float(first['log_likelihood']):.2f}",
                " / ".join(f"{float(row['in_90']):.0%}" for row in ordered),
                f"{float(first['fit_cpu_seconds']):.0f}",
                f"{float(first['step_cpu_ms']):.2g}",
            ]
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def fill(text: str, rows: Sequence[Row]) -> str:
    """The page with the tables `<!-- table: data p sequences steps -->` of these rows."""

    def filled(found: re.Match[str]) -> str:
        names = found.groups()[1:5]
        mine = [row for row in rows if tuple(str(row[key]) for key in KEY[:4]) == names]
        return f"{found[1]}{table(mine)}{found[6]}" if mine else found[0]

    return TABLE.sub(filled, text)


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def keep(new: Sequence[Row], docs: Path = DOCS) -> None:
    """The new rows in the place of the old ones, and the page's tables."""
    kept = docs / "results" / "peers.csv"
    old = read(kept) if kept.is_file() else []
    found = {tuple(shown(row[key]) for key in KEY): row for row in [*old, *new]}
    rows = [found[key] for key in sorted(found)]
    with kept.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: shown(value) for name, value in row.items()} for row in rows)
    page = docs / "peers.md"
    page.write_text(fill(page.read_text(), read(kept)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--lengths", type=int, nargs="+", default=[])
    parser.add_argument("--steps", type=int, default=4000, help="of all test sequences together")
    parser.add_argument("--keep", action="store_true", help="into docs/results and docs/peers.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for run in arguments.runs:
        if not (run / "metrics.json").is_file():
            continue  # a file of a sweep beside its runs, or a run that has not finished
        for row in measured(run, arguments.lengths, arguments.steps):
            print(", ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)
            rows.append(row)
    if arguments.keep:
        keep(rows)


if __name__ == "__main__":
    main()
