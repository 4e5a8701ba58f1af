"""What an observation tells of the latent by itself: kernel ridge regression, in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from kbr.core.errors import KbrError
from kbr.core.kernel_ridge import AMONG, FOLDS, KernelRidge, evenly
from kbr.core.kernels import Gaussian
from kbr.core.linalg import or_one

POOLS = (1, 2, 4, 8)  # pixels a side that are averaged into one
SMALLEST = 3  # pixels that the shorter side of a frame keeps
SCALES = (0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)  # bandwidths to try, in medians
MIDDLE = 0.5  # the one that pools are compared with
RIDGES = tuple(10 ** (k / 2) for k in range(-16, 1))  # to try, where targets have variance 1
RANK = 1000  # landmarks at most
FEWEST = 4  # sequences of which whole ones are left out

Rows = Float[Tensor, "n ..."]


@dataclass(frozen=True, eq=False)
class FrameRegression:
    """E[z | x] of observations x [n d], or of frames [n h w] or [n c h w], and how it was chosen.

    Math: y(x) = z_bar + beta'(1, psi(a)), see `KernelRidge`; a the standardised columns of x, or
          its frame in squares of `pool` pixels, standardised by channel: what is left of pixels'
          noise is 1 / pool^2 of its variance. Pool, bandwidth and ridge by closed-form errors of
          parts of the rows left out.
    """

    pool: int
    centre: Float[Tensor, "d"]
    spread: Float[Tensor, "d"]
    landmarks: Float[Tensor, "m d"]
    bandwidth: Float[Tensor, ""]
    offset: Float[Tensor, "k"]
    weights: Float[Tensor, "m k"]

    @classmethod
    def fit(
        cls, x: Rows, z: Float[Tensor, "n k"], lengths: Sequence[int] | None = None
    ) -> tuple["FrameRegression", Float[Tensor, "n k"]]:
        """The regression, and what it tells of each training row without the rows around it.

        Of four sequences or more, of these `lengths`, those of whole ones: rows of one sequence may
        err alike.
        """
        if len(x) < 2:
            raise KbrError(f"a regression needs at least 2 rows; got {len(x)}. Raise n_train.")
        some, few = evenly(x, AMONG), evenly(z.double(), AMONG)
        parts = parts_of([len(x)] if lengths is None else lengths)
        owner = torch.repeat_interleave(torch.tensor(parts, device="cpu"))
        rough = torch.bincount(evenly(owner, AMONG), minlength=len(parts)).tolist()
        tried = [(pool, _scaled(some, pool)[0]) for pool in _pools(x.shape[1:])]
        errors = [_Ridge.of(a, few, MIDDLE, rough).choose()[1] for _, a in tried]
        pool, a = tried[errors.index(min(errors))]
        choices = [(*_Ridge.of(a, few, scale, rough).choose(), scale) for scale in SCALES]
        ridge, _, scale = min(choices, key=lambda choice: choice[1])
        inputs, centre, spread = _scaled(x, pool)
        solved = _Ridge.of(inputs, z.double(), scale, parts)
        offset, weights = solved.solution(ridge)
        about = (solved.solver.landmarks, solved.solver.bandwidth, offset, weights)
        return cls(pool, centre, spread, *about), solved.told(ridge)

    def __call__(self, x: Rows) -> Float[Tensor, "n k"]:
        a = (pooled(x.double(), self.pool) - self.centre) / self.spread
        kernel = Gaussian(bandwidth=self.bandwidth).anchored(self.landmarks)
        return self.offset + kernel(a) @ self.weights

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        return dict(vars(self))


def pooled(x: Rows, pool: int) -> Float[Tensor, "n d"]:
    """Frames in squares of `pool` pixels, what is left at the edges averaged too; flat."""
    if pool > 1:
        planes = x.reshape(len(x), -1, *x.shape[-2:])
        x = functional.avg_pool2d(planes, pool, ceil_mode=True)
    return x.flatten(1)


def _pools(shape: Sequence[int]) -> list[int]:
    """Those to try for observations of this shape; columns are not averaged."""
    if len(shape) < 2:
        return [1]
    return [pool for pool in POOLS if pool == 1 or min(shape[-2:]) >= SMALLEST * pool]


def parts_of(lengths: Sequence[int]) -> list[int]:
    """How many rows are left out together: whole sequences, or even parts of all rows."""
    n, count = sum(lengths), len(lengths)
    if count >= FEWEST:
        ends = [k * count // min(count, FOLDS) for k in range(min(count, FOLDS) + 1)]
        return [sum(lengths[one:two]) for one, two in pairwise(ends)]
    folds = min(FOLDS, n)
    return [(k + 1) * n // folds - k * n // folds for k in range(folds)]


def _scaled(x: Rows, pool: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of the kernel, and what they were centred and divided by: columns, or channels."""
    rows = pooled(x.double(), pool)
    centre = rows.mean(0)
    away = rows - centre
    each = away if x.ndim == 2 else away.reshape(len(x), x.shape[1] if x.ndim > 3 else 1, -1)
    over = 0 if x.ndim == 2 else (0, 2)
    spread = or_one(each.square().mean(over).sqrt())
    if x.ndim > 2:
        spread = spread.repeat_interleave(each.shape[-1])
    return away / spread, centre, spread


@dataclass(frozen=True, eq=False)
class _Ridge:
    """The regression on training rows, and the errors it is chosen by."""

    target: Float[Tensor, "n k"]  # mean zero and variance one
    middle: Float[Tensor, "k"]  # their means and standard deviations before
    size: Float[Tensor, "k"]
    solver: KernelRidge
    parts: Sequence[int]  # rows that are left out together

    @classmethod
    def of(
        cls, a: Float[Tensor, "n d"], z: Float[Tensor, "n k"], scale: float, parts: Sequence[int]
    ) -> "_Ridge":
        middle, size = z.mean(0), or_one(z.std(0, correction=0))
        solver = KernelRidge.of(a, scale, rank=RANK)
        return cls((z - middle) / size, middle, size, solver, parts)

    def _errors(self, ridge: float) -> Float[Tensor, "n k"]:
        """Of parts of the rows left out, in the units of z."""
        return self.solver.left_out_parts(self.target, ridge, self.parts) * self.size

    def choose(self) -> tuple[float, float]:
        """The best ridge, and its error."""
        errors = [float(self._errors(ridge).square().sum(-1).mean()) for ridge in RIDGES]
        return RIDGES[errors.index(min(errors))], min(errors)

    def told(self, ridge: float) -> Float[Tensor, "n k"]:
        """The targets as regressions without their part of the rows tell them."""
        return self.middle + self.size * self.target - self._errors(ridge)

    def solution(self, ridge: float) -> tuple[Float[Tensor, "k"], Float[Tensor, "m k"]]:
        """The offset, and weights of the kernels with the landmarks."""
        beta = self.solver.solved(self.target, torch.full_like(self.size, ridge)) * self.size
        return self.middle + beta[0], self.solver.whiten @ beta[1:]
