"""The built-in frames: a turn on the spot in a maze of labmaze, with DeepMind Lab's textures."""

import io
import zipfile
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kbr.app.run.folder import write_bytes
from kbr.core.datasets.raycast import SIDES, Scene, cast, draw
from kbr.core.errors import KbrError

VERSION = 3  # of what is drawn: a new one makes old files in the cache unused
HEIGHT, WIDTH = 72, 96
CELLS = 11
STYLE, WALL, FLOOR, SKY = "style_01", "green", "orange", "sky_02"
SKY_SIDES = ("right", "left", "back", "front")  # met going +x, -x, +y, -y
LIGHT = (40.0, 170.0, 190.0)  # colour of the lights in the walls
LARGE = 8  # degrees of the turn that a face must fill to get a picture
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


def maze_frames(*, seed: int, count: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, 72, 96, 3] uint8 and headings [count] in degrees; drawn once, then read."""
    if count < 2:
        raise KbrError(f"data.n_frames must be at least 2; got {count}. A full turn has hundreds.")
    path = cache / f"maze_{seed}_{count}x{HEIGHT}x{WIDTH}_v{VERSION}.npz"
    try:  # the frames drawn before, unless their file is damaged
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as saved:
            images, yaw = saved["images"], saved["yaw"]
        shapes = ((count, HEIGHT, WIDTH, 3), (count,))
        if (images.shape, yaw.shape) == shapes and images.dtype == np.uint8:
            return images, yaw
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        pass
    images, yaw = draw_maze(seed=seed, count=count)
    buffer = io.BytesIO()
    np.savez(buffer, images=images, yaw=yaw)
    write_bytes(path, buffer.getvalue())
    return images, yaw


def draw_maze(
    *, seed: int, count: int, height: int = HEIGHT, width: int = WIDTH
) -> tuple[np.ndarray, np.ndarray]:
    """A full turn in the maze of this seed: images [count, height, width, 3] and headings."""
    texels = 1 << (2 * width - 1).bit_length()  # no texel is wider than a pixel half a cell away
    scene, position = maze_scene(seed, texels=min(texels, 1024))
    yaw = np.arange(count) * (360 / count) - 180
    images = draw(scene, position, torch.from_numpy(yaw), height=height, width=width)
    return images.permute(0, 2, 3, 1).contiguous().numpy(), yaw


def maze_scene(seed: int, *, texels: int) -> tuple[Scene, tuple[float, float]]:
    """The maze of this seed, with pictures on the walls, and the spot to turn on."""
    if seed < 0:
        raise KbrError(f"data.maze_seed must be at least 0; got {seed}.")
    labmaze = _labmaze()
    maze = labmaze.RandomMaze(
        height=CELLS, width=CELLS, max_rooms=4, room_min_size=3, room_max_size=3, random_seed=seed
    )
    cells = np.array(maze.entity_layer)
    solid = torch.from_numpy(cells[::-1].T == "*").contiguous()  # x to the right, y upwards
    rng = np.random.default_rng(seed)
    position = _spot(solid, rng)
    wall, *others = _textures(labmaze.assets, texels)
    # Numbering all faces as if they were textures tells which of them a ray meets.
    numbers = torch.arange(solid.numel() * SIDES).reshape(*solid.shape, SIDES)
    plain = torch.stack([wall, *others])
    hung = _hung_faces(Scene(solid=solid, walls=numbers, textures=plain), position)
    order = rng.permutation(len(PICTURES))
    pictures = [_hang(wall, *PICTURES[order[k % len(order)]]) for k in range(len(hung))]
    walls = torch.zeros_like(numbers)
    walls.view(-1)[hung] = torch.arange(1, len(hung) + 1)
    textures = torch.stack([wall, *pictures, *others])
    return Scene(solid=solid, walls=walls, textures=textures), position


def _labmaze() -> Any:
    try:
        import labmaze
        import labmaze.assets
    except ImportError as error:
        raise KbrError(
            "The built-in frames of data=dmlab need the package labmaze, which has wheels for "
            "CPython up to 3.12. Install it with `pip install 'kbr[maze]'`, or set data.frames to "
            "captured frames."
        ) from error
    return labmaze


def _spot(solid: Tensor, rng: np.random.Generator) -> tuple[float, float]:
    """A place in a room or at a junction: a free cell with five free neighbours of eight."""
    free = (~solid).float()
    around = 9 * torch.nn.functional.avg_pool2d(free[None], 3, stride=1, padding=1)[0] - 1
    around = torch.where(solid, 0.0, around).round()
    cells = (around >= min(5.0, float(around.max()))).nonzero()
    i, j = cells[int(rng.integers(len(cells)))].tolist()
    return i + float(rng.uniform(0.3, 0.7)), j + float(rng.uniform(0.3, 0.7))


def _hung_faces(numbered: Scene, position: tuple[float, float]) -> Tensor:
    """Numbers of the faces that get a picture: every other one of those that look large."""
    turn = torch.deg2rad(torch.arange(360.0))
    faces = cast(numbered, position, torch.stack([turn.cos(), turn.sin()], dim=-1)).texture
    large = [int(f) for f in dict.fromkeys(faces.tolist()) if int((faces == f).sum()) >= LARGE]
    return torch.tensor(large[::2], dtype=torch.long)


def _textures(assets: Any, texels: int) -> list[Tensor]:
    """The wall, with its lights on, the floor and the sides of the sky."""
    walls, sky = assets.get_wall_texture_paths(STYLE), assets.get_sky_texture_paths(SKY)
    wall = _texture(walls[WALL], texels)
    light = _texture(Path(walls[WALL]).with_name("wall_light_m.png"), texels) / 255
    lit = wall + light * (torch.tensor(LIGHT)[:, None, None] - wall.float())
    floor = _texture(assets.get_floor_texture_paths(STYLE)[FLOOR], texels)
    return [
        lit.to(torch.uint8),
        floor,
        *(_texture(getattr(sky, side), texels) for side in SKY_SIDES),
    ]


def _texture(path: str | Path, texels: int) -> Tensor:
    with Image.open(path) as image:
        small = image.convert("RGBA").convert("RGB").resize((texels, texels), Image.Resampling.BOX)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


def _hang(
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
