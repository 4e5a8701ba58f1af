"""What every task draws its sequences with: a generator, checked lengths, normal numbers."""

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from kbr.core.errors import KbrError


def as_generator(seed: int | Generator) -> Generator:
    """A generator of this seed, or the one given."""
    return seed if isinstance(seed, Generator) else Generator().manual_seed(seed)


def check_lengths(n_train: int, n_test: int) -> tuple[int, int]:
    """Both lengths, each at least one step."""
    for name, length in (("n_train", n_train), ("n_test", n_test)):
        if not isinstance(length, int) or length < 1:
            raise KbrError(f"{name} must be at least 1 step; got {length}. Set {name}.")
    return n_train, n_test


def normal(shape: tuple[int, ...], generator: Generator) -> Float64[Tensor, "..."]:
    """Standard normal numbers on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
