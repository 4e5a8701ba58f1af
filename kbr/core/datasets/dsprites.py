"""The paper's image task: watch a dSprites heart run around a ring, in pixels with noise."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Generator, Tensor

from kbr.core.datasets.drawing import Shape, add_noise, normal_mass
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.datasets.sprites import (
    PIXELS,
    SIZES,
    SPAN,
    SpriteRenderer,
    SpriteSource,
    check_classes,
)
from kbr.core.errors import KbrError
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.inputs import check_finite, check_noise, check_positive

GRID = SIZES[-1]  # positions along either axis


@dataclass(frozen=True, kw_only=True)
class DSprites(Oscillatory):
    """Images of one sprite whose position is a noisy view of the latent z = (u, v).

    Math: z_t+1 = (1 + beta sin(M theta_t)) (cos(theta_t + omega), sin(theta_t + omega)) + eps_Z,
          x_t = sprite(g(z_t + eps_X)) + pixel_noise N(0, I),  eps ~ N(0, sigma^2 I),
          g: the nearest of 32 x 32 grid positions spread evenly over [-extent, extent]^2.
    Ref:  Xu et al. 2022, section 5.3 (dSprite setting; pixel variance .01); dynamics as in 5.2.

    u runs to the right, v downwards. A position outside [-extent, extent]^2 is moved to the nearest
    point of that square: the sprite then sits at the border of the grid. `source` gives the images:
    `SpriteRenderer()` needs no file, `DSpritesFile(path=...)` reads the published ones.
    """

    source: SpriteSource = field(default_factory=SpriteRenderer)
    sigma_x: float = 0.05
    pixel_noise: float = 0.1
    shape: int = 2
    scale: int = 0
    orientation: int = 0
    extent: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.extent, name="extent")
        check_noise(pixel_noise=self.pixel_noise)
        sprite = {"shape": self.shape, "scale": self.scale, "orientation": self.orientation}
        for name, index in sprite.items():
            if not isinstance(index, int):
                raise KbrError(
                    f"{name} must be an index of the dataset, a whole number; got {index}. Set "
                    f"{name} (scale 0 is the smallest, orientation 0 upright)."
                )
        check_classes(torch.tensor([[*sprite.values(), 0, 0]]))

    @property
    def window(self) -> tuple[float, float, float, float]:
        """Where a frame's left, right, lower and upper border lie in the plane of z."""
        reach = self.extent * PIXELS / SPAN  # the grid of positions spans the middle half
        return -reach, reach, reach, -reach

    @cached_property
    def table(self) -> Float32[Tensor, "1024 4096"]:
        """The sprite at all grid positions, without noise; position (i, j) is in row 32 i + j."""
        i, j = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
        sprite = [torch.full_like(i, k) for k in (self.shape, self.scale, self.orientation)]
        classes = torch.stack([*sprite, i, j], dim=-1).flatten(0, 1)
        return self.source.images(classes).flatten(1).to(torch.float32)

    def grid(self, position: Float[Tensor, "*b 2"]) -> Int[Tensor, "*b 2"]:
        """Indices 0..31 of the grid position nearest to (u, v)."""
        check_finite(position, name="position")
        unit = (position / (2 * self.extent) + 0.5).clamp(0, 1)
        return ((GRID - 1) * unit).round().long()

    def frames(self, position: Float[Tensor, "*b 2"]) -> Float32[Tensor, "*b 1 64 64"]:
        """Images without noise of the sprite at positions (u, v)."""
        i, j = self.grid(position).unbind(-1)
        images = self.table.to(position.device)[GRID * i + j]
        return images.reshape(*position.shape[:-1], 1, PIXELS, PIXELS)

    def sample(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> tuple[Float32[Tensor, "*b t 1 64 64"], Float64[Tensor, "*b t 2"]]:
        position, z = super().sample(length, generator, batch)
        return add_noise(self.frames(position), self.pixel_noise, generator), z

    def log_likelihood(
        self, x: Float[Tensor, "*b 1 64 64"], z: Float[Tensor, "*b n 2"]
    ) -> Float[Tensor, "*b n"]:
        """log p(x | z), for the particle filter that knows the true model.

        Math: p(x | z) = sum_ij P(i | u) P(j | v) N(x; s_ij, pixel_noise^2 I),  s_ij the table's
              images,  P(i | u) the chance that u + N(0, sigma_x^2) is rounded to grid position i.

        Exact: the position noise is summed out over the grid, not sampled. The pixels enter through
        one product of x with the table; a latent then costs 32 x 32 multiplications. A latent
        some 37 sigma_x or more from everything that x allows has log-likelihood -inf.
        """
        check_positive(self.pixel_noise, name="pixel_noise")
        table, flat = self.table.to(x.device), x.flatten(-3).to(torch.float32)
        square = flat.double().square().sum(-1, keepdim=True)
        cross = (flat @ table.mT).double() - 0.5 * table.sum(-1).double()  # pixels are 0 or 1
        variance = self.pixel_noise**2
        log_p = (cross - 0.5 * square) / variance
        log_p -= 0.5 * PIXELS**2 * math.log(2 * math.pi * variance)
        best = log_p.amax(-1, keepdim=True)
        likelihood = (log_p - best).exp().reshape(*log_p.shape[:-1], GRID, GRID)
        chance_i, chance_j = self._rounding(z.double()).unbind(-2)
        value: Tensor = ((chance_i @ likelihood) * chance_j).sum(-1).log() + best
        return value.to(z.dtype)

    def _rounding(self, z: Float64[Tensor, "*b n 2"]) -> Float64[Tensor, "*b n 2 32"]:
        """P(i | u): the normal mass between the borders of grid cell i; the last cells are open."""
        border = 2 * (torch.arange(GRID + 1, device=z.device).to(z) - 0.5) / (GRID - 1) - 1
        border[0], border[-1] = -torch.inf, torch.inf
        border *= self.extent
        # sigma_x = 0 means a jump at the border; a tiny width gives the same without 0 / 0.
        gap = (border - z.unsqueeze(-1)) / max(self.sigma_x, 1e-12)
        return normal_mass(gap[..., :-1], gap[..., 1:])

    def state_space(self) -> StateSpaceModel:
        """The true model, for the particle filter."""
        return replace(
            super().state_space(),
            observation=None,
            observation_cov=None,
            observation_shape=(1, PIXELS, PIXELS),
            log_likelihood=self.log_likelihood,
        )
