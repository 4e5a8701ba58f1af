"""What compressing a filter costs in accuracy and saves in size and time, as ratios.

    python benchmarks/compress.py --n 10000 --landmarks 500 --data rotation oscillatory

MSE is on a fresh test sequence. Times are CPU times of one thread.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter
from kbr.core.datasets.dynamics import FilteringData, Oscillatory, Rotation

DATA = {"rotation": Rotation(), "oscillatory": Oscillatory()}


def fitted(data: FilteringData, tune: int) -> KernelBayesFilter:
    """The filter on all pairs; lam and scale are tuned on the first `tune` of them."""
    few = KernelBayesFilter().fit(data.x_train[:tune], data.z_train[:tune])
    rule = ImportanceWeightedRule(lam=float(few.choice.lam))
    made = KernelBayesFilter(rule=rule, scales=(float(few.choice.scale_z),))
    return made.fit(data.x_train, data.z_train)


def seconds(filt: KernelBayesFilter, x: torch.Tensor) -> float:
    """CPU seconds of a streaming step."""
    belief = filt.init()
    for row in x[:3]:
        belief = filt.step(belief, row)
    started = time.process_time()
    for row in x:
        belief = filt.step(belief, row)
    return (time.process_time() - started) / len(x)


def size(filt: KernelBayesFilter) -> int:
    with tempfile.TemporaryDirectory() as folder:
        filt.save(Path(folder) / "filter.ckpt")
        return (Path(folder) / "filter.ckpt").stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--n-test", type=int, default=2000)
    parser.add_argument("--tune", type=int, default=900)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("data         seed      mse   higher by   file smaller   step faster   compressing")
    for name in options.data:
        for seed in range(options.seeds):
            data = DATA[name].generate(n_train=options.n, n_test=options.n_test, seed=seed)
            filt = fitted(data, options.tune)
            started = time.process_time()
            small = filt.compress(options.landmarks, x=data.x_test, z=data.z_test)
            spent = time.process_time() - started
            cost = small.compression
            assert cost is not None
            x = data.x_test[:50]
            print(
                f"{name:12} {seed:4d}   {cost.mse_before:.4f} {cost.loss:10.2%} "
                f"{size(filt) / size(small):13.1f}x {seconds(filt, x) / seconds(small, x):12.1f}x "
                f"{spent:10.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
