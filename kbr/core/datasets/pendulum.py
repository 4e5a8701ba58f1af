"""A benchmark of learned filters: a pendulum in images whose noise comes and goes."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Float64
from torch import Generator, Tensor

from kbr.core.datasets.drawing import TURN, Shape, normal
from kbr.core.datasets.several import SeveralSequences, uniform
from kbr.core.inputs import check_noise, check_positive
from kbr.core.tables import blocks

PIXELS = 24
PULL = 3 * 9.81  # of gravity on a rod of length 1 that turns about its end, per sine of the angle
REACH, THICK = 55 / 128, 8 / 128  # of the line, as shares of an image
WANDER = 0.2  # of the factor from frame to frame, at most
LOWER, UPPER = (0.0, 0.25), (0.75, 1.0)  # where the thresholds of the factor lie
PARTS = 5  # of a step, each integrated by one step of Runge and Kutta
FRAMES = 4096  # drawn at once


@dataclass(frozen=True, kw_only=True)
class PendulumImages(SeveralSequences):
    """A swinging rod as a line in 24 x 24 pixels, mixed with noise that is correlated in time.

    Math: theta'' = 3 g sin theta - friction theta',  theta_1 uniform, theta'_1 = 0,
          theta'_t += N(0, sigma_z^2) after every dt;  z_t = (sin, cos) of theta_t + pi, which is 0
          where the rod hangs;  x_t = f_t line(z_t) + (1 - f_t) U(0, 1) for each pixel;
          g_t+1 = clip(g_t + U(-.2, .2), 0, 1),  f_t = clip((g_t - a) / (b - a), 0, 1), g_1 uniform,
          a ~ U(0, .25), b ~ U(.75, 1) for each sequence;  f_t = 1 in the first `clean` frames.
    Ref:  Becker et al. 2019 (recurrent Kalman networks), section 5.1 and their released settings.

    An image says nothing of the velocity, and the latent has none: neither is Markov by itself.
    """

    friction: float = 0.1
    sigma_z: float = 0.1
    dt: float = 0.05
    clean: int = 5
    length: int = 75
    test_length: int = 75

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(friction=self.friction, sigma_z=self.sigma_z, clean=float(self.clean))
        check_positive(self.dt, name="dt")

    def step_mean(self, state: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
        """Angle (0: upright) and velocity one step later, without noise."""
        h = self.dt / PARTS
        for _ in range(PARTS):
            k_1 = self._rates(state)
            k_2 = self._rates(state + h / 2 * k_1)
            k_3 = self._rates(state + h / 2 * k_2)
            k_4 = self._rates(state + h * k_3)
            state = state + h / 6 * (k_1 + 2 * k_2 + 2 * k_3 + k_4)
        return state

    def _rates(self, state: Tensor) -> Tensor:
        theta, velocity = state.unbind(-1)
        return torch.stack([velocity, PULL * theta.sin() - self.friction * velocity], -1)

    def angles(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> Float64[Tensor, "*b t"]:
        """Angles of the rod, zero where it stands upright."""
        theta = uniform(0.0, TURN, batch, generator)
        state, path = torch.stack([theta, torch.zeros_like(theta)], -1), []
        for kick in (self.sigma_z * normal((*batch, length), generator)).unbind(-1):
            path.append(state[..., 0])
            ahead = self.step_mean(state)
            state = torch.stack([ahead[..., 0], ahead[..., 1] + kick], -1)
        return torch.stack(path, -1)

    def frames(self, z: Float[Tensor, "*b 2"]) -> Float32[Tensor, "*b 1 24 24"]:
        """Images without noise: how much of each pixel lies on the line, by its distance."""
        places = torch.arange(PIXELS).to(z.double()) - (PIXELS - 1) / 2
        sine, cosine = (part[..., None, None] for part in z.double().unbind(-1))
        right, down = places, places[:, None]
        along = (right * sine + down * cosine).clamp(0, REACH * PIXELS)
        away = ((right - along * sine).square() + (down - along * cosine).square()).sqrt()
        return (THICK * PIXELS / 2 + 0.5 - away).clamp(0, 1).float().unsqueeze(-3)

    def factors(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> Float64[Tensor, "*b t"]:
        """How much of each image is seen: 1 is all of it, 0 is noise alone."""
        low, high = (uniform(*ends, (*batch, 1), generator) for ends in (LOWER, UPPER))
        now, path = uniform(0.0, 1.0, batch, generator), []
        for step in uniform(-WANDER, WANDER, (*batch, length), generator).unbind(-1):
            path.append(now)
            now = (now + step).clamp(0, 1)
        seen = ((torch.stack(path, -1) - low) / (high - low)).clamp(0, 1)
        seen[..., : self.clean] = 1.0
        return seen

    def sample(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> tuple[Float32[Tensor, "*b t 1 24 24"], Float64[Tensor, "*b t 2"]]:
        theta = self.angles(length, generator, batch) + math.pi
        z = torch.stack([theta.sin(), theta.cos()], -1)
        flat, seen = z.reshape(-1, 2), self.factors(length, generator, batch).reshape(-1, 1, 1, 1)
        x = torch.empty(len(flat), 1, PIXELS, PIXELS, device=z.device)
        for rows in blocks(len(flat), FRAMES):
            some, share = self.frames(flat[rows]), seen[rows].float()
            noise = torch.rand(some.shape, generator=generator, device=some.device)
            x[rows] = share * some + (1 - share) * noise
        return x.reshape(*z.shape[:-1], *x.shape[1:]), z
