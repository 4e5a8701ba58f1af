"""The kernel Bayes filter on ten million pairs in files, on one worker and on two.

    python benchmarks/ten_million.py --out docs/results

Writes the files to a temporary folder, sequence by sequence, and fits to them: CPU seconds, peak
memory of the whole process, time of a streaming step, and error on 5 test sequences of 200 steps,
beside the filter of all of the last `--full` pairs (`fit`) and a particle filter that knows the
true model. Every fit has a process of its own with one thread. With `--workers`, the same fit on so
many processes: elapsed seconds of both, one after the other, and how much the answers differ; such
a comparison means something on an idle machine alone. Writes ten_million.csv.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scaling import SEQUENCE, TASKS, particle_error, test_set

from kbr import KernelBayesFilter
from kbr.core.filters.kernel.from_files.pairs import FilePairs
from kbr.core.filters.result import mean_squared_error

TOGETHER = 100  # sequences that are drawn at once
STREAMED = 200  # steps that are timed


def write(task: str, n: int, seed: int, folder: Path) -> None:
    """Sequences of 10,000 steps, each a pair of float32 files."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, n // SEQUENCE, TOGETHER):
        count = min(TOGETHER, n // SEQUENCE - start)
        x, z = TASKS[task].sample(SEQUENCE, generator, (count,))
        for k in range(count):
            np.save(folder / f"x_{start + k:05}.npy", x[k].numpy().astype(np.float32))
            np.save(folder / f"z_{start + k:05}.npy", z[k].numpy().astype(np.float32))


def used() -> float:
    """CPU seconds of this process and of those it started."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))


def measure(task: str, folder: Path, landmarks: int, workers: int, full: int) -> dict:
    """One row; runs in a process of its own. With `full`, that many of the last pairs in memory."""
    filt, began, spent = KernelBayesFilter(), time.perf_counter(), used()
    if full:
        pairs = FilePairs.of(folder)
        spans = [(start, start + SEQUENCE) for start in range(pairs.n - full, pairs.n, SEQUENCE)]
        filt.fit(*([read(*span) for span in spans] for read in (pairs.x, pairs.z)))
    else:
        filt.fit_files(folder, n_landmarks=landmarks, workers=workers)
    elapsed, spent = time.perf_counter() - began, used() - spent
    x, z = test_set(task)
    belief, step = filt.step(filt.init(), x[0, 0]), time.process_time()
    for row in x[0, : 10 if full else STREAMED]:
        belief = filt.step(belief, row)
    step = (time.process_time() - step) / (10 if full else STREAMED)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    mean = filt.filter(x).mean
    row = {"fit_seconds": spent, "elapsed": elapsed, "step_seconds": step, "peak_gb": peak}
    row |= {name: float(getattr(filt.choice, name)) for name in ("scale_z", "lam", "eta")}
    mse = float(mean_squared_error(mean, z).mean())
    return {**row, "points": filt.operators.n, "mse": mse, "mean": mean.flatten().tolist()}


def run(task: str, folder: Path, options: argparse.Namespace, workers: int, full: int) -> dict:
    command = [sys.executable, __file__, "--one", str(folder), str(workers), str(full)]
    command += ["--tasks", task, "--landmarks", str(options.landmarks)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000_000)
    parser.add_argument("--full", type=int, default=1_000_000, help="of the full filter; 0: none")
    parser.add_argument("--landmarks", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("outputs/scaling"))
    parser.add_argument("--one", nargs=3, metavar=("FOLDER", "WORKERS", "FULL"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one is not None:
        folder, workers, full = options.one
        task = options.tasks[0]
        print(json.dumps(measure(task, Path(folder), options.landmarks, int(workers), int(full))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for task in options.tasks:
        particle = particle_error(task)
        with tempfile.TemporaryDirectory() as name:
            write(task, options.n, options.seed, Path(name))
            fits = [(workers, 0) for workers in options.workers]
            fits += [(1, options.full)] if options.full else []
            answers = []
            for workers, full in fits:
                row = run(task, Path(name), options, workers, full)
                answers.append(np.array(row.pop("mean")))
                about = {"task": task, "n": full or options.n, "seed": options.seed}
                about |= {"kind": "fit" if full else "fit_files", "workers": workers}
                rows.append({**about, **row, "particle": particle})
                print(rows[-1], file=sys.stderr, flush=True)
                with (options.out / "ten_million.csv").open("w", newline="") as handle:
                    writer = csv.DictWriter(handle, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)
        mine = [row for row in rows if row["task"] == task]
        print(f"{task}\nkind                n workers fit (CPU s)  elapsed  step (ms)   GB     mse")
        for row in mine:
            print(
                "{kind:9} {n:11,} {workers:6} {fit_seconds:11.0f} {elapsed:9.0f} {0:9.2f} "
                "{peak_gb:6.2f} {mse:8.5f}".format(1e3 * row["step_seconds"], **row)
            )
        first = mine[0]
        print(f"mse over the particle filter's: {first['mse'] / particle:.4f}")
        for row, answer in list(zip(mine, answers, strict=True))[1:]:
            if row["kind"] == "fit":
                print(f"mse over that of the full filter: {first['mse'] / row['mse']:.4f}")
                continue
            apart, faster = np.abs(answer - answers[0]).max(), first["elapsed"] / row["elapsed"]
            print(f"{row['workers']} workers: {faster:.2f} times faster, answers {apart:.0e} apart")


if __name__ == "__main__":
    main()
