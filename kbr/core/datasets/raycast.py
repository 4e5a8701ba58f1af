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
from torch.nn.functional import avg_pool2d, embedding

from kbr.core.errors import KbrError

CHUNK = 1 << 16  # pixels drawn at a time: what fits the processor's cache
SIDES = 4  # a wall is met going +x, -x, +y or -y


class WallHit(NamedTuple):
    """Where rays meet walls: depth along the view, texture, place across it (0 left .. 1 right)."""

    depth: Float[Tensor, "*b"]
    texture: Int[Tensor, "*b"]
    across: Float[Tensor, "*b"]
    lit: Float[Tensor, "*b"]


class Surface(NamedTuple):
    """What pixels show: a texture at (u, v), how much of it a unit of slope spans, how bright.

    The parts broadcast to [n h w]. v runs downwards.
    """

    texture: Int[Tensor, "..."]
    u: Float[Tensor, "..."]
    v: Float[Tensor, "..."]
    stretch: Float[Tensor, "..."]
    shade: Float[Tensor, "..."]


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
    fog: float = 25.0  # distance over which light falls by 1/e

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
            level = avg_pool2d(level, 2)
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
          a_c = p (c - (w - 1) / 2),  b_r = p ((h - 1) / 2 - r),  p = 2 tan(fov / 2) / w;
          it falls on the wall at height eye + depth b_r, if that is between 0 and 1.
    """
    count = max(1, CHUNK // (height * width))
    pixel = 2 * math.tan(math.radians(field_of_view) / 2) / width
    aside = pixel * (torch.arange(width) - 0.5 * (width - 1))
    up = pixel * (0.5 * (height - 1) - torch.arange(height)).unsqueeze(-1)

    def pictures(yaw: Float[Tensor, " m"]) -> UInt8[Tensor, "m 3 height width"]:
        turn = torch.deg2rad(yaw).unsqueeze(-1)
        slopes = (turn.cos() + aside * turn.sin(), turn.sin() - aside * turn.cos())
        ray = torch.stack(slopes, dim=-1)
        hit = WallHit(*(part.unsqueeze(-2) for part in cast(scene, position, ray)))  # [m 1 w]
        ray = ray.unsqueeze(-3)  # [m 1 w 2]
        level = scene.eye + hit.depth * up  # where the ray is when it has come to the wall
        lit = hit.lit * _light(scene, hit.depth, ray)
        surfaces = (
            _floor(scene, position, ray, up),
            _sky(scene, ray, up),
            Surface(hit.texture, hit.across, 1 - level, hit.depth, lit),
        )
        is_floor, is_sky = level < 0, level > 1
        texture, u, v, stretch, shade = (
            torch.where(is_floor, floor, torch.where(is_sky, sky, wall))
            for floor, sky, wall in zip(*surfaces, strict=True)
        )
        colours = _look_up(scene, texture, u, v, scene.textures.shape[-1] * pixel * stretch)
        return (shade.unsqueeze(-1) * colours).round().to(torch.uint8).permute(0, 3, 1, 2)

    return torch.cat([pictures(part) for part in torch.split(yaw.float(), count)])


def cast(scene: Scene, position: tuple[float, float], ray: Float[Tensor, "*b 2"]) -> WallHit:
    """The first wall that each horizontal ray from a free cell meets.

    Math: crossings of the ray with the lines x = i (and y = j) are at t = (i - x) / ray_x; the wall
          is at the least t > 0 behind which the cell is solid.
    """
    if bool(scene.solid[math.floor(position[0]), math.floor(position[1])]):
        raise KbrError(f"The eye must be in a free cell of the maze; {position} is inside a wall.")
    lines = [_crossings(scene, position, ray, axis) for axis in (0, 1)]
    depth, cell = torch.cat([t for t, _ in lines], -1).min(-1)
    first = len(scene.solid) + 1
    side = torch.where(cell < first, (ray[..., 0] < 0).long(), 2 + (ray[..., 1] < 0).long())
    texture = torch.cat([texture for _, texture in lines], -1)
    texture = texture.gather(-1, cell.unsqueeze(-1)).squeeze(-1)
    point = torch.tensor(position) + depth.unsqueeze(-1) * ray
    along = torch.where(side < 2, point[..., 1], point[..., 0]).remainder(1)
    mirrored = (side == 0) | (side == 3)  # seen from there, the coordinate falls to the right
    lit = torch.tensor([1.0, 0.96, 0.92, 0.88])[side]  # a light from one side
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


def _floor(
    scene: Scene,
    position: tuple[float, float],
    ray: Float[Tensor, "n 1 w 2"],
    up: Float[Tensor, "h 1"],
) -> Surface:
    """Met at depth eye / -up. It is foreshortened: a pixel's length and width differ."""
    depth = scene.eye / (-up).clamp_min(1e-6)
    x, y = (torch.tensor(position) + depth.unsqueeze(-1) * ray).remainder(1).unbind(-1)
    stretch = depth * (depth / scene.eye).clamp_min(1).sqrt()  # geometric mean of the two
    return Surface(torch.tensor(scene.floor), x, y, stretch, _light(scene, depth, ray))


def _sky(scene: Scene, ray: Float[Tensor, "n 1 w 2"], up: Float[Tensor, "h 1"]) -> Surface:
    """The inside of a cube so large that it looks the same from everywhere.

    It has no lid: above 45 degrees the upper edge of its sides goes on.
    """
    x, y = ray.unbind(-1)
    along_x, far = x.abs() >= y.abs(), torch.maximum(x.abs(), y.abs())
    side = torch.where(along_x, (x < 0).long(), 2 + (y < 0).long())
    across = torch.where(along_x, -y * x.sign(), x * y.sign()) / far
    half = torch.tensor(0.5)  # the cube's side is 2
    u, v = half + half * across, (half - half * up / far).clamp_min(0)
    return Surface(scene.floor + 1 + side, u, v, half, torch.tensor(1.0))


def _light(
    scene: Scene, depth: Float[Tensor, "*#b"], ray: Float[Tensor, "n 1 w 2"]
) -> Float[Tensor, "*b"]:
    """What is left of the light after the way to a point, measured along the ground."""
    return torch.exp(-depth * ray.norm(dim=-1) / scene.fog)


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
    i, j = top.long(), left.long()
    upper = start + i.clamp_min(0) * side
    lower = start + torch.minimum(i + 1, edge) * side
    j, right = j.clamp_min(0), torch.minimum(j + 1, edge)
    # `embedding` picks rows some three times as fast as indexing does.
    a, b, c, d = (
        embedding(k, colours) for k in (upper + j, upper + right, lower + j, lower + right)
    )
    above, below = a + right_part * (b - a), c + right_part * (d - c)
    return above + low_part * (below - above)
