"""Streaming against the batch filter: time of a step, largest difference, memory over many steps.

    python benchmarks/streaming.py --sizes 300 900 3000 --steps 100000

Times are CPU times of one thread, the median of alternating rounds; a step leaves a belief,
whose moments are computed when asked for. Memory is what the process holds (Linux), after a
warm-up, in the middle and at the end of many steps; with --serve, a reader follows the live page.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import torch

from kbr import Belief, ImportanceWeightedRule, KernelBayesFilter
from kbr.app.live.view import View
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


def live_cost(filt: KernelBayesFilter, x: torch.Tensor) -> tuple[float, float]:
    """CPU seconds of a step with its moments, and of what the live page adds to it."""
    view = View(title="", units=filt.units, shape=tuple(filt.shape), dz=2, raw=False)
    belief, steps, shown = filt.init(), [], []
    for row in x:
        started = time.process_time()
        belief = filt.step(belief, row)
        _ = belief.mean, belief.cov
        stepped = time.process_time()
        view.step(belief, {}, 0.0)
        steps.append(stepped - started)
        shown.append(time.process_time() - stepped)
    return median(steps), median(shown)


def memory_of_command(
    filt: KernelBayesFilter, x: torch.Tensor, steps: int, *, serve: bool = False
) -> list[float]:
    """The same of kbr-filter, which reads a pipe and answers into another."""
    with tempfile.TemporaryDirectory() as folder:
        filt.save(Path(folder) / "filter.ckpt")
        command = [sys.executable, "-m", "kbr.app.streaming.command", f"run={folder}/filter.ckpt"]
        pipe = subprocess.PIPE
        lines = [f"{json.dumps(row)}\n" for row in x.tolist()]
        found = []
        command += ["serve=0"] if serve else []
        pipes = {"stdin": pipe, "stdout": pipe, "stderr": pipe if serve else None}
        with ExitStack() as stack, subprocess.Popen(command, text=True, bufsize=1, **pipes) as made:
            assert made.stdin is not None
            assert made.stdout is not None
            if serve:
                assert made.stderr is not None
                url = made.stderr.readline().split()[-1]
                events = stack.enter_context(urlopen(f"{url}events"))
                threading.Thread(target=deque, args=(events, 0), daemon=True).start()
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
        spent, more = live_cost(filt, data.x_test)
        print(f"a step {1e3 * spent:.3f} ms, of the live page {1e3 * more:.3f} ms more")
        served = partial(memory_of_command, serve=True)
        ways = {"step": memory, "kbr-filter": memory_of_command, "kbr-filter --serve": served}
        for name, measure in ways.items():
            found = measure(filt, data.x_test, options.steps)
            shown = ", ".join(f"{value:.1f}" for value in found)
            print(f"{name}, {options.steps} times: {shown} MB at the start, half way, at the end")


if __name__ == "__main__":
    main()
