"""Streaming against the batch filter: time of a step, largest difference, memory over many steps.

    python benchmarks/streaming.py --sizes 300 900 3000 --steps 100000

Times are CPU times of one thread, the median of alternating rounds; a step leaves a belief,
whose moments are computed when asked for. Memory is the growth of the process's
peak after a warm-up.
"""

import argparse
import resource
import time

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


def peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 900, 3000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000, help="0: no memory test")
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
        belief: Belief = filt.fit(data.x_train, data.z_train).init()
        before = 0.0
        for t in range(options.steps):
            belief = filt.step(belief, data.x_test[t % 1000])
            before = peak() if t == options.steps // 50 else before
        print(f"{options.steps} steps: peak memory grew by {peak() - before:.1f} MB")


if __name__ == "__main__":
    main()
