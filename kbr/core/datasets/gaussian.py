"""The posterior-mean task: jointly Gaussian pairs, another Gaussian prior, the exact posterior.

Ref: Fukumizu et al. 2013; Xu et al. 2022, section 5.1.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.datasets.drawing import normal
from kbr.core.inputs import check_sizes


@dataclass(frozen=True, eq=False)
class GaussianData:
    """Training pairs from P, samples of the prior Pi, conditioning points and the exact answer."""

    x_train: Float[Tensor, "*b n d"]
    z_train: Float[Tensor, "*b n d"]
    z_prior: Float[Tensor, "*b m d"]
    x_test: Float[Tensor, "*b q d"]
    mean: Float[Tensor, "*b q d"]
    cov: Float[Tensor, "*b d d"]
    latent_cov: Float[Tensor, "*b d d"]

    def ratio(self, z: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """The true density ratio pi/p.

        Math: N(z; 0, V/2) / N(z; 0, V) = 2^(d/2) exp(-z' V^-1 z / 2).
        """
        factor = torch.linalg.cholesky(self.latent_cov)
        white = torch.linalg.solve_triangular(factor, z.mT, upper=False)
        return 2 ** (z.shape[-1] / 2) * torch.exp(-0.5 * white.square().sum(-2))


@dataclass(frozen=True, kw_only=True)
class GaussianTask:
    """Math: (X, Z) ~ N((1, 0), V), V = A'A / (2d) + 2 I, A standard normal [2d, 2d], drawn anew for
    every data set; prior N(0, V_ZZ / 2); conditioning points from N(0, V_XX).
    """

    dim: int = 2
    n_train: int = 200
    n_prior: int = 200
    n_test: int = 200

    def __post_init__(self) -> None:
        check_sizes(**vars(self))

    def generate(self, generator: torch.Generator) -> GaussianData:
        """One data set in float64; every number comes from the generator."""
        d = self.dim
        a = normal((2 * d, 2 * d), generator)
        v = a.mT @ a / (2 * d) + 2 * torch.eye(2 * d, dtype=torch.float64)
        vxx, vxz, vzz = v[:d, :d], v[:d, d:], v[d:, d:]
        shift = torch.cat([torch.ones(d), torch.zeros(d)]).to(v)
        pairs = normal((self.n_train, 2 * d), generator) @ torch.linalg.cholesky(v).mT + shift
        z_prior = normal((self.n_prior, d), generator) @ torch.linalg.cholesky(vzz / 2).mT
        x_test = normal((self.n_test, d), generator) @ torch.linalg.cholesky(vxx).mT
        # Likelihood x | z ~ N(1 + H z, R); prior N(0, S): the textbook update.
        h = torch.linalg.solve(vzz, vxz.mT).mT
        r, s = vxx - h @ vxz.mT, vzz / 2
        gain = torch.linalg.solve(h @ s @ h.mT + r, h @ s).mT
        return GaussianData(
            x_train=pairs[:, :d],
            z_train=pairs[:, d:],
            z_prior=z_prior,
            x_test=x_test,
            mean=(x_test - 1) @ gain.mT,
            cov=s - gain @ h @ s,
            latent_cov=vzz,
        )

    def trials(self, seeds: list[int]) -> GaussianData:
        """Independent data sets along a leading dimension; seed k always gives data set k."""
        sets = [vars(self.generate(torch.Generator().manual_seed(seed))) for seed in seeds]
        return GaussianData(
            *(torch.stack(parts) for parts in zip(*map(dict.values, sets), strict=True))
        )
