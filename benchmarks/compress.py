"""What compressing a filter costs in accuracy and saves in size and time, as ratios.

    python benchmarks/compress.py --n 10000 --landmarks 500 --seeds 10

MSE is on a fresh test sequence. Times are CPU times of one thread, medians of alternating rounds.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter
from kbr.core.datasets.dynamics import FilteringData, Oscillatory, Rotation

ROUNDS = 9
DATA = {"rotation": Rotation(), "oscillatory": Oscillatory()}


def fitted(data: FilteringData, tune: int) -> KernelBayesFilter:
    """The filter on all pairs; lam and scale are tuned on the first `tune` of them."""
    few = KernelBayesFilter().fit(data.x_train[:tune], data.z_train[:tune])
    rule = ImportanceWeightedRule(lam=float(few.choice.lam))
    made = KernelBayesFilter(rule=rule, scales=(float(few.choice.scale_z),))
    return made.fit(data.x_train, data.z_train)


def walk(filt: KernelBayesFilter, x: torch.Tensor) -> float:
    """CPU seconds of a streaming step."""
    belief = filt.step(filt.init(), x[0])
    started = time.process_time()
    for row in x:
        belief = filt.step(belief, row)
    return (time.process_time() - started) / len(x)


def faster(filt: KernelBayesFilter, small: KernelBayesFilter, x: torch.Tensor) -> float:
    """Ratio of the steps' times, each the median of alternating rounds."""
    rounds = [(walk(filt, x), walk(small, x)) for _ in range(ROUNDS + 1)][1:]
    slow, fast = (sorted(times)[ROUNDS // 2] for times in zip(*rounds, strict=True))
    return slow / fast


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
        made = []
        for seed in range(options.seeds):
            data = DATA[name].generate(n_train=options.n, n_test=options.n_test, seed=seed)
            filt = fitted(data, options.tune)
            started = time.process_time()
            small = filt.compress(options.landmarks, x=data.x_test, z=data.z_test)
            spent = time.process_time() - started
            cost = small.compression
            assert cost is not None
            made.append(
                (cost.loss, size(filt) / size(small), faster(filt, small, data.x_test[:50]))
            )
            loss, file, step = made[-1]
            print(
                f"{name:12} {seed:4d}   {cost.mse_before:.4f} {loss:10.2%} {file:13.1f}x "
                f"{step:12.1f}x {spent:10.0f} s",
                flush=True,
            )
        loss, file, step = (sum(values) / len(made) for values in zip(*made, strict=True))
        print(f"{name:12} mean            {loss:10.2%} {file:13.1f}x {step:12.1f}x", flush=True)


if __name__ == "__main__":
    main()
