"""The paper's low-dimensional filtering tasks: a noisy point running around a ring.

`Rotation` keeps to the unit circle; `Oscillatory` also breathes in and out eight times a turn, and
that bends the posterior away from a Gaussian.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from kbr.core.datasets.drawing import Shape, as_generator, check_lengths, normal, uniform_on_circle
from kbr.core.errors import KbrError
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.inputs import check_noise

BURN_IN = 50  # steps thrown away; the angle is uniform from the start, the radius settles in a few


@dataclass(frozen=True, kw_only=True, eq=False)
class FilteringData:
    """A training sequence of pairs and an independent test sequence; x may be images [*b n ...].

    Or lists of such sequences, each of which starts anew.
    """

    x_train: Float[Tensor, "..."] | list[Tensor]
    z_train: Float[Tensor, "*b n dz"] | list[Tensor]
    x_test: Float[Tensor, "..."] | list[Tensor]
    z_test: Float[Tensor, "*b m dz"] | list[Tensor]

    @classmethod
    def stacked(cls, several: Sequence["FilteringData"]) -> "FilteringData":
        """Data sets of the same sizes along a leading dimension."""
        return cls(**{name: _stacked([getattr(one, name) for one in several]) for name in NAMES})

    def each(self, change: Callable[[Tensor], Tensor]) -> "FilteringData":
        """The same with every sequence changed."""
        changed = {}
        for name in NAMES:
            rows = getattr(self, name)
            changed[name] = list(map(change, rows)) if isinstance(rows, list) else change(rows)
        return FilteringData(**changed)

    def whole(self, name: str) -> Tensor:
        """x_train, z_train, x_test or z_test of one data set, its sequences end to end."""
        rows: Tensor | list[Tensor] = getattr(self, name)
        return torch.cat(rows) if isinstance(rows, list) else rows


NAMES = tuple(item.name for item in fields(FilteringData))


def _stacked(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], list):
        return [torch.stack(same) for same in zip(*parts, strict=True)]
    return torch.stack(list(parts))


class Sampled:
    """A task whose training and test sequences are two samples."""

    def sample(self, length: int, generator: Generator, batch: Shape = ()) -> tuple[Tensor, Tensor]:
        """Observations x and latents z of so many steps."""
        raise NotImplementedError

    def generate(
        self, *, n_train: int, n_test: int = 200, seed: int | Generator = 0, batch: Shape = ()
    ) -> FilteringData:
        """Independent training and test sequences, from a seed or a generator."""
        lengths, generator = check_lengths(n_train, n_test), as_generator(seed)
        (x_train, z_train), (x_test, z_test) = self.samples(lengths, generator, batch)
        return FilteringData(x_train=x_train, z_train=z_train, x_test=x_test, z_test=z_test)

    def trials(self, *, n_train: int, n_test: int, seeds: Sequence[int]) -> FilteringData:
        """What `generate` draws from each of the seeds, along a leading dimension."""
        draw = partial(self.generate, n_train=n_train, n_test=n_test)
        return FilteringData.stacked([draw(seed=seed) for seed in seeds])

    def samples(
        self, lengths: Sequence[int], generator: Generator, batch: Shape = ()
    ) -> list[tuple[Tensor, Tensor]]:
        return [self.sample(length, generator, batch) for length in lengths]


@dataclass(frozen=True, kw_only=True)
class Oscillatory(Sampled):
    """Rotation by omega a step, with a radius that depends on the angle.

    Math: z_t+1 = (1 + beta sin(M theta_t)) (cos(theta_t + omega), sin(theta_t + omega)) + eps_Z,
          theta_t the angle of z_t,  x_t = z_t + eps_X,  eps ~ N(0, sigma^2 I),  M = frequency.
    Ref:  Xu et al. 2022, section 5.2; Fukumizu et al. 2013.

    A noise level of zero is allowed: the sequence is then exact in that part.
    """

    omega: float = 0.4
    beta: float = 0.4
    frequency: int | float = 8
    sigma_x: float = 0.2
    sigma_z: float = 0.2

    def __post_init__(self) -> None:
        for name, value in (("omega", self.omega), ("beta", self.beta)):
            if not math.isfinite(value):
                raise KbrError(f"{name} must be a finite number; got {value}. Set {name}.")
        check_noise(sigma_x=self.sigma_x, sigma_z=self.sigma_z)
        if not (math.isfinite(self.frequency) and self.frequency == int(self.frequency)):
            raise KbrError(
                f"frequency must be a whole number (sin(M theta) has no jump then); got "
                f"{self.frequency}. Set frequency."
            )

    def step_mean(self, z: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
        """The next state without noise; the origin, which has no angle, is taken at angle 0."""
        u, v = z.unbind(-1)
        # Substituted before atan2, whose derivative at the origin is NaN.
        theta = torch.atan2(v, torch.where((u == 0) & (v == 0), torch.ones_like(u), u))
        radius = 1 + self.beta * torch.sin(self.frequency * theta)
        ahead = theta + self.omega
        return torch.stack([radius * torch.cos(ahead), radius * torch.sin(ahead)], dim=-1)

    def latents(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> Float[Tensor, "*b t 2"]:
        """Latent sequences, stationary from their first step, in float64."""
        for name, size in (("length", length), *(("batch", size) for size in batch)):
            if not isinstance(size, int) or size < 1:
                raise KbrError(
                    f"{name} must be a whole number, at least 1; got {size}. Set {name}."
                )
        return self._path(*_drawn(length, generator, batch))

    def _path(
        self, z: Float[Tensor, "*b 2"], noise: Float[Tensor, "*b s 2"]
    ) -> Float[Tensor, "*b t 2"]:
        """All latents after the burn-in, from a start and each step's standard normal noise."""
        path = []
        for eps in (self.sigma_z * noise).unbind(-2):
            z = self.step_mean(z) + eps
            path.append(z)
        return torch.stack(path[BURN_IN:], dim=-2)

    def trials(self, *, n_train: int, n_test: int, seeds: Sequence[int]) -> FilteringData:
        """The same as one by one: each seed draws its own numbers, and all paths go on together."""
        drawing = ("generate", "samples", "sample", "latents")
        if any(getattr(type(self), name) is not getattr(Oscillatory, name) for name in drawing):
            return super().trials(n_train=n_train, n_test=n_test, seeds=seeds)  # it draws otherwise
        lengths, generators = check_lengths(n_train, n_test), [as_generator(s) for s in seeds]
        samples = []
        for length in lengths:
            drawn = [(*_drawn(length, g), normal((length, 2), g)) for g in generators]
            start, noise, noise_x = (torch.stack(part) for part in zip(*drawn, strict=True))
            z = self._path(start, noise)
            samples += [z + self.sigma_x * noise_x, z]
        return FilteringData(**dict(zip(NAMES, samples, strict=True)))

    def sample(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> tuple[Float[Tensor, "*b t 2"], Float[Tensor, "*b t 2"]]:
        """Observations x and latents z; z equals what `latents` draws from the same generator."""
        z = self.latents(length, generator, batch)
        return z + self.sigma_x * normal(tuple(z.shape), generator), z

    def state_space(self) -> StateSpaceModel:
        """The true model, for the Kalman and particle filters.

        Its initial moments are those of the stationary latent, from 4096 simulated chains with a
        fixed seed (error about 0.01): only beta = 0 has a formula, Cov z = (1/2 + sigma_z^2) I, as
        the angle's noise grows where the ring narrows, so that M theta is not uniform. Samples of
        z_1 are one step from a uniformly drawn point of the circle: particles start on the ring.
        """
        eye = torch.eye(2, dtype=torch.float64)
        settled = self.latents(1, Generator().manual_seed(0), (4096,)).squeeze(-2)
        return StateSpaceModel(
            transition=self.step_mean,
            observation=_identity,
            transition_cov=self.sigma_z**2 * eye,
            observation_cov=self.sigma_x**2 * eye,
            initial_mean=settled.mean(0),
            initial_cov=settled.mT.cov(),
            sample_initial=self._sample_ring,
        )

    def _sample_ring(self, shape: Shape, generator: Generator) -> Float[Tensor, "*b 2"]:
        start = self.step_mean(uniform_on_circle(shape, generator))
        return start + self.sigma_z * normal((*shape, 2), generator)


def _drawn(length: int, generator: Generator, batch: Shape = ()) -> tuple[Tensor, Tensor]:
    """What chance decides of latent sequences: starts on the circle, and the noise of each step."""
    start = uniform_on_circle(batch, generator)
    return start, normal((*batch, BURN_IN + length, 2), generator)


@dataclass(frozen=True, kw_only=True)
class Rotation(Oscillatory):
    """The same equation with a constant radius: omega = 0.3, beta = 0."""

    omega: float = 0.3
    beta: float = 0.0


def _identity(z: Tensor) -> Tensor:
    return z
