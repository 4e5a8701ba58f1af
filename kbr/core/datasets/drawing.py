"""What the tasks draw with: generators, checked lengths, normal numbers, points on the circle."""

import math

import torch
from jaxtyping import Float, Float32, Float64
from torch import Generator, Tensor

from kbr.core.errors import KbrError

TURN = 2 * math.pi
Shape = tuple[int, ...]


def as_generator(seed: int | Generator) -> Generator:
    """A generator of this seed, or the one given."""
    return seed if isinstance(seed, Generator) else Generator().manual_seed(seed)


def check_lengths(n_train: int, n_test: int) -> tuple[int, int]:
    """Both lengths, each at least one step."""
    for name, length in (("n_train", n_train), ("n_test", n_test)):
        if not isinstance(length, int) or length < 1:
            raise KbrError(f"{name} must be at least 1 step; got {length}. Set {name}.")
    return n_train, n_test


def normal(shape: Shape, generator: Generator) -> Float64[Tensor, "..."]:
    """Standard normal numbers on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)


def add_noise(
    x: Float32[Tensor, "..."], level: float, generator: Generator
) -> Float32[Tensor, "..."]:
    """Images with normal noise of this standard deviation added in place."""
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    return x.add_(noise, alpha=level)


def on_circle(theta: Float[Tensor, "*b"]) -> Float[Tensor, "*b 2"]:
    return torch.stack([theta.cos(), theta.sin()], dim=-1)


def uniform_on_circle(shape: Shape, generator: Generator) -> Float64[Tensor, "*b 2"]:
    turn = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return on_circle(TURN * turn)


def normal_mass(low: Float64[Tensor, "*b"], high: Float64[Tensor, "*b"]) -> Float64[Tensor, "*b"]:
    """P(low < e < high) for e ~ N(0, 1), to full relative accuracy down to 37 deviations.

    Math: (erfc(-high / sqrt 2) - erfc(-low / sqrt 2)) / 2, with both ends on the negative side.
    """
    # On the negative side erfc(-e) is small and has all its digits (special.ndtr has not).
    flip = low > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    root = math.sqrt(0.5)
    mass: Tensor = 0.5 * (torch.special.erfc(-root * high) - torch.special.erfc(-root * low))
    return mass
