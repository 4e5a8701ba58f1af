"""What a tuned filter leaves on the table: neighbouring settings averaged, and a linear readout.

Around the values that tuning chose lie twelve neighbours (bandwidths, lam and both other ridges, up
and down). All thirteen filters are cross-fitted: three blocks of the training sequence, each
filtered by operators of the rest. Their mean m_t is averaged, and a ridge regression of z_t - m_t
on (m_t, x_t, 1) over all cross-fitted steps corrects it. The test sequence is used for the table
alone. Prints MSE beside the tuned filter's, paired over seeds:

    python benchmarks/refine.py --n_train 300 --seeds 10
"""

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from scipy.stats import wilcoxon
from torch import Tensor

from kbr import KernelBayesFilter
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.filters.recipe import Recipe
from kbr.core.filters.run import run_filter
from kbr.core.filters.stored_filter import SETTINGS

FOLDS = 3
RIDGE = 3.0
TOLERANCE = 1e-9
BANDWIDTH, LAM, ETA = 1.4, 3.7, 3.0  # factors between neighbours
NEIGHBOURS = (  # exponents of the factors: bandwidth of z, of x, lam, eta and lam_transition
    (0, 0, 0, 0),
    *((-1, -1, 0, 0), (1, 1, 0, 0), (-1, 0, 0, 0), (1, 0, 0, 0), (0, -1, 0, 0), (0, 1, 0, 0)),
    *((0, 0, -1, 0), (0, 0, 1, 0), (0, 0, 0, -1), (0, 0, 0, 1), (-1, 0, 1, 1), (0, -1, 1, 1)),
)


@dataclass(frozen=True)
class Setting:
    """Hyper-parameters of one filter for every seed [b]."""

    scale_x: Tensor
    scale_z: Tensor
    lam: Tensor
    eta: Tensor
    lam_transition: Tensor


def neighbours(filt: KernelBayesFilter) -> list[Setting]:
    c = filt.choice
    return [
        Setting(
            c.scale_x * BANDWIDTH**x,
            c.scale_z * BANDWIDTH**z,
            c.lam * LAM**lam,
            c.eta * ETA**eta,
            c.lam_transition * ETA**eta,
        )
        for z, x, lam, eta in NEIGHBOURS
    ]


def means(recipe: Recipe, at: Setting, x: Tensor, z: Tensor, lengths: list[int], query: Tensor):
    """Filtered means [b t dz] of the sequences `query`, operators from x and z."""
    latents = recipe.latents(z, at.scale_z, TOLERANCE)
    update = recipe.update(x, at.scale_x, TOLERANCE, lam=float(at.lam.min()))
    ridges = {"eta": at.eta, "lam_transition": at.lam_transition}
    operators = recipe.operators(update, latents, z, lengths, **ridges)
    seen = update.observe(query).unsqueeze(-3)
    there = torch.ones(seen.shape[:-1], dtype=torch.bool)
    return run_filter(operators, seen, there, at.lam.unsqueeze(-1)).mean.squeeze(-3)


def cross_fitted(recipe: Recipe, at: Setting, x: Tensor, z: Tensor) -> Tensor:
    """Means of the whole training sequence, every block from operators of the others."""
    n = z.shape[-2]
    cuts = [round(k * n / FOLDS) for k in range(FOLDS + 1)]
    parts = []
    for start, stop in pairwise(cuts):
        rest = torch.cat([torch.arange(start), torch.arange(stop, n)])
        lengths = [length for length in (start, n - stop) if length]
        fit = (x[..., rest, :], z[..., rest, :], lengths)
        parts.append(means(recipe, at, *fit, x[..., start:stop, :]))
    return torch.cat(parts, -2)


def readout(mean: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """Coefficients [b 2 dz + 1, dz] of z - mean on (mean, x, 1)."""
    rows = design(mean, x)
    ridge = RIDGE * torch.eye(rows.shape[-1], dtype=rows.dtype)
    return torch.linalg.solve(rows.mT @ rows + ridge, rows.mT @ (z - mean))


def design(mean: Tensor, x: Tensor) -> Tensor:
    return torch.cat([mean, x, torch.ones_like(mean[..., :1])], -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n_train", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + given.seeds)
    made = [Oscillatory().generate(n_train=given.n_train, n_test=200, seed=s) for s in seeds]
    names = ("x_train", "z_train", "x_test", "z_test")
    x, z, x_test, z_test = (torch.stack([getattr(d, k) for d in made]).double() for k in names)
    started = time.process_time()
    filt = KernelBayesFilter().fit(x, z)
    tuned = time.process_time() - started
    recipe = Recipe(**{name: getattr(filt, name) for name in SETTINGS})
    around = neighbours(filt)
    inner = torch.stack([cross_fitted(recipe, at, x, z) for at in around])
    outer = torch.stack([means(recipe, at, x, z, [given.n_train], x_test) for at in around])
    seconds = (time.process_time() - started) / len(seeds)

    def error(mean: Tensor) -> Tensor:
        return (mean - z_test).square().sum(-1).mean(-1)

    def corrected(fit: Tensor, mean: Tensor) -> Tensor:
        return mean + design(mean, x_test) @ readout(fit, x, z)

    base = error(filt.filter(x_test).mean)
    table = {
        "averaged": error(outer.mean(0)),
        "readout": error(corrected(inner[0], outer[0])),
        "both": error(corrected(inner.mean(0), outer.mean(0))),
    }
    print(f"oscillatory, n = {given.n_train}, seeds {seeds[0]} .. {seeds[-1]}")
    print(f"tuned      {base.mean():.4f}   ({tuned / len(seeds):.1f} CPU s a seed)")
    for name, found in table.items():
        p = wilcoxon(found.numpy(), base.numpy()).pvalue
        change, wins = float(found.mean() / base.mean() - 1), int((found < base).sum())
        print(f"{name:<9}  {found.mean():.4f}   {change:+.1%}   better in {wins}   p = {p:.2g}")
    print(f"all of it  {seconds:.1f} CPU s a seed")


if __name__ == "__main__":
    main()
