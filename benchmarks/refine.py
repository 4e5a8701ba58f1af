"""What choosing on three blocks, correcting means and refining by gradient bring.

one_block: the settings that the last block chooses, means as the rule gives them; three_blocks: the
same, chosen on three where rows are few; iw: that with its means corrected, the default;
iw_refined: after gradient steps.

Every variant is learned from the training sequence alone; the test sequence is used for the table.
Prints MSE beside the first one's, paired over seeds, and writes one row a seed and variant:

    python benchmarks/refine.py --n_train 300 --seeds 10
    python benchmarks/refine.py --n_train 300 500 900 --csv docs/results/refined.csv
"""

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path

import torch
from scipy.stats import wilcoxon
from torch import Tensor

from kbr import KernelBayesFilter
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.filters.refined.filter import RefinedFilter
from kbr.core.filters.training_data import training_data

TASKS = {"rotation": Rotation, "oscillatory": Oscillatory}


def errors(task: str, n_train: int, seeds: range) -> dict[str, Tensor]:
    """Test errors [seeds] of each variant."""
    made = [TASKS[task]().generate(n_train=n_train, n_test=200, seed=s) for s in seeds]
    names = ("x_train", "z_train", "x_test", "z_test")
    x, z, x_test, z_test = (torch.stack([getattr(d, k) for d in made]).double() for k in names)
    plain = KernelBayesFilter(correction=None)
    data = training_data(x, z, standardize=plain.standardized)
    variants = {
        "one_block": lambda: KernelBayesFilter.of(plain.learned(data, in_order=True)),
        "three_blocks": lambda: replace(plain).fit(x, z),
        "iw": lambda: KernelBayesFilter().fit(x, z),
        "iw_refined": lambda: RefinedFilter().fit(x, z),
    }
    found = {}
    for name, fit in variants.items():
        started = time.process_time()
        filt = fit()
        seconds = (time.process_time() - started) / len(seeds)
        print(f"{name:<12} fitted in {seconds:.1f} CPU s a seed", flush=True)
        error = (filt.filter(x_test).mean - z_test).square().sum(-1).mean(-1)
        found[name] = error.round(decimals=6)  # as in the file: equal choices are ties
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n_train", type=int, nargs="+", default=[300])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--csv", type=Path, help="where to write task, n_train, seed, variant, mse")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + given.seeds)
    rows = []
    for task, n in ((task, n) for task in given.tasks for n in given.n_train):
        print(f"{task}, n = {n}, seeds {seeds[0]} .. {seeds[-1]}")
        table = errors(task, n, seeds)
        first, *others = table
        base = table[first]
        print(f"{first:<12} {base.mean():.4f}")
        for name in others:
            found = table[name]
            p = wilcoxon(found.numpy(), base.numpy()).pvalue if bool((found != base).any()) else 1.0
            change, wins = float(found.mean() / base.mean() - 1), int((found < base).sum())
            print(f"{name:<12} {found.mean():.4f}   {change:+.1%}   better in {wins}   p = {p:.2g}")
        for name, found in table.items():
            pairs = zip(seeds, found.tolist(), strict=True)
            rows += [(task, n, seed, name, f"{error:.6f}") for seed, error in pairs]
    if given.csv is not None:
        with given.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("task", "n_train", "seed", "variant", "mse"))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
