"""A Kalman filter, or smoother, over what a regressor says of every single observation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from kbr.app.baselines.frames import TunedFrames, second_moment, steps_of
from kbr.app.config.values import Node
from kbr.core.filters.classical.kalman import KalmanFilter
from kbr.core.filters.classical.state_space import StateSpaceModel

STRENGTHS = tuple(10.0 ** (k / 2) for k in range(-2, 7))  # of R, tried


@dataclass(frozen=True, kw_only=True, eq=False)
class Motion:
    """How a latent [k], or latent and velocity [2k], goes from row to row."""

    matrix: Tensor  # F
    noise: Tensor  # Q
    prior: Tensor  # covariance of the first state, whose mean is zero

    @classmethod
    def walk(cls, z: np.ndarray, lengths: Sequence[int]) -> "Motion":
        """Math: z' = z + N(0, Q), Q the second moment of the steps in training."""
        noise = torch.from_numpy(second_moment(steps_of(z, lengths)))
        return cls(
            matrix=torch.eye(len(noise), dtype=torch.float64),
            noise=noise,
            prior=torch.from_numpy(second_moment(z)),
        )

    @classmethod
    def velocity(cls, z: np.ndarray, lengths: Sequence[int]) -> "Motion":
        """Math: (z, v)' = [[I, I], [0, I]] (z, v) + (a / 2, a), a ~ N(0, A); A is the second
              moment of the steps of steps in training.
        Ref:  Bar-Shalom, Li and Kirubarajan 2001, section 6.3.2.
        """
        steps = steps_of(z, lengths)
        inner = [max(length - 1, 0) for length in lengths]
        accelerations = torch.from_numpy(second_moment(steps_of(steps, inner)))
        eye = torch.eye(len(accelerations), dtype=torch.float64)
        shape = torch.tensor([[0.25, 0.5], [0.5, 1.0]], dtype=torch.float64)
        prior = torch.zeros(2 * len(eye), 2 * len(eye), dtype=torch.float64)
        for corner, rows in (slice(len(eye)), z), (slice(len(eye), None), steps):
            prior[corner, corner] = torch.from_numpy(second_moment(rows))
        return cls(
            matrix=torch.kron(torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double(), eye),
            noise=torch.kron(shape, accelerations),
            prior=prior,
        )

    def filter(self, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Beliefs [*s T d] about the state, from y = z + N(0, noise) [*s T k]; NaN is missing."""
        k = y.shape[-1]
        model = StateSpaceModel(
            transition=lambda state: state @ self.matrix.mT,
            transition_cov=self.noise,
            initial_mean=torch.zeros(len(self.prior), dtype=torch.float64),
            initial_cov=self.prior,
            observation=lambda state: state[..., :k],
            observation_cov=noise,
        )
        result = KalmanFilter(model=model).filter(y)
        return result.mean, result.cov

    def smooth(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
        """Beliefs given the whole sequence, from those of the filter [T d].

        Math: G = P F' (P+)^-1,  m_s = m + G (m_s' - m+),  P_s = P + G (P_s' - P+) G'.
        Ref:  Rauch, Tung and Striebel 1965; Särkkä 2013, theorem 8.2.
        """
        means, covs = [mean[-1]], [cov[-1]]
        for m, p in zip(mean[:-1].flip(0), cov[:-1].flip(0), strict=True):
            ahead = self.matrix @ p @ self.matrix.mT + self.noise
            gain = torch.linalg.solve(ahead, self.matrix @ p).mT
            means.append(m + gain @ (means[-1] - self.matrix @ m))
            covs.append(p + gain @ (covs[-1] - ahead) @ gain.mT)
        return torch.stack(means[::-1]), torch.stack(covs[::-1])


@dataclass(kw_only=True)
class KalmanRegression:
    """A regressor for single observations (`frames`), then a Kalman filter over its answers.

    The answers' noise R is the covariance of the regressor's errors on held-out sequences, times
    the strength with which the filter's squared error there is least: such errors last over many
    rows. `motion` is that of z in training: a random walk, a constant velocity, or what does better
    there. The covariances are then scaled to the errors that are left there.

    Ref: Kalman 1960.
    """

    frames: Annotated[TunedFrames, Node]
    motion: Literal["auto", "walk", "velocity"] = "auto"
    smooth: bool = False
    chosen: dict[str, Any] = field(default_factory=dict, init=False)

    def fit(self, x: np.ndarray, z: np.ndarray, lengths: Sequence[int], units: Any = None) -> None:
        self.frames.fit(x, z, lengths, units)
        inner = self.frames.units.z.apply(torch.from_numpy(z)).numpy()
        y, truth = (_side_by_side(rows, lengths) for rows in (self.frames.held_out, inner))
        names = ("walk", "velocity") if self.motion == "auto" else (self.motion,)
        noise = torch.from_numpy(self.frames.cov)
        tried = []
        for name in names:
            motion = getattr(Motion, name)(inner, lengths)
            for strength in STRENGTHS:
                mean, cov = motion.filter(y, strength * noise)
                missed = mean[..., : truth.shape[-1]] - truth
                error = float(missed.square().sum(-1).nanmean())
                tried.append((error, name, strength, motion, missed, cov))
        _, name, strength, self.moving, missed, cov = min(tried, key=lambda one: one[0])
        k, known = truth.shape[-1], missed.isfinite().all(-1)
        cov, missed = cov[known][:, :k, :k], missed[known]
        distance = (missed * torch.linalg.solve(cov, missed.unsqueeze(-1)).squeeze(-1)).sum(-1)
        self.noise, self.spread = strength * noise, float(distance.mean()) / k
        self.chosen = {**self.frames.chosen, "motion": name, "strength": strength}

    def filter(self, x: np.ndarray) -> tuple[Any, Any]:
        mean, cov = self.moving.filter(torch.from_numpy(self.frames.answers(x)), self.noise)
        if self.smooth:
            mean, cov = self.moving.smooth(mean, cov)
        k = len(self.noise)
        moments = mean[:, :k], self.spread * cov[:, :k, :k]
        return self.frames.recorded(*(part.numpy() for part in moments))


def _side_by_side(rows: np.ndarray, lengths: Sequence[int]) -> Tensor:
    """Sequences as [s, T, k], the shorter ones with NaN at their end."""
    parts = [torch.from_numpy(part) for part in np.split(rows, np.cumsum(lengths)[:-1])]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=torch.nan)
