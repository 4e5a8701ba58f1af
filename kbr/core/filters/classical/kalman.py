"""The Kalman filter, and the Gaussian predict and update it shares with its nonlinear kin.

Every Kalman-type filter replaces a function f by a line around the current belief N(m, LL'):

    f(m + L e) = value + slope e + N(0, residual),   e ~ N(0, I).

They differ only in how they find the line: exactly (here), by the tangent (extended) or by sigma
points (unscented). Slopes run along the columns of L, so a singular covariance needs no care.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.classical.known_model import KnownModelFilter
from kbr.core.filters.classical.state_space import (
    Map,
    StateSpaceModel,
    check_shape,
    covariance_root,
)
from kbr.core.filters.result import FilterResult
from kbr.core.inputs import ArrayLike

Mean = Float[Tensor, "*s d"]
Cov = Float[Tensor, "*s d d"]


class Line(NamedTuple):
    """A function seen from N(m, LL'): value [*s k], slope [*s k d], residual [*s k k]."""

    value: Tensor
    slope: Tensor
    residual: Tensor


class Moments(NamedTuple):
    """The belief: mean [*s d] and covariance [*s d d]."""

    mean: Tensor
    cov: Tensor


def predict(line: Line, *, noise: Float[Tensor, "d d"]) -> Moments:
    """The belief about z_t+1.

    Math: m+ = value,  P+ = slope slope' + residual + Q.
    Ref:  Särkkä 2013, theorem 4.2, with F L = slope.
    """
    return Moments(line.value, line.slope @ line.slope.mT + line.residual + noise)


def update(
    belief: Moments,
    root: Cov,
    line: Line,
    x: Float[Tensor, "*s k"],
    observed: Bool[Tensor, "*s"],
    *,
    noise: Float[Tensor, "k k"],
) -> Moments:
    """The belief after seeing x; unchanged where x is missing.

    Math: S = A A' + R,  K = L A' S^-1,  m+ = m + K (x - value),
          P+ = (L - K A)(L - K A)' + K R K'    (Joseph form; A = slope, R = residual + noise).
    Ref:  Särkkä 2013, theorem 4.2, with H L = A.
    """
    remaining = line.residual + noise
    factor, info = torch.linalg.cholesky_ex(line.slope @ line.slope.mT + remaining)
    if bool(((info > 0) & observed).any()):
        raise KbrError(
            "The predicted covariance of x must be positive definite to update on x; it is "
            "singular. Set observation_cov (sigma_x), or transition_cov (sigma_z), above zero."
        )
    gain = torch.cholesky_solve(line.slope @ root.mT, factor).mT
    mean = belief.mean + (gain @ (x - line.value).unsqueeze(-1)).squeeze(-1)
    rest = root - gain @ line.slope
    cov = rest @ rest.mT + gain @ remaining @ gain.mT
    return Moments(
        torch.where(observed[..., None], mean, belief.mean),
        torch.where(observed[..., None, None], cov, belief.cov),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianFilter(KnownModelFilter, ABC):
    """Filtering with a Gaussian belief; a subclass says how a function becomes a line."""

    model: StateSpaceModel

    @abstractmethod
    def linearise(self, function: Map, mean: Mean, root: Cov, *, name: str) -> Line:
        """The line that stands for `function` at N(mean, root root'); `name` is for errors."""

    def filter(self, x: ArrayLike) -> FilterResult:
        """Beliefs about z_t given x_1..t, for x [*s T dx]; works in float64, answers in x's dtype.

        A missing x_t (NaN) is a prediction step, with `evidence` False.
        """
        if self.model.observation is None or self.model.observation_cov is None:
            raise KbrError(
                f"{type(self).__name__} needs the model's observation and observation_cov; got a "
                "model with log_likelihood only. Set them, or use ParticleFilter."
            )
        raw, observed = self.model.observations(x)
        model = self.model.to(device=raw.device, dtype=torch.float64)
        assert model.observation is not None  # the copy of a model that has both
        assert model.observation_cov is not None
        lead, dz = raw.shape[:-2], model.initial_mean.shape[0]
        mean, cov = model.initial_mean.expand(*lead, dz), model.initial_cov.expand(*lead, dz, dz)
        belief, beliefs = Moments(mean, cov), []
        for t, x_t in enumerate(raw.double().unbind(-2)):
            if t > 0:
                line, _ = self._line(model.transition, belief, dz, "transition")
                belief = predict(line, noise=model.transition_cov)
            line, root = self._line(model.observation, belief, raw.shape[-1], "observation")
            now = observed[..., t]
            belief = update(belief, root, line, x_t, now, noise=model.observation_cov)
            beliefs.append(belief)
        means, covs = zip(*beliefs, strict=True)
        mean, cov = torch.stack(means, dim=-2), torch.stack(covs, dim=-3)
        return FilterResult(mean=mean.to(raw.dtype), cov=cov.to(raw.dtype), evidence=observed)

    def _line(self, function: Map, belief: Moments, size: int, name: str) -> tuple[Line, Cov]:
        """The line at a belief, checked, and the root of the belief's covariance."""
        root = covariance_root(belief.cov)
        line = self.linearise(function, belief.mean, root, name=name)
        check_shape(line.value, (*belief.mean.shape[:-1], size), name=name)
        if not bool(torch.isfinite(line.value).all() & torch.isfinite(line.slope).all()):
            raise KbrError(
                f"The model's {name} (or its derivative) is not finite at a filtered mean. Make "
                f"{name} smooth where the filter goes, or use ParticleFilter."
            )
        return line, root


@dataclass(frozen=True, kw_only=True, eq=False)
class KalmanFilter(GaussianFilter):
    """The exact filter of a linear-Gaussian model.

    Math: F e_i = f(e_i) - f(0),  slope = F L,  residual = 0.
    Ref:  Kalman 1960; Särkkä 2013, theorem 4.2.

    A transition or observation that is not affine is an error, checked at every mean it meets.
    """

    def linearise(self, function: Map, mean: Mean, root: Cov, *, name: str) -> Line:
        eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        origin, value = function(torch.zeros_like(eye[0])), function(mean)
        matrix = (function(eye) - origin).mT
        gap = (value - (mean @ matrix.mT + origin)).abs().max()
        if not bool(gap <= 1e-6 * (1 + value.abs().max())):
            raise KbrError(
                f"KalmanFilter needs an affine {name}; the model's is off its own line by "
                f"{float(gap):.3g}. Use ExtendedKalmanFilter, UnscentedKalmanFilter or "
                "ParticleFilter."
            )
        slope = matrix @ root
        return Line(value, slope, torch.zeros_like(slope @ slope.mT))
