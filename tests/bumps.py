"""A turning position, seen as twelve numbers: small data for filters with a network."""

import torch

from kbr.core.datasets.dynamics import Rotation


def turning(seed=1000):
    """Observations x and latents z of eight sequences of sixty steps."""
    generator = torch.Generator().manual_seed(seed)
    z = Rotation(sigma_z=0.1).latents(60, generator, (8,))
    return seen(z, generator), z


def seen(z, generator):
    """Twelve numbers that tell a position with noise."""
    places = torch.linspace(-1.5, 1.5, 6, dtype=torch.float64)
    noisy = z + 0.3 * torch.randn(z.shape, generator=generator, dtype=z.dtype)
    return torch.exp(-(noisy.unsqueeze(-1) - places).square() / 0.3).flatten(-2)
