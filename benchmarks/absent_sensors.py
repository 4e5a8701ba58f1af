"""Absent sensors that drop out of the update, against rows that one absent number makes missing.

    python benchmarks/absent_sensors.py --seeds 10 --root real
    python benchmarks/absent_sensors.py --seeds 10 --root real --model moving

robot     distances to four beacons, simulated (seeds 0, 1, ...), 600 rows to train, 400 to test;
Plaza1/2  the same of a real robot (docs/real_data.md), where each range counts for 6 seconds first,
          so that most rows are whole; without --root they are left out.

`--model` is the filter with sensors: the kernel filter, or points that move and are never begun
anew (`restart=0`). The filter of whole rows is always the kernel filter.

Each sensor is absent at random in 70 % of the rows, to train and to test. A filter of whole rows
could learn nothing from such data, so it is trained on the rows before anything was taken away.
Errors are the mean distance from the true place, and its mean square; `held` is the share of truths
in their 90 % regions.
"""

import argparse
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr import KernelBayesFilter, MovingFilter
from kbr.app.real.uwb_plaza import uwb_plaza

ABSENT = 0.7
BEACONS = torch.tensor([[2, 2], [-2, 2], [-2, -2], [2, -2]], dtype=torch.float64)
Part = tuple[Tensor, Tensor]
MODELS: dict[str, Callable[[], Any]] = {
    "iw": KernelBayesFilter,
    "moving": partial(MovingFilter, restart=0.0),
}


def robot(seed: int) -> tuple[Part, Part]:
    """Places on a ring of radius about 1, and distances with noise of .05."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    n, radius, radii = 1000, torch.ones((), dtype=torch.float64), []
    angle = (0.15 + 0.1 * normal(n)).cumsum(0) + 2 * math.pi * normal(1)
    for kick in 0.1 * normal(n):
        radius = 1 + 0.9 * (radius - 1) + kick
        radii.append(radius)
    z = torch.stack(radii).unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1)
    x = torch.cdist(z, BEACONS) + 0.05 * normal(n, 4)
    return (x[:600], z[:600]), (x[600:], z[600:])


def plaza(root: Path, site: str) -> tuple[Part, Part]:
    found = uwb_plaza(root, site=site, hold=6.0)

    def part(columns: dict[str, np.ndarray]) -> Part:
        x = [values for name, values in columns.items() if name.startswith("beacon")]
        z = [columns[f"position_{k}"] for k in (1, 2)]
        return torch.from_numpy(np.stack(x, 1)), torch.from_numpy(np.stack(z, 1))

    return part(dict(found.train[0])), part(dict(found.test[0]))


def thinned(x: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gone = torch.rand(x.shape, generator=generator, dtype=torch.float64) < ABSENT
    return torch.where(gone, torch.nan, x)


def compare(
    train: Part, test: Part, seed: int, model: str
) -> tuple[float, float, float, float, float]:
    """Mean distance and mean square with sensors, then of whole rows; the share held with them."""
    (x, z), (x_new, z_new) = train, (thinned(test[0], 10_000 + seed), test[1])
    whole = x.isfinite().all(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that are left out
        voided = KernelBayesFilter().fit(torch.where(whole.unsqueeze(-1), x, torch.nan), z)
    parted = MODELS[model]().fit(thinned(x, seed), z, sensors="each")
    numbers: list[float] = []
    for filt in (parted, voided):
        away = (filt.filter(x_new).mean - z_new).square().sum(-1)
        numbers += [float(away.sqrt().mean()), float(away.mean())]
    out = parted.filter(x_new)
    held = float(parted.credible_region(out).contains(z_new).double().mean())
    return numbers[0], numbers[1], numbers[2], numbers[3], held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--root", type=Path, help="the folder of the real recordings")
    parser.add_argument("--model", choices=MODELS, default="iw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("data    seed   distance  voided  ratio   square  voided  ratio   held", flush=True)
    tasks = [("robot", seed) for seed in range(options.seeds)]
    if options.root is not None:
        tasks += [(site, 0) for site in ("Plaza1", "Plaza2")]
    for name, seed in tasks:
        train, test = robot(seed) if name == "robot" else plaza(options.root, name)
        a, b, c, d, held = compare(train, test, seed, options.model)
        print(
            f"{name:7s} {seed:4d} {a:10.3f} {c:7.3f} {a / c:6.2f} {b:8.3f} {d:7.3f} {b / d:6.2f} "
            f"{held:6.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
