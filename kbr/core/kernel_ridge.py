"""Ridge regression on kernel features, every ridge for a product, errors of rows left out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from kbr.core.features import PivotedCholesky
from kbr.core.kernels import Gaussian

TOLERANCE = 1e-10  # of the landmarks' factor
AMONG = 1500  # evenly spaced rows among which landmarks are found
TOGETHER = 50  # rows at most of a block that is left out
FOLDS = 10  # times that some are left out: at least so many blocks, or at most so many parts


@dataclass(frozen=True, eq=False)
class KernelRidge:
    """Features of training rows, rotated so that every ridge costs a product.

    Math: F = (1, psi(a)), or (1, a, psi(a)) with a linear part, psi the features of a Gaussian
          kernel on landmarks by pivoted Cholesky;  F'F / n = U diag(e) U';
          fit = F U (e + lam)^-1 U'F't / n = H t.
    Ref:  Kanagawa et al. 2018 (ridge regression and conditional mean embeddings).

    Targets are to have mean zero: the ridge shrinks offsets too.
    """

    bandwidth: Float[Tensor, ""]
    landmarks: Float[Tensor, "m d"]
    whiten: Float[Tensor, "m m"]
    values: Float[Tensor, "p"]
    vectors: Float[Tensor, "p p"]
    rows: Float[Tensor, "n p"]  # F U

    @classmethod
    def of(
        cls, a: Float[Tensor, "n d"], scale: float, *, rank: int, linear: bool = False
    ) -> "KernelRidge":
        """With a bandwidth of `scale` medians, and at most `rank` landmarks."""
        some = evenly(a, AMONG)
        kernel = Gaussian(scale=scale).fit(some)
        pivoted = PivotedCholesky(kernel=kernel, tolerance=TOLERANCE, max_rank=rank)
        landmarks, whiten, _ = pivoted.landmarks(kernel, some)
        psi = kernel(a, landmarks) @ whiten
        features = torch.cat([torch.ones_like(a[:, :1]), *([a] if linear else []), psi], -1)
        values, vectors = torch.linalg.eigh(features.mT @ features / len(a))
        width = torch.as_tensor(kernel.bandwidth, dtype=a.dtype, device=a.device)
        return cls(width, landmarks, whiten, values.clamp_min(0), vectors, features @ vectors)

    def left_out(
        self, target: Float[Tensor, "n k"], ridge: float, together: int = TOGETHER
    ) -> Float[Tensor, "n k"]:
        """Errors at blocks of rows, by the fits without them."""
        return errors_left_out(*self._fit(target, ridge), block_of(len(target), together))

    def _fit(self, target: Float[Tensor, "n k"], ridge: float) -> tuple[Tensor, Tensor]:
        """A root of H, and what the fit misses."""
        n, over = len(target), 1 / (self.values + ridge)
        told = self.rows @ (over.unsqueeze(-1) * (self.rows.mT @ target)) / n
        return self.rows * (over / n).sqrt(), target - told

    def left_out_parts(
        self, target: Float[Tensor, "n k"], ridge: float, parts: Sequence[int]
    ) -> Float[Tensor, "n k"]:
        """The same for parts of so many rows each, few and long."""
        tables = (torch.split(table, list(parts)) for table in self._fit(target, ridge))
        pairs = zip(*tables, strict=True)
        return torch.cat([_without(one[None], two[None]) for one, two in pairs])

    def solved(
        self, target: Float[Tensor, "n k"], ridges: Float[Tensor, "k"]
    ) -> Float[Tensor, "p k"]:
        """Coefficients of the features, with a ridge for each target."""
        over = 1 / (self.values.unsqueeze(-1) + ridges)
        solved: Tensor = self.vectors @ (over * (self.rows.mT @ target) / len(target))
        return solved


def block_of(n: int, together: int = TOGETHER) -> int:
    """How many of n rows are left out at once: errors of rows that follow each other are alike."""
    return max(min(together, n // FOLDS), 1)


def errors_left_out(
    rooted: Float[Tensor, "n p"], missed: Float[Tensor, "n k"], size: int
) -> Float[Tensor, "n k"]:
    """Errors of blocks of `size` rows by fits without them.

    Math: (I - H_bb)^-1 (t_b - fit_b), with fit = H t and H = `rooted` rooted', `missed` = t - fit.
    """
    even = len(missed) - len(missed) % size
    blocks = [part[:even].reshape(-1, size, part.shape[-1]) for part in (rooted, missed)]
    found = [_without(*blocks)]
    if even < len(missed):
        found.append(_without(rooted[None, even:], missed[None, even:]))
    return torch.cat(found)


def _without(
    rooted: Float[Tensor, "b r p"], missed: Float[Tensor, "b r k"]
) -> Float[Tensor, "m k"]:
    """Math: (I - R R')^-1 m = m + R (I - R'R)^-1 R'm, the second of the size of the features."""
    long = rooted.shape[-2] > max(rooted.shape[-1], TOGETHER)
    own = rooted.mT @ rooted if long else rooted @ rooted.mT
    left = torch.eye(own.shape[-1], dtype=own.dtype, device=own.device) * (1 + 1e-12) - own
    solved: Tensor
    if long:
        solved = missed + rooted @ torch.linalg.solve(left, rooted.mT @ missed)
    else:
        solved = torch.linalg.solve(left, missed)
    return solved.flatten(0, 1)


def evenly(rows: Shaped[Tensor, "n ..."], most: int) -> Shaped[Tensor, "m ..."]:
    """At most so many rows, evenly spaced."""
    if len(rows) <= most:
        return rows
    some = torch.linspace(0, len(rows) - 1, most, device=rows.device).round().long()
    return rows[some]
