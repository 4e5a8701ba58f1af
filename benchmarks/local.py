"""The local engine: thirty real columns, a chaotic attractor, and a dense filter beside it.

    python benchmarks/local.py --root REAL      # with the recording rtt_canteen (docs/real_data.md)
    python benchmarks/local.py --n 20000        # the attractor alone

Times are CPU seconds of one thread. `fit` is with all settings searched and error bars measured; a
step is one call of `filt.step`. Settings are chosen on training rows alone.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter
from kbr.app.real.rtt_canteen import rtt_canteen

STEPS = 200  # that are timed


def measured(filt: KernelBayesFilter, x: Any, z: Any, tests: list[tuple[Any, Any]]) -> dict:
    """Figures of a filter fitted to x and z, on the test sequences."""
    started = time.process_time()
    filt.fit(x, z)
    figures: dict[str, Any] = {"fit s": time.process_time() - started}
    errors, held, evidence = [], [], []
    for seen, truth in tests:
        result, exact = filt.filter(seen), torch.as_tensor(truth)
        errors.append((result.mean - exact).square().sum(-1))
        held.append(filt.credible_region(result).contains(exact).double())
        evidence.append(result.evidence.double())
    error = torch.cat(errors)
    seen = tests[0][0]
    belief = filt.step(filt.init(), seen[0])
    started = time.process_time()
    for row in seen[1 : STEPS + 1]:
        belief = filt.step(belief, row)
    spent = time.process_time() - started
    return figures | {
        "step ms": 1000 * spent / len(seen[1 : STEPS + 1]),
        "mse": float(error.mean()),
        "error": float(error.sqrt().mean()),
        "coverage": float(torch.cat(held).mean()),
        "evidence": float(torch.cat(evidence).mean()),
        "filter": repr(filt),
    }


def canteen(folder: str | Path) -> dict:
    """Positions of a phone, from walks 1 to 6 to walks 7 and 9."""
    recording = rtt_canteen(folder).recording
    assert recording.ids is not None
    rows = np.split(np.arange(len(recording)), np.flatnonzero(np.diff(recording.sequence)) + 1)
    test = [str(recording.ids[some[0]]).startswith("test/") for some in rows]
    pairs = [(np.asarray(recording.x[some]), np.asarray(recording.z[some])) for some in rows]
    train = [pair for pair, held in zip(pairs, test, strict=True) if not held]
    tests = [pair for pair, held in zip(pairs, test, strict=True) if held]
    filt = KernelBayesFilter()
    figures = measured(filt, [x for x, _ in train], [z for _, z in train], tests)
    return figures | smoothed(filt, *tests[-1])


def smoothed(filt: KernelBayesFilter, x: Any, z: Any) -> dict:
    """How long error bars of smoothing take to measure, and figures of one smoothed sequence."""
    started = time.process_time()
    assert filt.smoothing_calibration is not None
    spent, result, exact = time.process_time() - started, filt.smooth(x), torch.as_tensor(z)
    return {
        "smoothing s": spent,
        "smoothed mse": float((result.mean - exact).square().sum(-1).mean()),
        "smoothed coverage": float(filt.credible_region(result).contains(exact).double().mean()),
    }


def lorenz(n: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the Lorenz attractor in steps of .02 with noise, and observations of them.

    Math: z <- F(z) z + N(0, .1 I), F the exponential of A(z) .02 to fifth order; x = z + noise.
    """
    rng, z, path = np.random.default_rng(seed), np.ones(3), []
    for _ in range(n):
        a = 0.02 * np.array([[-10, 10, 0], [28 - z[2], -1, 0], [z[1], 0, -8 / 3]])
        power, transition = np.eye(3), np.eye(3)
        for j in range(1, 6):
            power = power @ a / j
            transition = transition + power
        z = transition @ z + math.sqrt(0.1) * rng.normal(size=3)
        path.append(z)
    latents = np.array(path)
    return latents + noise * rng.normal(size=latents.shape), latents


def agreement(n: int = 2000, steps: int = 100) -> dict:
    """How far means are from those of the dense filter, in its posterior standard deviations."""
    x, z = lorenz(n + steps, seed=0)
    rule = ImportanceWeightedRule(lam=0.01, floor=0.1)
    settings: dict[str, Any] = {"rule": rule, "scales": (0.25,), "widths": (1.0,), "eta": 1e-6}
    settings["correction"] = None
    dense, local = (
        KernelBayesFilter(engine=engine, **settings).fit(x[:n], z[:n]).filter(x[n:])
        for engine in ("active_set", "local")
    )
    spread = dense.raw_cov.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt()
    away = (dense.mean - local.mean).norm(dim=-1) / spread
    return {"median": float(away.median()), "largest": float(away.max())}


def show(name: str, figures: dict) -> None:
    text = (f"{k} {v:.4g}" if isinstance(v, float) else str(v) for k, v in figures.items())
    print(f"{name}: {', '.join(text)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", help="folder of the real recordings")
    parser.add_argument("--n", type=int, default=20_000, help="training rows on the attractor")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    show("against the dense filter, n = 2000", agreement())
    x, z = lorenz(given.n + 1000, given.seed)
    test = [(x[given.n :], z[given.n :])]
    figures = measured(KernelBayesFilter(), x[: given.n], z[: given.n], test)
    show(f"attractor, n = {given.n}", figures)
    if given.root:
        show("rtt_canteen", canteen(given.root))


if __name__ == "__main__":
    main()
