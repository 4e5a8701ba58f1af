"""dSprites images drawn from their formulas: squares, ellipses and hearts on 64 x 64 pixels.

An image is given by five indices (shape, scale, orientation, x, y) in the dataset's own coding, so
that `SpriteRenderer` and the published file (`dsprites_file`) are sources of the same images.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer, UInt8
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import check_sizes

LATENTS = ("shape", "scale", "orientation", "x", "y")
SIZES = (3, 6, 40, 32, 32)  # how many values each latent takes; in the file the last runs fastest
PIXELS = 64

# The constants below were read off 172 published frames. Mapped back to a sprite's own axes, the
# pixel centres that are white and those that are black are split by these outlines (lengths in
# pixels at scale 1): all of them for squares and ellipses, all but 2 for the 112 hearts. A pixel
# is white where its centre is inside (the originals have no anti-aliasing).
ORIGIN, SPAN = 16.0, 32.0  # the origin is at pixel ORIGIN + SPAN (x, y), from the top left corner
SQUARE = 9.598  # half a side; the frames leave 9.5966 to 9.5998
ELLIPSE = (12.766, 7.2142)  # half axes at orientation 0, wide and high
HEART = (9.59529, 0.662183, -1.43734)  # the classic heart curve: width, height and vertical shift

REACH = 14  # no sprite of scale 1 goes further than 13.6 pixels from its origin
WINDOW = 2 * REACH + 1

Plane = Float[np.ndarray, "k 29 29"]  # coordinates of WINDOW x WINDOW pixel centres, k sprites
Mask = Bool[np.ndarray, "k 29 29"]


@runtime_checkable
class SpriteSource(Protocol):
    """Where dSprites images come from: the renderer here, or the published file."""

    def images(self, classes: Integer[Tensor, "n 5"]) -> UInt8[Tensor, "n 64 64"]:
        """Images in {0, 1}, rows downwards, for indices (shape, scale, orientation, x, y)."""
        ...


@dataclass(frozen=True, kw_only=True)
class SpriteRenderer:
    """Draws dSprites images.

    Math: pixel (i, j) is 1 where R(theta) (j + .5 - c_x, i + .5 - c_y) / scale lies inside the
          outline, with c = 16 + 32 (x, y) and R(theta) = [[cos, -sin], [sin, cos]].
    Ref:  Matthey et al. 2017, dSprites.

    y points down and theta turns the sprite counter-clockwise as seen. `chunk` bounds the memory:
    as many images are drawn at once.
    """

    chunk: int = 32

    def __post_init__(self) -> None:
        check_sizes(chunk=self.chunk)

    def images(self, classes: Integer[Tensor, "n 5"]) -> UInt8[Tensor, "n 64 64"]:
        values = latent_values(classes)
        shape, scale, orientation = values[:, 0].long() - 1, values[:, 1], values[:, 2]
        return self.draw(shape=shape, scale=scale, orientation=orientation, position=values[:, 3:])

    def draw(
        self,
        *,
        shape: Integer[Tensor, " n"],
        scale: Float[Tensor, " n"],
        orientation: Float[Tensor, " n"],
        position: Float[Tensor, "n 2"],
    ) -> UInt8[Tensor, "n 64 64"]:
        """Images at any position (x, y) in [0, 1], orientation in radians and scale in [.01, 1].

        `shape` is an index: 0 square, 1 ellipse, 2 heart.
        """
        _check_between(shape, 0, len(OUTLINES) - 1, name="shape")
        _check_between(scale, 0.01, 1, name="scale")
        _check_between(position, 0, 1, name="position")
        if not bool(torch.isfinite(orientation).all()):
            raise KbrError("orientation must be finite; got NaN or infinity. Set orientation.")
        # numpy: many small steps, which torch's threads only slow down on a busy machine.
        kind = shape.cpu().numpy()
        values = [v.detach().cpu().double().numpy() for v in (scale, orientation, position)]
        out = np.zeros((len(kind), PIXELS, PIXELS), dtype=np.uint8)
        for index, inside in enumerate(OUTLINES):
            alike = np.flatnonzero(kind == index)
            for start in range(0, len(alike), self.chunk):
                rows = alike[start : start + self.chunk]
                mask, pixel = _window(inside, *(v[rows] for v in values))
                out[rows[:, None, None], pixel[:, 1, :, None], pixel[:, 0, None, :]] = mask
        return torch.from_numpy(out).to(shape.device)


def latent_values(classes: Integer[Tensor, "n 5"]) -> Float[Tensor, "n 5"]:
    """The dataset's values for its indices, in float64.

    Shape 1, 2, 3; scale .5 to 1; orientation 0 to 2 pi, both included (39 is 0 again);
    x and y 0 to 1.
    """
    check_classes(classes)
    low = torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64, device=classes.device)
    high = low.new_tensor([3.0, 1.0, 2 * math.pi, 1.0, 1.0])
    return low + (high - low) * classes / (low.new_tensor(SIZES) - 1)


def check_classes(classes: Integer[Tensor, "n 5"], *, sizes: tuple[int, ...] = SIZES) -> None:
    """Every index exists; says which latent has one that does not."""
    if classes.ndim != 2 or classes.shape[1] != len(LATENTS):
        raise KbrError(
            f"classes must have shape [n, 5], indices of {', '.join(LATENTS)}; got "
            f"{tuple(classes.shape)}."
        )
    for column, name, size in zip(classes.unbind(-1), LATENTS, sizes, strict=True):
        _check_between(column, 0, size - 1, name=name)


def _check_between(value: Tensor, low: int | float, high: int | float, *, name: str) -> None:
    good = (value >= low) & (value <= high)  # False for NaN
    if not bool(good.all()):
        raise KbrError(
            f"{name} must be between {low} and {high}; got {value[~good][0].item()}. Set {name}."
        )


def _in_square(u: Plane, v: Plane) -> Mask:
    mask: Mask = (np.abs(u) < SQUARE) & (np.abs(v) < SQUARE)
    return mask


def _in_ellipse(u: Plane, v: Plane) -> Mask:
    mask: Mask = (u / ELLIPSE[0]) ** 2 + (v / ELLIPSE[1]) ** 2 < 1
    return mask


def _in_heart(u: Plane, v: Plane) -> Mask:
    """Math: outline u = a sin^3 t,  v = c - b (13 cos t - 5 cos 2t - 2 cos 3t - cos 4t).

    At a given u it is crossed twice: cos t = +-q, q^2 = 1 - |u / a|^(2/3), above and below. With
    Chebyshev polynomials for cos kt the even and the odd powers of q separate.
    """
    a, b, c = HEART
    q2 = 1 - np.cbrt((u / a) ** 2)  # negative where |u| > a
    even = c - b * (4 - 2 * q2 - 8 * q2**2)
    odd = b * np.sqrt(np.maximum(q2, 0)) * (19 - 8 * q2)
    mask: Mask = (q2 > 0) & (np.abs(v - even) < odd)
    return mask


OUTLINES = (_in_square, _in_ellipse, _in_heart)


def _window(
    inside: Callable[[Plane, Plane], Mask],
    scale: np.ndarray,
    orientation: np.ndarray,
    position: np.ndarray,
) -> tuple[Mask, np.ndarray]:
    """Masks [k, WINDOW, WINDOW] around each sprite's origin, and their pixels [k, 2, WINDOW]."""
    centre = ORIGIN + SPAN * position
    corner = np.floor(centre).astype(np.int64) - REACH
    pixel = corner[..., None] + np.arange(WINDOW)
    offset = (pixel + 0.5 - centre[..., None]) / scale[:, None, None]
    dx, dy = offset[:, 0, None, :], offset[:, 1, :, None]
    cos, sin = np.cos(orientation)[:, None, None], np.sin(orientation)[:, None, None]
    return inside(cos * dx - sin * dy, sin * dx + cos * dy), pixel
