"""Headings: a latent z = (cos, sin) as an angle, and beliefs as densities over the turn."""

import math

import numpy as np
import torch
from torch import Tensor

ANGLES = np.linspace(0, 2 * np.pi, 181)  # where densities are evaluated; both ends are north
CONCENTRATION = 60.0  # of the von Mises kernels: a standard deviation of about 7 degrees
SMALLEST_SD = 0.02  # of a belief whose angle is shown: a sharper one would be a line
FLOOR = -700.0  # of a logarithm whose exponential is still a normal number


def degrees(z: Tensor) -> Tensor:
    """Headings 0 .. 360 of z = (cos, sin)."""
    return torch.rad2deg(torch.atan2(z[..., 1], z[..., 0])) % 360


def degrees_text(z: Tensor) -> str:
    """The heading of one z, as 0° .. 359°."""
    return f"{round(float(degrees(z))) % 360}°"


def density_of_weights(z: Tensor, w: Tensor) -> np.ndarray:
    """Density at ANGLES of weights w [n] on headings z [n, 2], smoothed.

    Math: p(a) ~ sum_i max(w_i, 0) exp(k (cos(a - a_i) - 1)), k = CONCENTRATION (von Mises).
    """
    angle = torch.atan2(z[:, 1], z[:, 0])
    grid = torch.from_numpy(ANGLES).unsqueeze(-1)
    value = torch.exp(CONCENTRATION * (torch.cos(grid - angle) - 1)) @ w.clamp_min(0)
    return _to_mass_one(value.numpy())


def density_of_moments(mean: Tensor, cov: Tensor) -> np.ndarray:
    """Density at ANGLES of the angle of z ~ N(mean, cov): the projected normal.

    Math: p(a) ~ (1 + D Phi(D) / phi(D)) / A,  D = B / A^.5,  A = u'C^-1 u,  B = u'C^-1 mu,
          u = (cos a, sin a), phi and Phi the standard normal's density and distribution.
    Ref:  Mardia and Jupp 2000, section 3.5.6.
    """
    values, vectors = torch.linalg.eigh(cov)
    inverse = (vectors / values.clamp_min(SMALLEST_SD**2)) @ vectors.mT
    u = torch.from_numpy(np.stack([np.cos(ANGLES), np.sin(ANGLES)], -1))
    a, b = ((u @ inverse) * u).sum(-1), u @ inverse @ mean
    d = b / a.sqrt()
    ratio = torch.special.log_ndtr(d) + 0.5 * (d.square() + math.log(2 * math.pi)) + d.abs().log()
    ahead = torch.logaddexp(ratio, torch.zeros_like(ratio))
    behind = torch.log1p(-ratio.clamp_max(0).exp()).clamp_min(FLOOR)
    log_p = torch.where(d > 0, ahead, behind) - a.log()
    return _to_mass_one((log_p - log_p.max()).exp().numpy())


def _to_mass_one(value: np.ndarray) -> np.ndarray:
    """Uniform where there is no mass at all."""
    mass = value[:-1].mean() * 2 * np.pi
    density: np.ndarray = value / mass if mass > 0 else np.full_like(value, 0.5 / np.pi)
    return density
