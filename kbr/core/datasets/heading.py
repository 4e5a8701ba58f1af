"""The paper's video task: which way am I facing, from first-person frames of a turn on the spot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import torch
from jaxtyping import Float, Float32, Float64
from torch import Generator, Tensor

from kbr.core.datasets.drawing import (
    TURN,
    Shape,
    add_noise,
    as_generator,
    check_lengths,
    normal,
    on_circle,
    uniform_on_circle,
)
from kbr.core.datasets.dynamics import Sampled
from kbr.core.datasets.frame_table import FrameTable
from kbr.core.filters.classical.circular import CircularKalmanFilter, wrap
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.inputs import check_noise, check_positive


@dataclass(frozen=True, kw_only=True, eq=False)
class Heading(Sampled):
    """First-person frames of somebody who turns on the spot; the latent is the heading.

    Math: theta_t+1 = theta_t + omega + N(0, sigma_z^2),  z_t = (cos theta_t, sin theta_t),
          x_t = frame(theta_t + N(0, sigma_x^2)) + pixel_noise N(0, I),
          frame(theta): the table's frame with the nearest heading; theta_1 uniform.
    Ref:  Xu et al. 2022, section 5.3 (DeepMind Lab video; pixel variance .01).
    """

    circular: ClassVar[bool] = True  # z is a point of the unit circle

    frames: FrameTable
    omega: float = 0.4
    sigma_x: float = 0.2
    sigma_z: float = 0.2
    pixel_noise: float = 0.1

    def __post_init__(self) -> None:
        check_noise(pixel_noise=self.pixel_noise)
        _ = self.oracle  # which checks the other settings

    @property
    def oracle(self) -> CircularKalmanFilter:
        """The filter that is shown the noisy headings themselves: no other can do better."""
        return CircularKalmanFilter(omega=self.omega, sigma_z=self.sigma_z, sigma_x=self.sigma_x)

    def samples(
        self, lengths: Sequence[int], generator: Generator, batch: Shape = ()
    ) -> list[tuple[Float32[Tensor, "..."], Float64[Tensor, "..."]]]:
        # All headings before any pixels: `noisy_headings` stops after them.
        headings = [self._headings(length, generator, batch) for length in lengths]
        drawn = []
        for theta, noisy in headings:
            x = self.frames.pixels.to(noisy.device)[self.frames.nearest(noisy)]
            drawn.append((add_noise(x, self.pixel_noise, generator), on_circle(theta)))
        return drawn

    def noisy_headings(
        self, *, n_train: int, n_test: int = 200, seed: int | Generator = 0, batch: Shape = ()
    ) -> tuple[Float64[Tensor, "*b n_train"], Float64[Tensor, "*b n_test"]]:
        """The headings theta_t + N(0, sigma_x^2) that the frames of `generate` show, in radians."""
        generator = as_generator(seed)
        train, test = (self._headings(n, generator, batch) for n in check_lengths(n_train, n_test))
        return train[1], test[1]

    def _headings(
        self, length: int, generator: Generator, batch: Shape
    ) -> tuple[Float64[Tensor, "*b t"], Float64[Tensor, "*b t"]]:
        """True and noisy headings."""
        turn = torch.rand(
            (*batch, 1), generator=generator, device=generator.device, dtype=torch.float64
        )
        steps = self.omega + self.sigma_z * normal((*batch, length), generator)
        steps[..., :1] = TURN * turn
        theta = steps.cumsum(-1)
        return theta, theta + self.sigma_x * normal((*batch, length), generator)

    @cached_property
    def _table(self) -> Float64[Tensor, "n d"]:
        return self.frames.pixels.flatten(1).double()

    def log_likelihood(
        self, x: Float[Tensor, "*b 3 h w"], z: Float[Tensor, "*b m 2"]
    ) -> Float[Tensor, "*b m"]:
        """log p(x | z), for the particle filter that knows the true model.

        Math: p(x | z) = sum_k P(k | theta) N(x; frame_k, pixel_noise^2 I),  theta the angle of z,
              P(k | theta) the chance that theta + N(0, sigma_x^2) is nearest to frame k.

        Exact: the heading's noise is summed out over the table, not sampled; frames whose pixels
        have likelihood zero in double precision, beside the best frame's, are left out of the sum.
        """
        check_positive(self.pixel_noise, name="pixel_noise")
        table, flat = self._table.to(x.device), x.flatten(-3).double()
        variance = self.pixel_noise**2
        square = flat.square().sum(-1, keepdim=True)
        log_p = (flat @ table.mT - 0.5 * (table.square().sum(-1) + square)) / variance
        log_p -= 0.5 * flat.shape[-1] * math.log(2 * math.pi * variance)
        best = log_p.amax(-1, keepdim=True)
        likelihood = (log_p - best).exp()
        most = int((likelihood > 0).sum(-1).max())
        likelihood, frame = likelihood.topk(most, dim=-1)
        theta = torch.atan2(z[..., 1], z[..., 0]).double()
        chance = self.frames.chance(theta, frame, sigma=self.sigma_x)
        value: Tensor = (chance @ likelihood.unsqueeze(-1)).squeeze(-1).log() + best
        return value.to(z.dtype)

    def state_space(self) -> StateSpaceModel:
        """The true model, for the particle filter.

        Transitions are drawn exactly, by angle. The density that `transition` and `transition_cov`
        stand for, N(rotated z, sigma_z^2 I), is on the circle that of von Mises noise with
        concentration 1 / sigma_z^2: close to the true wrapped normal noise.
        """
        eye = torch.eye(2, dtype=torch.float64)
        return StateSpaceModel(
            transition=partial(_rotate, angle=self.omega),
            transition_cov=self.sigma_z**2 * eye,
            initial_mean=torch.zeros(2, dtype=torch.float64),
            initial_cov=0.5 * eye,
            observation_shape=self.frames.shape,
            log_likelihood=self.log_likelihood,
            sample_transition=self._sample_transition,
            sample_initial=uniform_on_circle,
        )

    def _sample_transition(
        self, z: Float[Tensor, "*b 2"], generator: Generator
    ) -> Float[Tensor, "*b 2"]:
        return _rotate(z, self.omega + self.sigma_z * normal(tuple(z.shape[:-1]), generator))

    def extra_metrics(
        self, mean: Float[Tensor, "*b t 2"], truth: Float[Tensor, "*b t 2"]
    ) -> dict[str, float]:
        """The error of the heading itself, averaged over steps and sequences."""
        error = wrap(_angle(mean) - _angle(truth)).abs().mean()
        return {"test/angular_error_degrees": math.degrees(float(error))}


def _angle(z: Float[Tensor, "*b 2"]) -> Float64[Tensor, "*b"]:
    return torch.atan2(z[..., 1].double(), z[..., 0].double())


def _rotate(z: Float[Tensor, "*b 2"], angle: float | Tensor) -> Float[Tensor, "*b 2"]:
    angle = torch.as_tensor(angle, dtype=z.dtype, device=z.device)
    (u, v), c, s = z.unbind(-1), angle.cos(), angle.sin()
    return torch.stack([c * u - s * v, s * u + c * v], dim=-1)
