"""Time of a filter step against two dense forms of the same algorithm, in one process.

    python benchmarks/filter_speed.py --sizes 300 900 3000 --out filter_speed.json

dense: as the authors write it, three n x n solves a step (ratio, update, transition).
lu:    both ridge operators formed once as dense matrices, one n x n solve a step.
kbr:   steps of `filter` on a whole sequence; step: those of `step`, one observation at a time.
All filter the same rotation data with the same hyper-parameters and the paper's rule; the
largest relative difference of the posterior means is part of the table. Times are CPU times on one
thread, so that other work on the machine hardly matters.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kbr import Gaussian, ImportanceWeightedRule, KernelBayesFilter
from kbr.core.datasets.dynamics import FilteringData, Rotation

LAM, ETA = 1e-2, 1e-5
Update = Callable[[Tensor, Tensor], Tensor]  # (prior weights, k(x_i, x_t)) to posterior weights


class Dense:
    """Algorithm 2 with n x n Gram matrices, one method for each form."""

    def __init__(self, data: FilteringData) -> None:
        self.z, self.n = data.z_train, len(data.z_train)
        kernel_x, kernel_z = (Gaussian().fit(points) for points in (data.x_train, data.z_train))
        self.g_x = kernel_x(data.x_train, data.x_train)
        self.g_z = kernel_z(data.z_train, data.z_train)
        self.queries = kernel_x(data.x_test, data.x_train)
        self.eye = torch.eye(self.n, dtype=torch.float64)

    def posterior(self, ratio: Tensor, query: Tensor) -> Tensor:
        root = ratio.clamp_min(0).sqrt()
        system = root.unsqueeze(-1) * self.g_x * root + self.n * LAM * self.eye
        return root * torch.linalg.solve(system, root * query)

    def authors(self, w: Tensor, query: Tensor) -> Tensor:
        """Ratio, update and transition, each by its own solve."""
        ratio_system = self.g_z + self.n * ETA * self.eye
        posterior = self.posterior(self.n * torch.linalg.solve(ratio_system, self.g_z @ w), query)
        self.ahead = torch.zeros_like(w)
        early = self.g_z[:-1, :-1] + (self.n - 1) * ETA * self.eye[1:, 1:]
        self.ahead[1:] = torch.linalg.solve(early, self.g_z[:-1] @ posterior)
        return posterior

    def prepare(self) -> None:
        """The operators of `precomputed`."""
        ratio_system = self.g_z + self.n * ETA * self.eye
        early = self.g_z[:-1, :-1] + (self.n - 1) * ETA * self.eye[1:, 1:]
        self.to_ratio = self.n * torch.linalg.solve(ratio_system, self.g_z)
        self.to_next = torch.zeros_like(self.g_z)
        self.to_next[1:] = torch.linalg.solve(early, self.g_z[:-1])

    def precomputed(self, w: Tensor, query: Tensor) -> Tensor:
        """One solve; ratio and transition are products."""
        posterior = self.posterior(self.to_ratio @ w, query)
        self.ahead = self.to_next @ posterior
        return posterior

    def run(self, update: Update, steps: int) -> tuple[Tensor, float]:
        """Posterior means of the first steps, and the median seconds of one."""
        w, means, seconds = self.z.new_full((self.n,), 1 / self.n), [], []
        for t in range(steps):
            start = time.process_time()
            means.append(update(w, self.queries[t]) @ self.z)
            seconds.append(time.process_time() - start)
            w = self.ahead
        return torch.stack(means), median(seconds)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def seconds_per_step(filt: KernelBayesFilter, x: Tensor, repeats: int) -> float:
    """Median over repeats, after one run to warm up, for all sequences of x together."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.process_time()
        filt.filter(x)
        seconds.append(time.process_time() - start)
    return median(seconds[1:]) / x.shape[-2]


def seconds_per_call(filt: KernelBayesFilter, x: Tensor, repeats: int) -> float:
    """The same of `step`, one observation at a time."""
    seconds = []
    for _ in range(repeats + 1):
        belief, start = filt.init(), time.process_time()
        for row in x:
            belief = filt.step(belief, row)
        seconds.append(time.process_time() - start)
    return median(seconds[1:]) / len(x)


def measure(n: int, *, repeats: int, budget: float) -> dict[str, float | str]:
    """One row of the table."""
    data = Rotation().generate(n_train=n, n_test=200, seed=0)
    many, _ = Rotation().sample(200, torch.Generator().manual_seed(1), (32,))
    rule = ImportanceWeightedRule(lam=LAM, normalize=False)
    filt = KernelBayesFilter(rule=rule, eta=ETA, scales=(1.0,), widths=(1.0,), standardize=False)
    filt.fit(data.x_train, data.z_train)
    one = seconds_per_step(filt, data.x_test, repeats)
    call = seconds_per_call(filt, data.x_test, repeats)
    each = seconds_per_step(filt, many, repeats) / len(many)
    form = Dense(data)
    _, dense = form.run(form.authors, 5)
    form.prepare()
    _, lu = form.run(form.precomputed, 4)
    steps = max(4, min(200, int(budget / lu)))
    exact, lu = form.run(form.precomputed, steps)
    gap = (filt.filter(data.x_test[:steps]).mean - exact).norm(dim=-1).max()
    return {
        "n": n,
        "engine": filt.operators.update.name,
        "dense_ms": 1e3 * dense,
        "lu_ms": 1e3 * lu,
        "kbr_ms": 1e3 * one,
        "kbr_step_ms": 1e3 * call,
        "kbr_32_ms": 1e3 * each,
        "over_dense": dense / one,
        "over_dense_step": dense / call,
        "over_lu": lu / one,
        "over_dense_32": dense / each,
        "difference": float(gap / exact.norm(dim=-1).max()),
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 900, 3000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=float, default=60, help="seconds for the exact means")
    parser.add_argument("--out", type=Path, help="a JSON file for the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "ms a step, one thread; each: per sequence with 32 together\n"
        "     n engine        dense       lu     kbr    step    each | dense/kbr  lu/kbr  "
        "dense/step  dense/each | difference (steps)"
    )
    rows = []
    for n in options.sizes:
        row = measure(n, repeats=options.repeats, budget=options.budget)
        rows.append(row)
        print(
            "{n:6d} {engine:10s} {dense_ms:8.1f} {lu_ms:8.1f} {kbr_ms:7.3f} {kbr_step_ms:7.3f} "
            "{kbr_32_ms:7.4f} | {over_dense:9.0f} {over_lu:7.0f} {over_dense_step:11.0f} "
            "{over_dense_32:11.0f} | {difference:.1e} "
            "({steps})".format(**row),
            flush=True,
        )
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
