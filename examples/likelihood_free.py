"""Inference without a likelihood, beside rejection sampling, on two posteriors that are known.

Both methods are given the same number of simulations. Rejection ABC keeps the share of them nearest
the observation; of eight shares the best one is taken for the mean and, again, for the variance, by
the very errors that are reported. Run with:

    python examples/likelihood_free.py
    python examples/likelihood_free.py --observations 40 --picture posterior.png
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kbr import SimulationPosterior, posterior_from_simulator

SHARES = (0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
Moments = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """A standard normal prior, a simulator x = f(z) + s(z) noise, and its exact posterior."""

    dim: int
    signal: Callable[[Tensor], Tensor]
    noise: Callable[[Tensor], Tensor]
    exact: Callable[[Tensor], Moments]

    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, self.dim, dtype=torch.float64, generator=generator)

    def simulator(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        def simulate(z: Tensor) -> Tensor:
            draws = torch.randn(z.shape, dtype=torch.float64, generator=generator)
            return self.signal(z) + self.noise(z) * draws

        return simulate


def linear(dim: int = 5, noise: float = 0.5) -> Problem:
    """x = A z + noise: the posterior is Gaussian."""
    seeded = torch.Generator().manual_seed(7)
    shape = torch.randn(dim, dim, dtype=torch.float64, generator=seeded) / dim**0.5
    a = torch.eye(dim, dtype=torch.float64) + shape

    def exact(x: Tensor) -> Moments:
        precision = torch.eye(dim, dtype=torch.float64) + a.mT @ a / noise**2
        cov = torch.linalg.inv(precision)
        return cov @ a.mT @ x / noise**2, cov

    return Problem(dim, lambda z: z @ a.mT, lambda z: torch.full_like(z, noise), exact)


def nonlinear(noise: float = 0.3) -> Problem:
    """x = (z_1 + z_2^2 / 2, z_2), with noise that grows with z_2: the posterior is on a grid."""

    def signal(z: Tensor) -> Tensor:
        return torch.stack([z[:, 0] + z[:, 1].square() / 2, z[:, 1]], -1)

    def spread(z: Tensor) -> Tensor:
        return noise * torch.exp(0.4 * z[:, 1:]).expand_as(z)

    axis = torch.linspace(-5, 5, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    mean, sd = signal(grid), spread(grid)
    prior = -0.5 * grid.square().sum(-1) - sd.log().sum(-1)

    def exact(x: Tensor) -> Moments:
        p = torch.softmax(prior - 0.5 * ((x - mean) / sd).square().sum(-1), 0)
        centre = p @ grid
        return centre, (grid - centre).mT @ (p.unsqueeze(-1) * (grid - centre))

    return Problem(2, signal, spread, exact)


PROBLEMS = {"linear": linear, "nonlinear": nonlinear}


def rejection(z: Tensor, x: Tensor, seen: Tensor, share: float) -> Moments:
    """Moments of the simulations nearest what was observed, every coordinate scaled."""
    near = ((x - seen) / x.std(0)).square().sum(-1).argsort()[: max(int(share * len(z)), 2)]
    return z[near].mean(0), torch.cov(z[near].mT)


def errors(found: Moments, exact: Moments) -> Tensor:
    """Squared error of the mean, in posterior variances, and of the variances, relative."""
    (mean, cov), (true_mean, true_cov) = found, exact
    variance = true_cov.diagonal()
    off_mean = (mean - true_mean).square().sum() / variance.sum()
    return torch.stack([off_mean, ((cov.diagonal() - variance) / variance).square().mean()])


def compare(problem: Problem, *, n: int, observations: int, rounds: int, seed: int) -> Tensor:
    """Root mean square errors [1 + shares, 2]: ours, then rejection with every share."""
    rows = []
    for number in range(observations):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        simulate = problem.simulator(generator)
        seen = simulate(problem.prior(1, generator))[0]
        exact = problem.exact(seen)
        post = posterior_from_simulator(
            simulate, seen, problem.prior, n=n, rounds=rounds, seed=number
        )
        z = problem.prior(n, generator)
        x = simulate(z)
        kept = [errors(rejection(z, x, seen, share), exact) for share in SHARES]
        rows.append(torch.stack([errors((post.mean, post.cov), exact), *kept]))
    return torch.stack(rows).mean(0).sqrt()


def picture(problem: Problem, n: int, seed: int, path: Path) -> None:
    """Prior draws, posterior draws and the exact two standard deviations, first two coordinates."""
    import matplotlib.pyplot as plt

    generator = torch.Generator().manual_seed(1000 * seed)
    simulate = problem.simulator(generator)
    seen = simulate(problem.prior(1, generator))[0]
    post: SimulationPosterior = posterior_from_simulator(simulate, seen, problem.prior, n=n)
    mean, cov = problem.exact(seen)
    angle = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()])
    ring = mean[:2, None] + 2 * torch.linalg.cholesky(cov[:2, :2]) @ circle
    figure, axes = plt.subplots(figsize=(5, 4.5), layout="constrained")
    axes.scatter(*problem.prior(n, generator)[:, :2].mT, s=4, color="0.8", label="prior")
    axes.scatter(*post.sample(300)[:, :2].mT, s=6, label="posterior found")
    axes.plot(*ring, color="C3", label="exact, 2 sd")
    axes.set(xlabel="z_1", ylabel="z_2")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", choices=[*PROBLEMS, "both"], default="both")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--observations", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = list(PROBLEMS) if given.problem == "both" else [given.problem]
    print(f"{given.simulations} simulations, {given.observations} observations, RMS errors")
    print(f"{'problem':<10} {'error of':<9} {'kbr':>7} {'rejection':>10} {'ratio':>6}")
    for name in names:
        problem = PROBLEMS[name]()
        table = compare(
            problem,
            n=given.simulations,
            observations=given.observations,
            rounds=given.rounds,
            seed=given.seed,
        )
        for column, what in enumerate(("mean", "variance")):
            ours, best = table[0, column], table[1:, column].min()
            print(f"{name:<10} {what:<9} {ours:7.3f} {best:10.3f} {ours / best:6.2f}")
    if given.picture:
        picture(PROBLEMS[names[-1]](), given.simulations, given.seed, given.picture)


if __name__ == "__main__":
    main()
