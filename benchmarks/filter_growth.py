"""Time of a filter step against the number of training points: linear, as the rank stays put.

    python benchmarks/filter_growth.py --sizes 1000 10000 100000

Times are CPU times on one thread, so that other work on the machine hardly matters.
"""

import argparse
import time

import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter
from kbr.core.datasets.dynamics import Rotation


def measure(n: int, *, steps: int, repeats: int) -> tuple[float, float, KernelBayesFilter]:
    """Seconds to fit, median seconds of a step over repeats, and the filter."""
    data = Rotation().generate(n_train=n, n_test=steps, seed=0)
    filt = KernelBayesFilter(
        rule=ImportanceWeightedRule(lam=1e-2), eta=1e-5, scales=(1.0,), widths=(2.0,)
    )
    start = time.process_time()
    filt.fit(data.x_train, data.z_train)
    fit, seconds = time.process_time() - start, []
    for _ in range(repeats + 1):  # the first one warms up
        start = time.process_time()
        filt.filter(data.x_test)
        seconds.append((time.process_time() - start) / steps)
    return fit, sorted(seconds[1:])[repeats // 2], filt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("      n  fit (s)  step (ms)  time / previous  n / previous")
    before: tuple[int, float] | None = None
    for n in options.sizes:
        fit, step, filt = measure(n, steps=options.steps, repeats=options.repeats)
        growth = f"{step / before[1]:15.1f}  {n / before[0]:12.0f}" if before else ""
        print(f"{n:7d} {fit:8.2f} {1e3 * step:10.3f}  {growth}  {filt!r}", flush=True)
        before = n, step


if __name__ == "__main__":
    main()
