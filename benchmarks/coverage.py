"""Do 90 % regions hold 90 % of the truths: calibrated, and as the weights say; trial by trial.

    python benchmarks/coverage.py --trials 10 --csv docs/results/coverage.csv

Runs train.py with the default settings of each data set: the kernel filter on the low-dimensional
tasks, learned features on dSprites.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

from kbr.app.run_folder import write_rows

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
MODELS = {"rotation": "iw", "oscillatory": "iw", "dsprites": "iw_nn"}
COLUMNS = ("data", "n_train", "model", "seed", "mse", "coverage_90", "coverage_90_raw")


def trials(data: str, count: int) -> list[dict[str, str]]:
    """Rows of one run's results.csv."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"data={data}", f"model={MODELS[data]}", f"trials={count}", "logger=csv"]
        quick = ["model.compare_raw=false"] if MODELS[data] == "iw_nn" else []
        command = [sys.executable, str(TRAIN), *settings, *quick, f"hydra.run.dir={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with (Path(folder) / "results.csv").open() as file:
            return [{name: row[name] for name in COLUMNS} for row in csv.DictReader(file)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--csv", type=Path, help="write a row for each trial here")
    options = parser.parse_args()
    print("data         model   trials   calibrated    least     most   weights alone")
    rows: list[dict[str, str]] = []
    for data in options.data:
        made = trials(data, options.trials)
        shares = [float(row["coverage_90"]) for row in made]
        raw = [float(row["coverage_90_raw"]) for row in made]
        print(
            f"{data:12} {MODELS[data]:6} {len(made):7d} {sum(shares) / len(made):12.3f} "
            f"{min(shares):8.3f} {max(shares):8.3f} {sum(raw) / len(made):15.3f}",
            flush=True,
        )
        rows += made
    if options.csv is not None:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
