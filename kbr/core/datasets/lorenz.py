"""A benchmark of learned filters: the Lorenz attractor, seen as a spot in noisy images."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Float64
from torch import Generator, Tensor

from kbr.core.datasets.drawing import Shape, normal
from kbr.core.datasets.several import SeveralSequences, check_share
from kbr.core.errors import KbrError
from kbr.core.inputs import check_noise, check_positive
from kbr.core.tables import blocks

PIXELS = 28
REACH = (30.0, 40.0)  # of an image: z_1 from -30 to 30 to the right, z_2 from -40 to 40 downwards
NARROWEST = 3.0  # variance of the spot at z_3 = 0
DECIMALS = 3  # that are kept of its density
ORDER = 5  # of the series of the matrix exponential
FRAMES = 4096  # drawn at once


@dataclass(frozen=True, kw_only=True)
class LorenzImages(SeveralSequences):
    """The Lorenz attractor with noise; an image shows z_1 and z_2 as a place and z_3 as a width.

    Math: z_0 = (1, 1, 1),  z_t+1 = F(z_t) z_t + N(0, sigma_z^2 I),  F(z) = sum_j<=5 (A(z) dt)^j/j!,
          A(z) = [[-10, 10, 0], [28 - z_3, -1, 0], [z_2, 0, -8/3]];
          x_t: the density of N((z_1, z_2), (z_3 / 2 + 3) I) at 28 x 28 places, rounded to three
          decimals and scaled to [0, 1]; each pixel is black or white with probability p.
    Ref:  Buchnik et al. 2023 (Latent-KalmanNet), from whose published networks the 3 was found.

    `p` is the share of pixels with salt-and-pepper noise, half of them white.
    """

    p: float = 0.1
    sigma_z: float = 0.1**0.5
    dt: float = 0.02
    length: int = 200
    test_length: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.p, name="p")
        check_noise(sigma_z=self.sigma_z)
        check_positive(self.dt, name="dt")

    def step_mean(self, z: Float[Tensor, "*b 3"]) -> Float[Tensor, "*b 3"]:
        """Math: F(z) z, the powers of A(z) dt applied to z one after the other."""
        _, z_2, z_3 = z.unbind(-1)
        term, total = z, z
        for j in range(1, ORDER + 1):
            a, b, c = term.unbind(-1)
            rows = (10 * (b - a), (28 - z_3) * a - b, z_2 * a - 8 / 3 * c)
            term = torch.stack(rows, -1) * (self.dt / j)
            total = total + term
        return total

    def latents(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> Float64[Tensor, "*b t 3"]:
        """States 1 .. length after the start, which is the same for all."""
        z = torch.ones(*batch, 3, dtype=torch.float64, device=generator.device)
        path = []
        for eps in (self.sigma_z * normal((*batch, length, 3), generator)).unbind(-2):
            z = self.step_mean(z) + eps
            path.append(z)
        found = torch.stack(path, -2)
        if not bool((found[..., 2] / 2 + NARROWEST > 0).all()):
            raise KbrError(
                f"the state left the attractor: z_3 is {float(found[..., 2].min()):.3g}, where the "
                f"spot has no width. Lower sigma_z, now {self.sigma_z:g}, or dt, {self.dt:g}."
            )
        return found

    def frames(self, z: Float[Tensor, "*b 3"]) -> Float32[Tensor, "*b 1 28 28"]:
        """Images without noise."""
        z = z.double()
        right, down = (torch.linspace(-r, r, PIXELS).to(z) for r in REACH)
        variance = (z[..., 2] / 2 + NARROWEST)[..., None, None]
        away = (down[:, None] - z[..., 1, None, None]).square()
        away = away + (right - z[..., 0, None, None]).square()
        density = torch.exp(-away / (2 * variance)) / (2 * torch.pi * variance)
        rounded = density.round(decimals=DECIMALS)
        low, high = rounded.amin((-2, -1), keepdim=True), rounded.amax((-2, -1), keepdim=True)
        # A spot so wide or far away that nothing is left of it gives a black image.
        spread = torch.where(high > low, high - low, torch.ones_like(high))
        return ((rounded - low) / spread).float().unsqueeze(-3)

    def sample(
        self, length: int, generator: Generator, batch: Shape = ()
    ) -> tuple[Float32[Tensor, "*b t 1 28 28"], Float64[Tensor, "*b t 3"]]:
        z = self.latents(length, generator, batch)
        flat = z.reshape(-1, 3)
        x = torch.empty(len(flat), 1, PIXELS, PIXELS, device=z.device)
        for rows in blocks(len(flat), FRAMES):
            some = self.frames(flat[rows])
            drawn = torch.rand(some.shape, generator=generator, device=some.device)
            x[rows] = torch.where(drawn < self.p, (drawn < self.p / 2).float(), some)
        return x.reshape(*z.shape[:-1], *x.shape[1:]), z
