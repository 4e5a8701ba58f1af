"""The unscented Kalman filter: every function is replaced by its regression on sigma points."""

import math
from dataclasses import dataclass

import torch

from kbr.core.errors import KbrError
from kbr.core.filters.classical.kalman import Cov, GaussianFilter, Line, Mean
from kbr.core.filters.classical.state_space import Map, check_shape


@dataclass(frozen=True, kw_only=True, eq=False)
class UnscentedKalmanFilter(GaussianFilter):
    """Kalman filtering with the scaled unscented transform.

    Math: points m, m +- c L_i with c^2 = alpha^2 (d + kappa); f_0, f+_i, f-_i the function there;
          value = w f_0 + sum_i (f+_i + f-_i) / (2 c^2),  w = 1 - d / c^2;
          slope_i = (f+_i - f-_i) / (2 c);
          residual = sum_i b_i b_i' / c^2 + (w + 1 - alpha^2 + beta) b_0 b_0',
          b_i = (f+_i + f-_i) / 2 - value,  b_0 = f_0 - value.
    Ref:  Julier & Uhlmann 2004; Särkkä 2013, algorithm 5.14 (its covariance is slope slope' +
          residual; written apart, no large terms cancel).

    `kappa` None means max(3 - d, 0), which keeps every weight non-negative.
    """

    alpha: float = 1.0
    beta: float = 0.0
    kappa: float | None = None

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise KbrError(
                f"alpha must be a finite number above zero; got {self.alpha}. Set alpha."
            )
        d = self.model.initial_mean.shape[0]
        if self.kappa is not None and not d + self.kappa > 0:
            raise KbrError(f"kappa must be above -dz = {-d}; got {self.kappa}. Set a larger kappa.")

    def linearise(self, function: Map, mean: Mean, root: Cov, *, name: str) -> Line:
        d = mean.shape[-1]
        square = self.alpha**2 * (d + (max(3 - d, 0) if self.kappa is None else self.kappa))
        centre, spread = mean.unsqueeze(-2), math.sqrt(square) * root.mT
        points = torch.cat([centre, centre + spread, centre - spread], dim=-2)
        values = function(points)
        check_shape(values, (*points.shape[:-1], *values.shape[-1:]), name=name)
        middle, plus, minus = values[..., :1, :], values[..., 1 : d + 1, :], values[..., d + 1 :, :]
        weight = 1 - d / square
        value = weight * middle + (plus + minus).sum(-2, keepdim=True) / (2 * square)
        bend, bend_0 = (plus + minus) / 2 - value, middle - value
        slope = (plus - minus).mT / (2 * math.sqrt(square))
        residual = (
            bend.mT @ bend / square + (weight + 1 - self.alpha**2 + self.beta) * bend_0.mT @ bend_0
        )
        return Line(value.squeeze(-2), slope, residual)
