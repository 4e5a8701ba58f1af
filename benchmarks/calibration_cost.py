"""What calibration costs: time of `fit` and of `step`, here and in another checkout of kbr.

    git worktree add /tmp/before ae4c1ec
    python benchmarks/calibration_cost.py --against /tmp/before

Each version runs in processes of its own, one thread, the same data, in turns. Times are CPU
times, the median over rounds. A filter's settings are the defaults, tuned on its data.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def measure(n: int, steps: int) -> dict[str, float]:
    """CPU seconds of a fit, and of a step with its mean and covariance left unasked."""
    import torch

    from kbr import KernelBayesFilter
    from kbr.core.datasets.dynamics import Oscillatory

    torch.set_num_threads(1)
    warm = Oscillatory().generate(n_train=60, n_test=20, seed=1)
    KernelBayesFilter(scales=(1.0,)).fit(warm.x_train, warm.z_train).filter(warm.x_test)
    data = Oscillatory().generate(n_train=n, n_test=steps, seed=0)
    started = time.process_time()
    filt = KernelBayesFilter().fit(data.x_train, data.z_train)
    fit = time.process_time() - started
    each = []
    belief = filt.init()
    for row in data.x_test:
        started = time.process_time()
        belief = filt.step(belief, row)
        each.append(time.process_time() - started)
    return {"fit": fit, "step": sorted(each)[len(each) // 2]}


def run(checkout: Path, n: int, steps: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", str(n), str(steps)]
    made = subprocess.run(
        command, env=environment, cwd=checkout, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
    return found


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout of kbr")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 900, 3000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--measure", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(*options.measure)))
        return
    if options.against is None:
        parser.error("--against: name another checkout (git worktree add /tmp/before <commit>)")
    print("     n   fit s  before   ratio   step ms  before   ratio")
    for n in options.sizes:
        found: list[tuple[dict[str, float], dict[str, float]]] = [
            (run(HERE, n, options.steps), run(options.against, n, options.steps))
            for _ in range(options.rounds)
        ]
        fit, step = (
            [median([pair[k][name] for pair in found]) for k in (0, 1)] for name in ("fit", "step")
        )
        print(
            f"{n:6d} {fit[0]:7.2f} {fit[1]:7.2f} {fit[0] / fit[1]:7.2f} "
            f"{1e3 * step[0]:9.3f} {1e3 * step[1]:7.3f} {step[0] / step[1]:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
