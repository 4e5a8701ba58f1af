"""Streaming against the batch filter: time of a step, largest difference, memory over many steps.

    python benchmarks/streaming.py --sizes 300 900 3000 --steps 100000

Times are CPU times of one thread, the median of alternating rounds; a step leaves a belief,
whose moments are computed when asked for. Memory is what the process holds (Linux), after a
warm-up, in the middle and at the end of many steps.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from kbr import Belief, ImportanceWeightedRule, KernelBayesFilter
from kbr.core.datasets.dynamics import Rotation


def walk(filt: KernelBayesFilter, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Means of a stream, and the CPU seconds of a step."""
    belief, beliefs, started = filt.init(), [], time.process_time()
    for row in x:
        belief = filt.step(belief, row)
        beliefs.append(belief)
    spent = time.process_time() - started
    return torch.stack([b.mean for b in beliefs]), spent / len(x)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def resident(process: int | str = "self") -> float:
    """Megabytes of a process in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(filt: KernelBayesFilter, x: torch.Tensor, steps: int) -> list[float]:
    """Megabytes after a fiftieth, half and all of a stream's steps."""
    belief: Belief = filt.init()
    found = []
    for t in range(1, steps + 1):
        belief = filt.step(belief, x[t % len(x)])
        if t in (steps // 50, steps // 2, steps):
            found.append(resident())
    return found


def memory_of_command(filt: KernelBayesFilter, x: torch.Tensor, steps: int) -> list[float]:
    """The same of kbr-filter, which reads a pipe and answers into another."""
    with tempfile.TemporaryDirectory() as folder:
        filt.save(Path(folder) / "filter.ckpt")
        command = [sys.executable, "-m", "kbr.app.streaming.command", f"run={folder}/filter.ckpt"]
        pipe = subprocess.PIPE
        lines = [f"{json.dumps(row)}\n" for row in x.tolist()]
        found = []
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as made:
            assert made.stdin is not None
            assert made.stdout is not None
            for t in range(1, steps + 1):
                made.stdin.write(lines[t % len(lines)])
                assert made.stdout.readline()
                if t in (steps // 50, steps // 2, steps):
                    found.append(resident(made.pid))
            made.stdin.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 900, 3000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000, help="of the memory test; 0: none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("     n engine       batch ms   step ms   step / batch   difference")
    rule = ImportanceWeightedRule(lam=1e-2)
    for n in options.sizes:
        data = Rotation().generate(n_train=n, n_test=200, seed=0)
        filt = KernelBayesFilter(rule=rule, eta=1e-5, scales=(1.0,))
        filt.fit(data.x_train, data.z_train)
        batch, stream = [], []
        for _ in range(options.repeats + 1):
            started = time.process_time()
            whole = filt.filter(data.x_test).mean
            batch.append((time.process_time() - started) / 200)
            means, each = walk(filt, data.x_test)
            stream.append(each)
        one, many = median(stream[1:]), median(batch[1:])
        gap = float((means - whole).abs().max())
        print(
            f"{n:6d} {filt.operators.update.name:12} {1e3 * many:8.3f} {1e3 * one:9.3f} "
            f"{one / many:14.2f} {gap:12.1e}",
            flush=True,
        )
    if options.steps:
        data = Rotation().generate(n_train=100, n_test=1000, seed=0)
        filt = KernelBayesFilter(rule=rule, eta=1e-5, scales=(1.0,))
        filt.fit(data.x_train, data.z_train)
        for name, measure in {"step": memory, "kbr-filter": memory_of_command}.items():
            found = measure(filt, data.x_test, options.steps)
            shown = ", ".join(f"{value:.1f}" for value in found)
            print(f"{name}, {options.steps} times: {shown} MB at the start, half way, at the end")


if __name__ == "__main__":
    main()
