"""Kernel ridge regression beside a linear part: a smooth function, and how far off it is where."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.moving.doubt import Doubt
from kbr.core.filters.moving.lasting import lasting_of
from kbr.core.kernel_ridge import TOGETHER, KernelRidge, evenly
from kbr.core.linalg import or_one, ridge_cholesky

SCALES = (0.15, 0.25, 0.4, 0.6, 1.0, 1.6, 2.5, 4.0, 8.0)  # bandwidths to try, in medians
RIDGES = tuple(10 ** (k / 2) for k in range(-18, 3))  # to try, where targets have variance 1
RANK = 600  # landmarks at most
CHOOSING = 1500  # evenly spaced rows that the bandwidth is chosen by
MOST = 40_000  # evenly spaced rows that are fitted
ALIKE = 0.01  # nats a column: the widest bandwidth of those whose errors differ by less
PAYS, COST = 0.01, 8.0  # nats a row, and in all, by which uneven errors must be likelier
LEAST = 1e-6  # of the targets' variance: no error is taken for smaller
LOG_CHI2 = -1.2704  # E log of a squared standard normal number

Inputs = Float[Tensor, "*s d"]
Columns = Float[Tensor, "*s k"]


@dataclass(frozen=True, eq=False)
class MapChoice:
    """Bandwidth in medians; for each column its ridge and that of its errors' size (inf: even)."""

    scale: float
    ridges: Float[Tensor, "k"]
    spreads: Float[Tensor, "k"]


@dataclass(frozen=True, eq=False)
class SmoothMap:
    """A function of a [d] with k columns, and the standard deviations of its errors.

    Math: f(a) = c + B'a + sum_l beta_l exp(-|a - p_l|^2 / (2 h^2)), a standardised, p_l landmarks
          by pivoted Cholesky; ridge regression with features (1, a, psi(a)), the ridge of each
          column and h by closed-form errors of blocks left out. log sd(a)^2 has the same form,
          fitted to the logarithms of these errors' squares where that makes them likelier, and the
          doubt of f is added to it. Errors over their sd have the covariance C = `root` root'.
    Ref:  Kanagawa et al. 2018 (ridge regression and conditional mean embeddings).

    Beyond the training inputs the kernel part fades and the linear part goes on.
    """

    centre: Float[Tensor, "d"]
    spread: Float[Tensor, "d"]
    landmarks: Float[Tensor, "m d"]  # over the bandwidth
    bandwidth: Float[Tensor, ""]
    offset: Float[Tensor, "c"]  # of the k means and the k logarithms of variances
    linear: Float[Tensor, "d c"]
    kernel: Float[Tensor, "m c"]
    low: Float[Tensor, "k"]  # logarithms of variances stay within what training showed
    high: Float[Tensor, "k"]
    root: Float[Tensor, "k k"]
    doubt: Doubt
    choice: MapChoice
    lasting: Float[Tensor, "k"]  # share of an error that is left at the next row

    def __call__(
        self, a: Inputs, *, cloud: bool = False, doubt: bool = True
    ) -> tuple[Columns, Columns]:
        """Means and standard deviations; those of a `cloud` [*s m d] with less work."""
        flat = ((a - self.centre) / self.spread).reshape(-1, a.shape[-1])
        near = flat / self.bandwidth
        bell = near @ self.landmarks.mT
        bell -= near.square().sum(-1, keepdim=True) / 2
        bell -= self.landmarks.square().sum(-1) / 2
        bell = bell.clamp_(max=0).exp_()
        told = torch.addmm(self.offset, flat, self.linear) + bell @ self.kernel
        mean, log_variance = told.reshape(*a.shape[:-1], -1).chunk(2, -1)
        variance = log_variance.clamp(self.low, self.high).exp()
        if doubt:
            inputs, bells = (part.reshape(*a.shape[:-1], -1) for part in (flat, bell))
            asked = self.doubt.of_cloud if cloud else self.doubt
            variance = variance + asked(inputs, bells)
        return mean, variance.sqrt()

    @property
    def rank(self) -> int:
        return len(self.landmarks)

    @classmethod
    def fit(
        cls,
        a: Float[Tensor, "n d"],
        target: Float[Tensor, "n k"],
        choice: MapChoice | None = None,
        *,
        together: int = TOGETHER,
        at: Float[Tensor, "n"] | None = None,
    ) -> "SmoothMap":
        """From pairs; with a `choice` of another fit, no setting is searched again.

        At most `together` rows that follow each other are left out at once: their errors may be
        alike, so that those of a single row would be told by its neighbours. `at` says where rows
        lie in time: how long errors last is learned from it.
        """
        rows = None if at is None else evenly(at.unsqueeze(-1), MOST).squeeze(-1)
        a, target = evenly(a.double(), MOST), evenly(target.double(), MOST)
        if len(a) < 2:
            raise KbrError(f"a regression needs at least 2 rows; got {len(a)}. Raise n_train.")
        centre, spread = a.mean(0), _spread(a)
        inputs = (a - centre) / spread
        if choice is None:
            few, shown = (evenly(part, CHOOSING) for part in (inputs, target))
            errors = [_Ridge.of(few, shown, s, together).choose()[1] for s in SCALES]
            most = min(errors) + ALIKE * target.shape[-1]
            scale = max(s for s, error in zip(SCALES, errors, strict=True) if error <= most)
            ridge = _Ridge.of(inputs, target, scale, together)
            choice = MapChoice(scale, ridge.choose()[0], torch.full_like(target[0], torch.inf))
            choice = replace(choice, spreads=ridge.spreads(choice.ridges))
        else:
            ridge = _Ridge.of(inputs, target, choice.scale, together)
        return ridge.fitted(centre, spread, choice, rows)

    def to(self, device: str | torch.device) -> "SmoothMap":
        moved = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        ridges, spreads = (part.to(device) for part in (self.choice.ridges, self.choice.spreads))
        choice = MapChoice(self.choice.scale, ridges, spreads)
        return replace(self, **moved, doubt=self.doubt.to(device), choice=choice)

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        parts = {"doubt": dict(vars(self.doubt)), "choice": dict(vars(self.choice))}
        return {**vars(self), **parts}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "SmoothMap":
        parts = {"doubt": Doubt(**record["doubt"]), "choice": MapChoice(**record["choice"])}
        without = {"lasting": torch.zeros_like(record["low"])}  # of files from before
        return cls(**{**without, **record, **parts})


@dataclass(frozen=True, eq=False)
class _Ridge:
    """The regression on training rows, for targets of mean zero and variance one.

    Math: see `KernelRidge`, with a linear part.
    """

    target: Float[Tensor, "n k"]
    middle: Float[Tensor, "k"]  # their means and standard deviations before
    size: Float[Tensor, "k"]
    solver: KernelRidge
    together: int  # rows at most that are left out at once

    @classmethod
    def of(
        cls,
        a: Float[Tensor, "n d"],
        target: Float[Tensor, "n k"],
        scale: float,
        together: int = TOGETHER,
    ) -> "_Ridge":
        middle, size = target.mean(0), _spread(target)
        solver = KernelRidge.of(a, scale, rank=RANK, linear=True)
        return cls((target - middle) / size, middle, size, solver, together)

    def _left_out(self, target: Tensor, ridge: float) -> Float[Tensor, "n k"]:
        return self.solver.left_out(target, ridge, self.together)

    def choose(self, target: Tensor | None = None) -> tuple[Float[Tensor, "k"], float]:
        """The best ridge of each column, and the sum of the logarithms of their errors."""
        target = self.target if target is None else target
        errors = torch.stack([self._left_out(target, r).square().mean(0) for r in RIDGES])
        least, best = errors.min(0)
        chosen = target.new_tensor(RIDGES)[best]
        return chosen, float(least.clamp_min(LEAST).log().sum())

    def errors(self, ridges: Sequence[float] | Tensor) -> Float[Tensor, "n k"]:
        """Errors of blocks left out, with a ridge for each column."""
        each = [self._left_out(self.target[:, k : k + 1], float(r)) for k, r in enumerate(ridges)]
        return torch.cat(each, -1)

    def spreads(self, ridges: Float[Tensor, "k"]) -> Float[Tensor, "k"]:
        """Ridges of the logarithms of squared errors; inf where even errors are as likely."""
        errors = self.errors(ridges).square()
        logs = _logs(errors)
        chosen, _ = self.choose(logs - logs.mean(0))
        told = logs - torch.cat(
            [
                self._left_out(logs[:, k : k + 1] - logs[:, k].mean(), float(r))
                for k, r in enumerate(chosen)
            ],
            -1,
        )
        factor = (errors / told.exp()).mean(0)
        gain = (errors.mean(0).clamp_min(LEAST).log() - told.mean(0) - factor.log()) / 2
        uneven = (gain > PAYS + COST / len(errors)) & (errors.mean(0) > LEAST)
        return torch.where(uneven, chosen, torch.inf)

    def fitted(
        self, centre: Tensor, spread: Tensor, choice: MapChoice, at: Tensor | None
    ) -> SmoothMap:
        errors = self.errors(choice.ridges)
        squares = errors.square()
        even = squares.mean(0).clamp_min(LEAST).log()
        logs = torch.where(choice.spreads.isfinite(), _logs(squares), even)
        shift = logs.mean(0)
        finite = torch.where(choice.spreads.isfinite(), choice.spreads, 1.0)
        solver = self.solver
        parts = [solver.solved(self.target, choice.ridges), solver.solved(logs - shift, finite)]
        told = solver.rows @ (solver.vectors.mT @ parts[1]) + shift
        factor = (squares / told.exp()).mean(0)
        shift = torch.where(choice.spreads.isfinite(), shift + factor.log(), shift)
        told = told + torch.where(choice.spreads.isfinite(), factor.log(), 0.0)
        white = errors / (told / 2).exp()
        second = white.mT @ white / len(white)
        root = ridge_cholesky(second, ridge=LEAST, name="errors of a regression")
        size = 2 * self.size.log()
        table = torch.cat([parts[0] * self.size, parts[1]], -1)
        table[0] += torch.cat([self.middle, shift + size])
        d = len(centre)
        return SmoothMap(
            centre,
            spread,
            solver.landmarks / solver.bandwidth,
            solver.bandwidth,
            table[0],
            table[1 : 1 + d].contiguous(),
            (solver.whiten @ table[1 + d :]).contiguous(),
            told.amin(0) + size,
            told.amax(0) + size,
            root,
            self.doubt(choice.ridges),
            choice,
            torch.zeros_like(self.size) if at is None else lasting_of(white, at),
        )

    def doubt(self, ridges: Float[Tensor, "k"]) -> Doubt:
        """Of the fit with these ridges, in the targets' own units."""
        n, solver = len(self.target), self.solver
        linear = solver.vectors.shape[0] - len(solver.landmarks)
        over = 1 / (solver.values.unsqueeze(-1) + ridges)
        told = (over * (solver.rows.mT @ self.target).square()).sum(0) / n
        energy = (self.target.square().sum(0) - told).clamp_min(0) / (n * ridges)
        amplitude = energy / n * self.size.square()
        rotation = torch.cat([solver.vectors[:linear], solver.whiten @ solver.vectors[linear:]])
        return Doubt(rotation, amplitude * ridges * over, amplitude)


def _spread(rows: Float[Tensor, "n k"]) -> Float[Tensor, "k"]:
    """Standard deviations; one of what is constant, whose own is rounding."""
    constant = rows.amax(0) == rows.amin(0)
    return torch.where(constant, 1.0, or_one(rows.std(0, correction=0)))


def _logs(squares: Tensor) -> Tensor:
    return squares.clamp_min(LEAST * squares.mean(0).clamp_min(LEAST)).log() - LOG_CHI2
