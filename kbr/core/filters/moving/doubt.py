"""How far a regression may be off where its training rows were not."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

FEW = 32  # rows of a cloud that are asked; the others answer as the nearest of these


@dataclass(frozen=True, eq=False)
class Doubt:
    """The variance of a ridge regression's function, beside that of its errors.

    Math: Var f(a) = tau^2 (1 - |psi(a)|^2 + lam phi(a)'(F'F / n + lam I)^-1 phi(a)): of a Gaussian
          process of covariance tau^2 (1 + a'b + k(a, b)) given the training rows, phi = (1, a,
          psi), psi the features of k on its landmarks; tau^2 = t'(F F' + n lam I)^-1 t / n is the
          likeliest. Near training rows it is small; far away it is the variance before any row.
    Ref:  Rasmussen and Williams 2006, equations 2.26 and 8.14.

    rotation   from (1, a, bells) to rows v in which F'F / n is diagonal;
    shares     tau^2 lam / (e_j + lam) of each column of v, for each target;
    amplitude  tau^2.
    """

    rotation: Float[Tensor, "c p"]
    shares: Float[Tensor, "p k"]
    amplitude: Float[Tensor, "k"]

    def __call__(
        self, a: Float[Tensor, "*s d"], bells: Float[Tensor, "*s m"]
    ) -> Float[Tensor, "*s k"]:
        """Variances at standardised inputs, whose kernels with the landmarks are `bells`."""
        rows = torch.cat([torch.ones_like(a[..., :1]), a, bells], -1) @ self.rotation
        squares = rows.square()
        known = squares.sum(-1) - a.square().sum(-1) - 1
        new = (1 - known).clamp(0, 1).unsqueeze(-1)
        return new * self.amplitude + squares @ self.shares

    def of_cloud(
        self, a: Float[Tensor, "*s m d"], bells: Float[Tensor, "*s m l"]
    ) -> Float[Tensor, "*s m k"]:
        """The same for the points of clouds, of which FEW are asked."""
        count = a.shape[-2]
        if count <= FEW:
            return self(a, bells)
        some = torch.arange(FEW, device=a.device) * count // FEW
        asked = a.index_select(-2, some)
        told = self(asked, bells.index_select(-2, some))
        nearest = torch.cdist(a, asked).argmin(-1, keepdim=True)
        return told.gather(-2, nearest.expand(*nearest.shape[:-1], told.shape[-1]))

    def to(self, device: str | torch.device) -> "Doubt":
        return replace(self, **{name: part.to(device) for name, part in vars(self).items()})
