"""First-person pictures of a maze with textured walls, floor and sky, many at a time.

The maze is a grid of square cells of side 1, open or solid; walls are as high as cells are wide. A
ray through a pixel leaves the eye at (x, y, eye) and meets the first solid cell, the floor, or the
sky; what it meets is a texture, at a point (u, v) and a distance. Every pixel of every picture is
then looked up at once, in the copy of its texture whose texels are about as large as the pixel.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Int, UInt8
from torch import Tensor

from kbr.core.errors import KbrError

CHUNK = 1 << 19  # pixels drawn at a time
SIDES = 4  # a wall is met going +x, -x, +y or -y


class WallHit(NamedTuple):
    """Where rays meet walls: depth along the view, texture, place across it (0 left .. 1 right)."""

    depth: Float[Tensor, "*b"]
    texture: Int[Tensor, "*b"]
    across: Float[Tensor, "*b"]
    lit: Float[Tensor, "*b"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """A maze and what it looks like.

    Textures: any number for walls, then the floor, then the sky's four sides (met going +x, -x,
    +y, -y); the side length is a power of two. `walls[i, j, s]` is the texture on side s of the
    cell with corners (i, j) and (i + 1, j + 1). The cells at the border must be solid.
    """

    solid: Bool[Tensor, "nx ny"]
    walls: Int[Tensor, "nx ny 4"]
    textures: UInt8[Tensor, "k 3 s s"]
    eye: float = 0.5  # height of the eye, in cells
    fog: float = 12.0  # distance over which light falls by 1/e

    def __post_init__(self) -> None:
        size = self.textures.shape[-1]
        if size < 2 or size & (size - 1):
            raise KbrError(f"textures must have a side of 2, 4, 8..; got {size}. Resize them.")
        edge = [self.solid[0], self.solid[-1], self.solid[:, 0], self.solid[:, -1]]
        if not all(bool(line.all()) for line in edge):
            raise KbrError("The maze must be closed: the cells at its border must be solid.")

    @property
    def floor(self) -> int:
        """Which texture is the floor."""
        return len(self.textures) - SIDES - 1

    @cached_property
    def pyramid(self) -> tuple[Float32[Tensor, "m 3"], Int[Tensor, " levels"]]:
        """All textures at full, half, quarter.. size as rows of colours; where each size starts."""
        level, parts = self.textures.to(torch.float32), []
        while True:
            parts.append(level.permute(0, 2, 3, 1).reshape(-1, 3))
            if level.shape[-1] == 1:
                break
            level = torch.nn.functional.avg_pool2d(level, 2)
        starts = torch.tensor([0, *(len(part) for part in parts[:-1])]).cumsum(0)
        return torch.cat(parts), starts


def draw(
    scene: Scene,
    position: tuple[float, float],
    yaw: Float[Tensor, " n"],
    *,
    height: int,
    width: int,
    field_of_view: float = 90.0,
) -> UInt8[Tensor, "n 3 height width"]:
    """Pictures at headings `yaw` (degrees, counter-clockwise from +x), seen from one position.

    Math: the ray through column c and row r is forward + a_c right + b_r up, with
          a_c = tan(fov / 2) (2c + 1 - width) / width,  b_r = tan(fov / 2) (height - 2r - 1) / width.
    """
    count = max(1, CHUNK // (height * width))
    half = math.tan(math.radians(field_of_view) / 2)
    aside = half * (2 * torch.arange(width) + 1 - width) / width
    upward = half * (height - 2 * torch.arange(height) - 1) / width
    parts = [_draw(scene, position, part, aside, upward) for part in yaw.float().split(count)]
    return torch.cat(parts)


def cast(scene: Scene, position: tuple[float, float], ray: Float[Tensor, "*b 2"]) -> WallHit:
    """The first wall that each horizontal ray meets.

    Math: crossings of the ray with the lines x = i (and y = j) are at t = (i - x) / ray_x; the wall
          is at the least t > 0 behind which the cell is solid.
    """
    lines = [_crossings(scene, position, ray, axis) for axis in (0, 1)]
    depth, cell = torch.cat([t for t, _ in lines], -1).min(-1)
    first = len(scene.solid) + 1
    side = torch.where(cell < first, (ray[..., 0] < 0).long(), 2 + (ray[..., 1] < 0).long())
    texture = torch.cat([texture for _, texture in lines], -1)
    texture = texture.gather(-1, cell.unsqueeze(-1)).squeeze(-1)
    point = torch.tensor(position) + depth.unsqueeze(-1) * ray
    along = torch.where(side < 2, point[..., 1], point[..., 0]).remainder(1)
    mirrored = (side == 0) | (side == 3)  # seen from there, the coordinate falls to the right
    lit = torch.tensor([1.0, 0.94, 0.88, 0.82])[side]  # a light from one side
    return WallHit(depth, texture, torch.where(mirrored, 1 - along, along), lit)


def _crossings(
    scene: Scene, position: tuple[float, float], ray: Float[Tensor, "*b 2"], axis: int
) -> tuple[Float[Tensor, "*b lines"], Int[Tensor, "*b lines"]]:
    """Depth (infinite where no wall begins) and wall texture at every grid line across an axis."""
    size = scene.solid.shape
    ahead = ray[..., axis].unsqueeze(-1)
    line = torch.arange(size[axis] + 1)
    t = (line - position[axis]) / ahead
    other = (position[1 - axis] + t * ray[..., 1 - axis].unsqueeze(-1)).floor()
    behind = line - (ahead < 0).long()
    inside = (other >= 0) & (other < size[1 - axis]) & (behind >= 0) & (behind < size[axis])
    cell = [behind.clamp(0, size[axis] - 1), other.nan_to_num(0.0).clamp(0, size[1 - axis] - 1)]
    i, j = (cell[axis].long(), cell[1 - axis].long())
    met = inside & scene.solid[i, j] & (t > 0)
    texture = scene.walls[i, j, 2 * axis + (ahead < 0).long()]
    return torch.where(met, t, torch.inf), texture


def _draw(
    scene: Scene,
    position: tuple[float, float],
    yaw: Float[Tensor, " n"],
    aside: Float[Tensor, " w"],
    upward: Float[Tensor, " h"],
) -> UInt8[Tensor, "n 3 h w"]:
    turn = torch.deg2rad(yaw).unsqueeze(-1)
    ray = torch.stack([turn.cos() + aside * turn.sin(), turn.sin() - aside * turn.cos()], dim=-1)
    hit = WallHit(*(part.unsqueeze(-2) for part in cast(scene, position, ray)))  # [n 1 w]
    up = upward.unsqueeze(-1)  # [h 1]
    size = scene.textures.shape[-1]
    pixel = float(aside[1] - aside[0]) if len(aside) > 1 else 1.0

    level_at_wall = scene.eye + hit.depth * up
    depth = torch.minimum(hit.depth, scene.eye / (-up).clamp_min(1e-6))
    x, y = (
        p + depth * part.unsqueeze(-2) for p, part in zip(position, ray.unbind(-1), strict=True)
    )
    dx, dy = (part.unsqueeze(-2) for part in ray.unbind(-1))
    wide = torch.maximum(dx.abs(), dy.abs())
    along_x = dx.abs() >= dy.abs()
    sky_side = torch.where(along_x, (dx < 0).long(), 2 + (dy < 0).long())
    sky_across = torch.where(along_x, -dy * dx.sign(), dx * dy.sign()) / wide

    is_floor, is_sky = level_at_wall < 0, level_at_wall > 1
    choose = _choice(is_floor, is_sky)
    texture = choose(hit.texture, torch.tensor(scene.floor), scene.floor + 1 + sky_side)
    u = choose(hit.across, x.remainder(1), 0.5 + 0.5 * sky_across)
    v = choose(1 - level_at_wall, y.remainder(1), 0.5 - 0.5 * up / wide)
    # Texels a pixel covers, across; the floor is also foreshortened: the geometric mean of both.
    covered = size * pixel * depth
    covered = choose(covered, covered * (depth / scene.eye).clamp_min(1).sqrt(), size * pixel / 2)
    far = (depth * ray.norm(dim=-1).unsqueeze(-2) / -scene.fog).exp()
    shade = choose(hit.lit * far, far, torch.tensor(1.0))
    colours = _look_up(scene, texture, u, v, covered)
    return (shade.unsqueeze(-1) * colours).round().to(torch.uint8).permute(0, 3, 1, 2)


def _choice(is_floor: Bool[Tensor, "n h w"], is_sky: Bool[Tensor, "n h w"]):
    return lambda wall, floor, sky: torch.where(is_floor, floor, torch.where(is_sky, sky, wall))


def _look_up(
    scene: Scene,
    texture: Int[Tensor, "*b"],
    u: Float[Tensor, "*b"],
    v: Float[Tensor, "*b"],
    covered: Float[Tensor, "*b"],
) -> Float32[Tensor, "*b 3"]:
    """Colours at (u, v), between four texels of the copy that has about one texel a pixel."""
    colours, starts = scene.pyramid
    level = covered.clamp_min(1).log2().long().clamp_max(len(starts) - 1)
    side = scene.textures.shape[-1] >> level
    start = starts[level] + texture * side * side
    edge = side - 1
    column, row = (c * side - 0.5 for c in (u, v))
    left, top = column.floor(), row.floor()
    right_part, low_part = (column - left).unsqueeze(-1), (row - top).unsqueeze(-1)
    i0, j0 = (c.long().clamp_min(0) for c in (top, left))
    i1, j1 = torch.minimum((top.long() + 1), edge), torch.minimum(left.long() + 1, edge)
    upper, lower = start + i0 * side, start + i1 * side
    above = torch.lerp(colours[upper + j0], colours[upper + j1], right_part)
    below = torch.lerp(colours[lower + j0], colours[lower + j1], right_part)
    return torch.lerp(above, below, low_part)
