"""Tasks of many sequences: steps to train on and to test on, in pieces of their own lengths."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from kbr.core.datasets.drawing import Shape, as_generator, check_lengths
from kbr.core.datasets.dynamics import FilteringData
from kbr.core.errors import KbrError
from kbr.core.inputs import check_sizes


@dataclass(frozen=True, kw_only=True)
class SeveralSequences:
    """A task whose data are sequences of `length` steps to train on, of `test_length` to test on.

    Where the steps are no multiple of the length, the last sequence is shorter.
    """

    length: int
    test_length: int

    def __post_init__(self) -> None:
        check_sizes(length=self.length, test_length=self.test_length)

    def sample(self, length: int, generator: Generator, batch: Shape = ()) -> tuple[Tensor, Tensor]:
        """Observations x and latents z of so many steps; every sequence starts anew."""
        raise NotImplementedError

    def generate(
        self, *, n_train: int, n_test: int = 200, seed: int | Generator = 0
    ) -> FilteringData:
        """So many steps in all of independent sequences, from a seed or a generator."""
        (n_train, n_test), generator = check_lengths(n_train, n_test), as_generator(seed)
        x_train, z_train = self._sequences(n_train, self.length, generator)
        x_test, z_test = self._sequences(n_test, self.test_length, generator)
        return FilteringData(x_train=x_train, z_train=z_train, x_test=x_test, z_test=z_test)

    def _sequences(
        self, steps: int, length: int, generator: Generator
    ) -> tuple[list[Tensor], list[Tensor]]:
        whole, rest = divmod(steps, length)
        parts = [(length, whole), (rest, 1)]
        drawn = [self.sample(t, generator, (count,)) for t, count in parts if t and count]
        xs, zs = zip(*drawn, strict=True)
        return [x for part in xs for x in part], [z for part in zs for z in part]

    def extra_metrics(
        self, mean: Float[Tensor, "*b t dz"], truth: Float[Tensor, "*b t dz"]
    ) -> dict[str, float]:
        """Math: 10 log10 of the squared error, averaged over coordinates, steps and sequences."""
        error = float((mean - truth).double().square().mean())
        return {"test/mse_db": 10 * math.log10(error) if error > 0 else -math.inf}


def check_share(value: float, *, name: str) -> None:
    if not 0 <= value <= 1:
        raise KbrError(f"{name} must lie in [0, 1]; got {value}. Set {name}.")


def uniform(low: float, high: float, shape: Shape, generator: Generator) -> Float[Tensor, "..."]:
    """Uniform numbers in float64, on the generator's device."""
    unit = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return low + (high - low) * unit
