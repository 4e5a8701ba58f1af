"""Pictures to hang on the walls of a maze, so that they can be told apart."""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

# Coordinates run from -1 to 1 across a picture, to the right and downwards.
SHAPES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda u, v: torch.hypot(u, v) < 1,
    lambda u, v: (torch.hypot(u, v) - 0.75).abs() < 0.25,
    lambda u, v: torch.minimum(u.abs(), v.abs()) < 0.4,
    lambda u, v: u.abs() + v.abs() < 1,
    lambda u, v: 2 * u.abs() - v < 1,
)
COLOURS = ((224, 64, 64), (48, 96, 192), (240, 160, 168), (48, 48, 56), (224, 176, 32))
PAPER, FRAME = (216, 216, 208), (112, 112, 122)
PICTURES = tuple(product(SHAPES, COLOURS))


def hang(
    wall: Tensor, shape: Callable[[Tensor, Tensor], Tensor], colour: tuple[int, int, int]
) -> Tensor:
    """A wall [3, s, s] uint8 with a framed shape in its middle, half as wide as the wall."""
    size = wall.shape[-1]
    line = 2 * (2 * torch.arange(size) + 1 - size) / size  # the picture is between -1 and 1
    u, v = line.expand(size, size), line.unsqueeze(-1).expand(size, size)
    far = torch.maximum(u.abs(), v.abs())
    layers = (
        (far < 1, FRAME),
        (far < 0.85, PAPER),
        ((far < 0.65) & shape(u / 0.65, v / 0.65), colour),
    )
    for where, fill in layers:
        wall = torch.where(where, torch.tensor(fill, dtype=torch.uint8)[:, None, None], wall)
    return wall
