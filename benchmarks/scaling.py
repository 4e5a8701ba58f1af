"""The kernel Bayes filter from a thousand to a million training points, on one machine.

    python benchmarks/scaling.py --largest 1000000 --seeds 5 --out docs/results

Set-up (everything `fit` does, hyper-parameters included), time of a step, peak memory and error,
beside a particle filter that knows the true model, on the same test sequences for every n. Every
fit has a process of its own. Times are CPU times on `--threads` threads, so that other work on the
machine hardly matters; peak memory is the operating system's for the whole process. Slopes are
those of time against n on logarithmic axes, from n = 10,000 on. Above `--many` points one training
set takes the place of all seeds. Writes scaling.csv and scaling.png.
"""

import argparse
import csv
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from kbr import KernelBayesFilter
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.filters.classical.particle import ParticleFilter
from kbr.core.filters.result import mean_squared_error

TASKS = {"rotation": Rotation(), "oscillatory": Oscillatory()}
SEQUENCE = 10_000  # longest training sequence
TEST, STEPS = 5, 200  # test sequences and their length
TIMED = 10  # steps of one sequence that are timed
FROM = 10_000  # slopes start here


def test_set(task: str) -> tuple[torch.Tensor, torch.Tensor]:
    return TASKS[task].sample(STEPS, torch.Generator().manual_seed(10**6), (TEST,))


def measure(task: str, n: int, seed: int) -> dict[str, float | int | str]:
    """One row; runs in a process of its own."""
    generator = torch.Generator().manual_seed(seed)
    length = min(n, SEQUENCE)
    x, z = TASKS[task].sample(length, generator, (n // length,))
    filt, started = KernelBayesFilter(), time.process_time()
    filt.fit(list(x.unbind()), list(z.unbind()))
    setup = time.process_time() - started
    x_test, z_test = test_set(task)
    filt.filter(x_test[0, :2])  # warms up
    started = time.process_time()
    filt.filter(x_test[0, :TIMED])
    step = (time.process_time() - started) / TIMED
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"set-up {setup:.1f} s, step {step:.4f} s, peak {peak:.2f} GB", file=sys.stderr)
    mse = float(mean_squared_error(filt.filter(x_test).mean, z_test).mean())
    row = {"task": task, "n": n, "seed": seed, "setup_seconds": setup, "step_seconds": step}
    choice = {name: float(getattr(filt.choice, name)) for name in ("scale_z", "lam", "eta")}
    return {**row, "peak_gb": peak, "mse": mse, **choice}


def particle_error(task: str) -> float:
    x, z = test_set(task)
    made = ParticleFilter(model=TASKS[task].state_space(), n_particles=3000).filter(x)
    return float(mean_squared_error(made.mean, z).mean())


def slope(rows: list[dict], name: str) -> float:
    """Least squares on logarithmic axes."""
    pairs = [(math.log(r["n"]), math.log(r[name])) for r in rows if r["n"] >= FROM]
    centre = [sum(axis) / len(pairs) for axis in zip(*pairs, strict=True)]
    above = sum((a - centre[0]) * (b - centre[1]) for a, b in pairs)
    below = sum((a - centre[0]) ** 2 for a, _ in pairs)
    return above / below if below > 0 else math.nan


def averaged(rows: list[dict]) -> list[dict]:
    """One row for each n: the mean over seeds, of memory the highest."""
    made = []
    for n in sorted({row["n"] for row in rows}):
        same = [row for row in rows if row["n"] == n]
        means = {k: sum(r[k] for r in same) / len(same) for k in ("setup_seconds", "step_seconds")}
        errors = {k: sum(r[k] for r in same) / len(same) for k in ("mse", "particle")}
        peak = max(row["peak_gb"] for row in same)
        made.append({"n": n, "seeds": len(same), **means, **errors, "peak_gb": peak})
    return made


def draw(tables: dict[str, list[dict]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = (
        ("setup_seconds", "set-up [CPU s]"),
        ("step_seconds", "step [CPU s]"),
        ("peak_gb", "peak memory [GB]"),
        ("mse", "mean squared error"),
    )
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    for axis, (name, label) in zip(axes, shown, strict=True):
        for (task, rows), colour in zip(tables.items(), ("#0072B2", "#D55E00"), strict=False):
            text = task
            if name.endswith("seconds"):
                text += f", slope {slope(rows, name):.2f}"
            n = [row["n"] for row in rows]
            axis.plot(n, [row[name] for row in rows], "o-", color=colour, label=text)
            if name == "mse":
                axis.plot(n, [row["particle"] for row in rows], ":", color=colour)
        axis.set(xscale="log", xlabel="n", title=label)
        axis.set_yscale("linear" if name == "mse" else "log")
        axis.legend(frameon=False, fontsize=8)
    axes[-1].set_title("mean squared error (dotted: particle filter)", fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--many", type=int, default=100_000, help="largest n for all seeds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("outputs/scaling"))
    parser.add_argument("--one", type=int, nargs=2, metavar=("N", "SEED"), help="one row as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one is not None:
        print(json.dumps(measure(options.tasks[0], *options.one)))
        return
    sizes = [10**k for k in range(3, 10) if 10**k <= options.largest]
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for task in options.tasks:
        particle = particle_error(task)
        for n in sizes:
            for seed in range(options.seeds if n <= options.many else 1):
                command = [sys.executable, __file__, "--one", str(n), str(seed), "--tasks", task]
                command += ["--threads", str(options.threads)]
                made = subprocess.run(command, check=True, capture_output=True, text=True)
                rows.append({**json.loads(made.stdout), "particle": particle})
                print(rows[-1], file=sys.stderr, flush=True)
                with (options.out / "scaling.csv").open("w", newline="") as handle:
                    writer = csv.DictWriter(handle, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)
    tables = {t: averaged([row for row in rows if row["task"] == t]) for t in options.tasks}
    for task, table in tables.items():
        print(f"{task}\n        n seeds  set-up (s)  step (ms)  peak (GB)      mse  / particle")
        for row in table:
            print(
                "{n:9d} {seeds:5d} {setup_seconds:11.1f} {0:10.2f} {peak_gb:10.2f} {mse:8.5f} "
                "{1:11.3f}".format(1e3 * row["step_seconds"], row["mse"] / row["particle"], **row)
            )
        slopes = ", ".join(f"{k} {slope(table, f'{k}_seconds'):.2f}" for k in ("setup", "step"))
        print(f"slopes from n = {FROM}: {slopes}")
    draw(tables, options.out / "scaling.png")


if __name__ == "__main__":
    main()
