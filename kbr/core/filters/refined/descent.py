"""Hyper-parameters of a kernel Bayes filter by gradient descent through the unrolled filter.

Tuning looks at a grid, with one bandwidth scale for all coordinates. From what it chose, Adam moves
every coordinate's bandwidth and the three ridges, on blocks of the training sequence that operators
of the other blocks filter. The validation block says when to stop; test data are never seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Features, PivotedCholesky, take_rows
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choosing.validation import (
    FOLDS,
    data_outside,
    squared_errors,
    validation_block,
)
from kbr.core.filters.kernel.engine import LowRank
from kbr.core.filters.kernel.engines.large import is_large
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.operators import dense_operators
from kbr.core.filters.kernel.settings import Settings
from kbr.core.filters.kernel.storing.storage import FittedData
from kbr.core.kernels import FEW_COORDINATES, Kernel, Linear
from kbr.core.linalg import pivoted_cholesky, ridge_cholesky
from kbr.core.per_coordinate import PerCoordinate

RANK = 48  # landmarks of x and of z while descending; the result is fitted without them
JITTER = 1e-6  # on the landmarks' Gram matrix
UNROLLED = 150  # longest block, in steps


@dataclass(frozen=True, eq=False)
class Values:
    """Logarithms of what is learned, for each data set; a bandwidth for each coordinate."""

    width_x: Float[Tensor, "*b dx"]
    width_z: Float[Tensor, "*b dz"]
    lam: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam_transition: Float[Tensor, "*b"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Training data with fixed landmarks: the filter's error can be differentiated."""

    settings: Settings
    data: FittedData
    kernels: tuple[Kernel, Kernel]
    start: Values
    landmarks: tuple[Tensor, Tensor]

    def values(self, moved: Sequence[Tensor]) -> Values:
        """The start times exp(moved): a factor for each coordinate and ridge."""
        begin = vars(self.start).values()
        return Values(*(value + step for value, step in zip(begin, moved, strict=True)))

    def error(self, at: Values, block: range) -> Float[Tensor, "*b"]:
        """Squared error of filtering the block with operators of the rows outside it.

        Math: psi(x) = L^-1 k(P, x),  L L' = K_PP + jitter I, with the landmarks P fixed.
        """
        rest = self.data.outside(block)
        operators = dense_operators(
            self.settings.rule,
            LowRank(self._features(0, at.width_x, rest.x.double())),
            self._features(1, at.width_z, rest.z),
            rest.z,
            rest.lengths,
            eta=at.eta.exp(),
            lam_transition=at.lam_transition.exp(),
        )
        lam = at.lam.exp().unsqueeze(-1)
        errors = squared_errors(operators, lam, self.data.inside(block), rest.rates)
        return errors.squeeze(-1) / len(block)

    def _features(self, which: int, width: Tensor, points: Tensor) -> Features:
        kernel = PerCoordinate(kernel=self.kernels[which], bandwidth=width.exp())
        landmarks = self.landmarks[which]
        factor = ridge_cholesky(kernel(landmarks, landmarks), ridge=JITTER, name="jitter")

        def features(query: Tensor) -> Tensor:
            cross = kernel(query, landmarks)
            solved: Tensor = torch.linalg.solve_triangular(factor.mT, cross, upper=True, left=False)
            return solved

        return Features(features(points), features, kernel)


def descend(fitted: Fitted, *, steps: int = 30, rate: float = 0.1, patience: int = 3) -> Fitted:
    """The fitted filter with bandwidths and ridges moved downhill, fitted to the same data.

    `steps` of Adam at this `rate` on logarithms, one block at each; after every round of blocks the
    validation block is filtered, and `patience` rounds without improvement end it. Data sets whose
    validation error did not fall keep the values they had.
    """
    problem, held_out = make_problem(fitted), validation_block(fitted.n)
    start, early = problem.start, replace(problem, data=data_outside(problem.data, held_out))
    count = max(FOLDS, -(-held_out.start // UNROLLED))
    cuts = [round(k * held_out.start / count) for k in range(count + 1)]
    blocks = [range(a, b) for a, b in pairwise(cuts)]
    # A step for each coordinate, one for all where there are many (images).
    widths = (
        w[..., :1] if w.shape[-1] > FEW_COORDINATES else w for w in (start.width_x, start.width_z)
    )
    values = (*widths, start.lam, start.eta, start.lam_transition)
    moved = [torch.zeros_like(value, requires_grad=True) for value in values]

    def held_out_errors() -> Float[Tensor, "*b"]:
        with torch.no_grad():
            return problem.error(problem.values(moved), held_out)

    best, kept = held_out_errors(), [step.detach().clone() for step in moved]
    optimizer, waited = torch.optim.Adam(moved, lr=rate), 0
    for count in range(1, steps + 1):
        optimizer.zero_grad()
        loss = early.error(problem.values(moved), blocks[(count - 1) % len(blocks)]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        for step in moved:
            assert step.grad is not None
            step.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        if count % len(blocks) and count < steps:
            continue
        now = held_out_errors()
        better = now < best
        best = torch.where(better, now, best)
        kept = [_where(better, step.detach(), old) for step, old in zip(moved, kept, strict=True)]
        waited = 0 if bool(better.any()) else waited + 1
        if waited >= patience:
            break
    # The moved values where their own filter's validation error fell, else those of the start.
    still = [torch.zeros_like(step) for step in kept]
    before, after = (held_out_error(with_values(problem, steps)) for steps in (still, kept))
    better = after < before
    refined = with_values(problem, [_where(better, step, 0 * step) for step in kept])
    error = torch.where(better, after, before)
    return refined.changed(choice=replace(refined.data.choice, val_mse=error))


def make_problem(fitted: Fitted, *, rank: int = RANK) -> Problem:
    """What `descend` starts from: the values of a fitted filter, landmarks chosen with them."""
    data, rule = replace(fitted.data, correction=None), fitted.settings.rule
    if is_large(fitted.n) or data.landmarks is not None:
        raise KbrError(
            f"refining unrolls the filter over all of its training pairs, here {fitted.n:,}; it "
            "takes filters of few, not compressed. Refine a filter of a part of them."
        )
    choice = data.choice
    scales = (choice.scale_x, choice.scale_z)
    kernels = Builder(fitted.settings).fitted_kernels(data.x.double(), data.z, scales)
    if not (_stationary(rule.kernel_x) and _stationary(rule.kernel_z)):
        names = ", ".join(type(kernel).__name__ for kernel in (rule.kernel_x, rule.kernel_z))
        raise KbrError(
            f"refining moves bandwidths, so both kernels must have some (Gaussian, ...); got "
            f"{names}. Set kernel_x and kernel_z."
        )
    widths, landmarks, profiles = [], [], []
    for kernel, wide in zip(kernels, (data.x.double(), data.z), strict=True):
        shape = (*wide.shape[:-2], wide.shape[-1])
        widths.append(kernel.widths(wide).squeeze(-2).expand(shape).log())
        gram = kernel(wide, wide)

        def column(index: Tensor, gram: Tensor = gram) -> Tensor:
            return take_rows(gram, index.unsqueeze(-1)).squeeze(-2)

        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        _, pivots = pivoted_cholesky(diagonal, column, tolerance=0.0, max_rank=rank)
        landmarks.append(take_rows(wide, pivots))
        inner = kernel.kernel if isinstance(kernel, PerCoordinate) else kernel
        profiles.append(replace(inner, bandwidth=None, scale=1.0))
    ridges = (choice.lam.log(), choice.eta.log(), choice.lam_transition.log())
    return Problem(
        fitted.settings,
        data,
        (profiles[0], profiles[1]),
        Values(widths[0], widths[1], *ridges),
        (landmarks[0], landmarks[1]),
    )


def with_values(problem: Problem, moved: Sequence[Tensor]) -> Fitted:
    """An ordinary filter with these values, fitted to all training data."""
    at, choice = problem.values(moved), problem.data.choice
    kernels = [
        PerCoordinate(kernel=kernel, bandwidth=width.exp())
        for kernel, width in zip(problem.kernels, (at.width_x, at.width_z), strict=True)
    ]
    rule = replace(problem.settings.rule, kernel_x=kernels[0], kernel_z=kernels[1])
    choice = replace(
        choice,
        scale_x=choice.scale_x * moved[0].mean(-1).exp(),
        scale_z=choice.scale_z * moved[1].mean(-1).exp(),
        lam=at.lam.exp(),
        eta=at.eta.exp(),
        lam_transition=at.lam_transition.exp(),
    )
    return Fitted.build(replace(problem.settings, rule=rule), replace(problem.data, choice=choice))


def held_out_error(fitted: Fitted) -> Float[Tensor, "*b"]:
    """Error on the validation block of a filter with these values fitted to the rows before it."""
    data, block = fitted.data, validation_block(fitted.n)
    early = fitted.without(block)
    total = torch.zeros_like(data.choice.lam)
    for x, z in data.inside(block):
        total = total + (early.filtered(x).mean - z).square().sum((-2, -1))
    return total / len(block)


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask.reshape((*mask.shape, *(1,) * (new.ndim - mask.ndim))), new, old)


def _stationary(kernel: object) -> bool:
    inner = kernel.kernel if isinstance(kernel, PivotedCholesky) else kernel
    return isinstance(inner, Kernel) and not isinstance(inner, Linear)
