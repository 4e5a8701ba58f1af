"""A finished run on lorenz_images: its filter and each frame by itself, on sequences of any length.

    python train.py data=lorenz_images model=iw_readout encoder.n_features=16 data.n_train=40000
    python benchmarks/peers.py RUN_FOLDER --lengths 200 2000

Prints 10 log10 of the squared error averaged over coordinates, steps and sequences, as published
tables have it, of fresh test sequences: those of the run's seed, 10,000 further on.
"""

import argparse
import time
from pathlib import Path

import torch
import yaml

from kbr import load_filter
from kbr.core.datasets.lorenz import LorenzImages
from kbr.core.filters.kernel.filter import KernelBayesFilter

FURTHER = 10_000  # from the run's seed to that of the test sequences


def decibels(mean: torch.Tensor, truth: torch.Tensor) -> float:
    return LorenzImages().extra_metrics(mean, truth)["test/mse_db"]


def measured(run: Path, length: int, steps: int) -> dict[str, float]:
    """Of about so many steps in sequences of this length."""
    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    filt = load_filter(run)
    count = max(steps // length, 1)
    seed = int(config["seed"]) + FURTHER
    task = LorenzImages(p=float(config["data"]["p"]))
    x, z = task.sample(length, torch.Generator().manual_seed(seed), (count,))
    started = time.process_time()
    result = filt.filter(x)
    spent = time.process_time() - started
    inside = filt.credible_region(result).contains(z)
    kernel: KernelBayesFilter = filt.kernel_filter
    return {
        "p": task.p,
        "training frames": kernel.operators.n,
        "length": length,
        "sequences": count,
        "dB": decibels(result.mean, z),
        "dB, each frame by itself": decibels(filt.readout(x), z),
        "in 90 %": float(inside.double().mean()),
        "CPU ms a step": 1000 * spent / (count * length),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--steps", type=int, default=4000, help="of all test sequences together")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for length in arguments.lengths:
        figures = measured(arguments.run, length, arguments.steps)
        print(", ".join(f"{name} {value:.4g}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
