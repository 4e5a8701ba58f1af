"""A Kalman filter for an angle, which is known up to whole turns."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.result import FilterResult
from kbr.core.inputs import ArrayLike, as_tensor


@dataclass(frozen=True, kw_only=True)
class CircularKalmanFilter:
    """Filtering of a heading that turns by omega a step, from noisy headings.

    Math: theta_t+1 = theta_t + omega + N(0, sigma_z^2),  y_t = theta_t + N(0, sigma_x^2) mod 2 pi;
          m <- m + omega,  P <- P + sigma_z^2;  K = P / (P + sigma_x^2),
          m <- m + K wrap(y - m),  P <- K sigma_x^2,  wrap(a) in [-pi, pi).
    Ref:  Särkkä 2013, theorem 4.2; moments of the wrapped normal: Mardia & Jupp 2000, 3.5.7.

    The first heading is uniform. Wrapping the innovation ignores that the heading might be a turn
    behind; with deviations below about 0.5 radians that makes no difference.
    """

    omega: float
    sigma_z: float
    sigma_x: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.omega):
            raise KbrError(f"omega must be a finite number; got {self.omega}. Set omega.")
        for name, value in (("sigma_x", self.sigma_x), ("sigma_z", self.sigma_z)):
            if not (math.isfinite(value) and value >= 0):
                raise KbrError(f"{name} must be finite and at least zero; got {value}. Set {name}.")

    def filter(self, y: ArrayLike) -> FilterResult:
        """Beliefs about z_t = (cos theta_t, sin theta_t) given y_1..t, for y [*s T] in radians.

        A missing y_t (NaN) is a prediction step, with `evidence` False.
        """
        raw = as_tensor(y, name="y")
        if raw.ndim == 0 or raw.shape[-1] == 0:
            raise KbrError(f"y must have shape [..., T], T > 0; got {tuple(raw.shape)}.")
        evidence = torch.isfinite(raw)
        steps = torch.where(evidence, raw, torch.zeros_like(raw)).double()
        noise = self.sigma_x**2
        m = torch.zeros_like(steps[..., 0])
        p = torch.full_like(m, torch.inf)  # the first heading can be any
        angles, variances = [], []
        for t in range(raw.shape[-1]):
            if t > 0:
                m, p = m + self.omega, p + self.sigma_z**2
            gain = torch.where(p > 0, 1 / (1 + noise / p), 0.0)
            gain = torch.where(evidence[..., t], gain, 0.0)
            m = m + gain * wrap(steps[..., t] - m)
            p = torch.where(evidence[..., t], gain * noise, p)
            angles.append(m)
            variances.append(p)
        mean, cov = circular_moments(torch.stack(angles, dim=-1), torch.stack(variances, dim=-1))
        return FilterResult(mean=mean.to(raw.dtype), cov=cov.to(raw.dtype), evidence=evidence)


def wrap(angle: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """The same angle in [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def circular_moments(
    m: Float[Tensor, "*b"], p: Float[Tensor, "*b"]
) -> tuple[Float[Tensor, "*b 2"], Float[Tensor, "*b 2 2"]]:
    """Mean and covariance of (cos theta, sin theta) for theta ~ N(m, p); p may be infinite.

    Math: E z = exp(-p/2) u(m),  E zz' = (I + exp(-2p) [[c, s], [s, -c]]) / 2,
          u(a) = (cos a, sin a),  (c, s) = u(2m).
    """
    mean = (-0.5 * p).exp().unsqueeze(-1) * torch.stack([m.cos(), m.sin()], dim=-1)
    c, s = (2 * m).cos(), (2 * m).sin()
    double = torch.stack([torch.stack([c, s], dim=-1), torch.stack([s, -c], dim=-1)], dim=-2)
    second = 0.5 * (
        torch.eye(2, dtype=m.dtype, device=m.device) + (-2 * p).exp()[..., None, None] * double
    )
    return mean, second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
