"""A known state-space model, given by functions: what the Kalman and particle filters take.

The classical filters are told the dynamics and the likelihood that kernel Bayes' rule learns from
samples; they are the baselines of the paper and, on linear-Gaussian models, the exact answer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import ArrayLike, as_tensor

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StateSpaceModel:
    """Latent Markov chain z_t with observations x_t; the first observation x_1 sees z_1 ~ initial.

    Math: z_1 ~ N(initial_mean, initial_cov),  z_t+1 = transition(z_t) + N(0, transition_cov),
          x_t = observation(z_t) + N(0, observation_cov).
    Ref:  Särkkä 2013, Bayesian Filtering and Smoothing, section 4.1.

    Functions take leading batch dimensions: `transition` [*b dz] -> [*b dz], `observation`
    [*b dz] -> [*b dx]. Covariances may be singular (zero noise). For models that are not Gaussian
    the particle filter uses, where given, `log_likelihood(x [*b ...], z [*b n dz]) -> [*b n]`,
    `sample_transition(z [*b dz], generator)` and `sample_initial(shape, generator) -> [*shape dz]`.
    With a `log_likelihood`, `observation` may be left out; `observation_shape` then says which
    trailing dimensions of x are one observation, e.g. (64, 64) for images.
    """

    transition: Map
    transition_cov: Float[Tensor, "dz dz"]
    initial_mean: Float[Tensor, " dz"]
    initial_cov: Float[Tensor, "dz dz"]
    observation: Map | None = None
    observation_cov: Float[Tensor, "dx dx"] | None = None
    observation_shape: tuple[int, ...] | None = None
    log_likelihood: Callable[[Tensor, Tensor], Tensor] | None = None
    sample_transition: Callable[[Tensor, Generator], Tensor] | None = None
    sample_initial: Callable[[tuple[int, ...], Generator], Tensor] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.initial_mean, Tensor) or self.initial_mean.ndim != 1:
            raise KbrError(f"initial_mean must be a tensor [dz]; got {_shown(self.initial_mean)}.")
        dz = self.initial_mean.shape[0]
        check_covariance(self.transition_cov, size=dz, name="transition_cov")
        check_covariance(self.initial_cov, size=dz, name="initial_cov")
        if (self.observation is None) != (self.observation_cov is None):
            raise KbrError("observation and observation_cov belong together; got one. Set both.")
        if self.observation_cov is not None:
            check_covariance(self.observation_cov, size=None, name="observation_cov")
            vector = (self.observation_cov.shape[0],)
            if self.observation_shape not in (None, vector):
                raise KbrError(
                    f"observation_shape must be {vector} to go with observation_cov; got "
                    f"{self.observation_shape}. Leave observation_shape out."
                )
            object.__setattr__(self, "observation_shape", vector)
        elif self.log_likelihood is None or self.observation_shape is None:
            raise KbrError(
                "A model needs observation and observation_cov, or log_likelihood and "
                "observation_shape; got neither pair. Set one of them."
            )

    def __repr__(self) -> str:
        shape = list(self.observation_shape or ())
        return f"StateSpaceModel(z [{len(self.initial_mean)}], x {shape})"

    def to(self, *, device: torch.device, dtype: torch.dtype) -> "StateSpaceModel":
        """The same model with its moments on another device, in another precision."""
        cov_x = self.observation_cov
        return replace(
            self,
            transition_cov=self.transition_cov.to(device, dtype),
            initial_mean=self.initial_mean.to(device, dtype),
            initial_cov=self.initial_cov.to(device, dtype),
            observation_cov=None if cov_x is None else cov_x.to(device, dtype),
        )

    def observations(self, x: ArrayLike) -> tuple[Tensor, Bool[Tensor, "*s t"]]:
        """Observations [*s t *observation_shape], and which of them are there.

        An observation with a NaN or infinite entry counts as missing (its entries become 0).
        Scalar observations may come as [t].
        """
        tensor, event = as_tensor(x, name="x"), self.observation_shape
        assert event is not None  # __post_init__ saw to it
        if event == (1,) and tensor.ndim == 1:
            tensor = tensor.unsqueeze(-1)
        lead = tensor.ndim - len(event)
        if lead < 1 or tensor.shape[lead:] != event:
            raise KbrError(
                f"x must have shape [..., T, {', '.join(map(str, event))}] for this model; got "
                f"{tuple(tensor.shape)}. Change x, or the model's observation_cov."
            )
        if tensor.shape[lead - 1] == 0:
            raise KbrError(f"x must have at least one time step; got shape {tuple(tensor.shape)}.")
        finite = torch.isfinite(tensor)
        observed = finite.flatten(lead).all(-1) if event else finite
        return torch.where(finite, tensor, torch.zeros_like(tensor)), observed

    def draw_initial(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        want = (*shape, self.initial_mean.shape[0])
        if self.sample_initial is not None:
            draw = self.sample_initial(shape, generator).to(self.initial_mean)
            return check_shape(draw, want, name="sample_initial")
        return add_noise(self.initial_mean.expand(want), self.initial_cov, generator)

    def draw_transition(self, z: Float[Tensor, "*b dz"], generator: Generator) -> Tensor:
        """A sample of z_t+1 for every z_t."""
        if self.sample_transition is not None:
            draw = self.sample_transition(z, generator)
            return check_shape(draw, tuple(z.shape), name="sample_transition")
        mean = check_shape(self.transition(z), tuple(z.shape), name="transition")
        return add_noise(mean, self.transition_cov, generator)

    def log_density(self, x: Tensor, z: Float[Tensor, "*b n dz"]) -> Float[Tensor, "*b n"]:
        """log p(x | z) of one observation x [*b ...] at n latents each.

        Math: log N(x; h(z), R) = -(|L^-1 (x - h(z))|^2 + dx log 2 pi) / 2 - log det L,  R = LL'.
        """
        if self.log_likelihood is not None:
            return check_shape(
                self.log_likelihood(x, z), tuple(z.shape[:-1]), name="log_likelihood"
            )
        assert self.observation is not None  # __post_init__ saw to it
        assert self.observation_cov is not None
        root, info = torch.linalg.cholesky_ex(self.observation_cov)
        if bool(info):
            raise KbrError(
                "A likelihood needs a positive definite observation_cov; it is singular. Set the "
                "observation noise (sigma_x) greater than zero, or give a log_likelihood."
            )
        dx = x.shape[-1]
        value = check_shape(self.observation(z), (*z.shape[:-1], dx), name="observation")
        error = (x.unsqueeze(-2) - value).reshape(-1, dx)
        square: Tensor = torch.linalg.solve_triangular(root, error.mT, upper=False).square().sum(0)
        log_det = root.diagonal().log().sum() + 0.5 * dx * math.log(2 * math.pi)
        log_p: Tensor = -0.5 * square - log_det
        return log_p.reshape(z.shape[:-1])


def covariance_root(cov: Float[Tensor, "*b d d"]) -> Float[Tensor, "*b d d"]:
    """A matrix L with L L' = cov: Cholesky, or V max(E, 0)^.5 of cov = VEV' if cov is singular."""
    root: Tensor
    root, info = torch.linalg.cholesky_ex(cov)
    if not bool((info > 0).any()):
        return root
    values, vectors = torch.linalg.eigh(cov)
    spectral = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    return torch.where((info > 0)[..., None, None], spectral, root)


def add_noise(
    mean: Float[Tensor, "*b d"], cov: Float[Tensor, "d d"], generator: Generator
) -> Float[Tensor, "*b d"]:
    """One draw of N(mean, cov) for every mean."""
    noise = torch.randn(
        mean.shape, generator=generator, device=generator.device, dtype=mean.dtype
    ).to(mean.device)
    return mean + noise @ covariance_root(cov).mT


def check_shape(value: Tensor, shape: tuple[int, ...], *, name: str) -> Tensor:
    """What a model's function returned has the shape it must have."""
    if tuple(value.shape) != shape:
        raise KbrError(
            f"{name} must return shape {shape} here; got {tuple(value.shape)}. Make the model's "
            f"{name} accept leading batch dimensions."
        )
    return value


def check_covariance(cov: Tensor, *, size: int | None, name: str) -> None:
    """Square, of the latent's size, symmetric, with no negative eigenvalue beyond rounding."""
    if not isinstance(cov, Tensor) or cov.ndim != 2 or cov.shape[0] != (size or cov.shape[1]):
        want = "[dx, dx]" if size is None else f"[{size}, {size}]"
        raise KbrError(f"{name} must be a tensor {want}; got {_shown(cov)}. Change {name}.")
    if cov.shape[0] != cov.shape[1]:
        raise KbrError(f"{name} must be square; got {_shown(cov)}. Change {name}.")
    wide = cov.detach().double()
    slack = 1e-6 * float(wide.abs().max()) if bool(torch.isfinite(wide).all()) else -1.0
    if slack < 0 or bool(((wide - wide.mT).abs() > slack).any()):
        raise KbrError(f"{name} must be finite and symmetric; got {wide.tolist()}. Change {name}.")
    least = float(torch.linalg.eigvalsh(wide)[0])
    if least < -slack:
        raise KbrError(f"{name} must have no negative eigenvalue; got {least:.3g}. Change {name}.")


def _shown(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
