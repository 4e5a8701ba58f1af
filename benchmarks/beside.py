"""Times here and in another checkout of kbr, side by side.

    git worktree add /tmp/before <commit>
    python benchmarks/beside.py --against /tmp/before

fit        a filter with default settings, its error bars measured too;
filter     a step of `filter`, one sequence;
filter_32  the same of 32 sequences together, for each;
step       a step of `step`, as in a stream;
train      an epoch of a network of learned features, without what comes before and after training.

Each version runs in processes of its own, one thread, the same data, in turns, which of the two is
first changing from round to round. Times are CPU times, the median over rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent.parent
EPOCHS = (4, 24)  # two trainings: their difference is what so many epochs take


def measure(n: int, steps: int) -> dict[str, float]:
    """CPU milliseconds; means and covariances of a step are left unasked."""
    import torch

    from kbr import KernelBayesFilter
    from kbr.core.datasets.dynamics import Oscillatory

    torch.set_num_threads(1)
    warm = Oscillatory().generate(n_train=60, n_test=20, seed=1)
    KernelBayesFilter(scales=(1.0,)).fit(warm.x_train, warm.z_train).filter(warm.x_test)
    data = Oscillatory().generate(n_train=n, n_test=steps, seed=0)
    many, _ = Oscillatory().sample(steps, torch.Generator().manual_seed(1), (32,))
    filt = KernelBayesFilter()
    times = {"fit": seconds(lambda: filt.fit(data.x_train, data.z_train))}
    times["filter"] = least(lambda: filt.filter(data.x_test)) / steps
    times["filter_32"] = least(lambda: filt.filter(many), 3) / (32 * steps)
    each, belief = [], filt.init()
    for row in data.x_test:
        started = time.process_time()
        belief = filt.step(belief, row)
        each.append(time.process_time() - started)
    times["step"] = median(each)
    if n == 300:
        times["train"] = training()
    return {name: 1e3 * value for name, value in times.items()}


def training() -> float:
    """Seconds of an epoch on images."""
    import kbr._torchvision  # noqa: F401  (before lightning)
    from kbr.core.datasets.dsprites import DSprites
    from kbr.training import LearnedFilter

    data = DSprites().generate(n_train=300, n_test=1, seed=0)

    def trained(epochs: int) -> None:
        filt = LearnedFilter(epochs=epochs, val_every=1000)
        with TemporaryDirectory() as folder:
            trainer = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
            filt.fit(data.x_train, data.z_train, folder=Path(folder), trainer=trainer)

    trained(2)
    short, long = (seconds(lambda e=epochs: trained(e)) for epochs in EPOCHS)  # type: ignore[misc]
    return (long - short) / (EPOCHS[1] - EPOCHS[0])


def seconds(task: Callable[[], object]) -> float:
    started = time.process_time()
    task()
    return time.process_time() - started


def least(task: Callable[[], object], repeats: int = 7) -> float:
    return min(seconds(task) for _ in range(repeats))


def run(checkout: Path, n: int, steps: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", str(n), str(steps)]
    done = subprocess.run(
        command, env=environment, cwd=checkout, check=True, stdout=subprocess.PIPE, text=True
    )
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout of kbr")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 900, 3000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--measure", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(*options.measure)))
        return
    if options.against is None:
        parser.error("--against: name another checkout (git worktree add /tmp/before <commit>)")
    print("     n  what        here ms  before ms   ratio")
    for n in options.sizes:
        here, before = [], []
        for k in range(options.rounds):
            turns = [(HERE, here), (options.against, before)]
            for checkout, times in turns if k % 2 else turns[::-1]:
                times.append(run(checkout, n, options.steps))
        for name in here[0]:
            now, then = (median([one[name] for one in times]) for times in (here, before))
            print(f"{n:6d}  {name:10s} {now:9.3f}  {then:9.3f} {now / then:7.3f}", flush=True)


if __name__ == "__main__":
    main()
