"""The built-in frames: a turn on the spot in a maze of labmaze, with DeepMind Lab's textures."""

import io
import zipfile
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from kbr.app.run_folder import write_bytes
from kbr.core.datasets.raycast import SIDES, Scene, cast, draw
from kbr.core.errors import KbrError

VERSION = 2  # of what is drawn: a new one makes old files in the cache unused
HEIGHT, WIDTH = 72, 96
CELLS = 11
TEXELS = 256
STYLE, WALL, FLOOR, SKY = "style_01", "green", "orange", "sky_02"
SKY_SIDES = ("right", "left", "front", "back")
LIGHT = (40.0, 170.0, 190.0)  # colour of the lights in the walls
LARGE = 8  # degrees of the turn that a face must fill to get a picture
SHAPES = ("disc", "ring", "cross", "diamond", "triangle")
COLOURS = ("#e04040", "#3060c0", "#f0a0a8", "#303038", "#e0b020")
PICTURES = list(product(SHAPES, COLOURS))


def maze_frames(*, seed: int, count: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, 72, 96, 3] uint8 and headings [count] in degrees; drawn once, then read."""
    if count < 2:
        raise KbrError(f"data.n_frames must be at least 2; got {count}. A full turn has hundreds.")
    path = cache / f"maze_{seed}_{count}x{HEIGHT}x{WIDTH}_v{VERSION}.npz"
    try:
        with np.load(path, allow_pickle=False) as saved:
            images, yaw = saved["images"], saved["yaw"]
        if images.shape == (count, HEIGHT, WIDTH, 3) and images.dtype == np.uint8:
            return images, yaw
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        pass  # not there, or damaged: drawn again
    images, yaw = draw_maze(seed=seed, count=count)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=images, yaw=yaw)
    write_bytes(path, buffer.getvalue())
    return images, yaw


def draw_maze(
    *, seed: int, count: int, height: int = HEIGHT, width: int = WIDTH
) -> tuple[np.ndarray, np.ndarray]:
    """A full turn in the maze of this seed: images [count, height, width, 3] and headings."""
    scene, position = maze_scene(seed)
    yaw = np.arange(count) * (360 / count) - 180
    images = draw(scene, position, torch.from_numpy(yaw), height=height, width=width)
    return images.permute(0, 2, 3, 1).contiguous().numpy(), yaw


def maze_scene(seed: int) -> tuple[Scene, tuple[float, float]]:
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
    wall, *others = _textures(labmaze.assets)
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
    return torch.tensor(large[::2])


def _hang(wall: Tensor, shape: str, colour: str) -> Tensor:
    """The wall with a framed picture of a simple shape."""
    image = Image.fromarray(wall.permute(1, 2, 0).numpy())
    pen, unit = ImageDraw.Draw(image), TEXELS / 16
    pen.rectangle(
        [4 * unit, 4 * unit, 12 * unit, 12 * unit],
        fill="#d8d8d0",
        outline="#70707a",
        width=round(0.6 * unit),
    )
    low, middle, high = 5.5 * unit, 8 * unit, 10.5 * unit
    if shape == "disc":
        pen.ellipse([low, low, high, high], fill=colour)
    elif shape == "ring":
        pen.ellipse([low, low, high, high], outline=colour, width=round(1.2 * unit))
    elif shape == "cross":
        pen.rectangle([low, 7 * unit, high, 9 * unit], fill=colour)
        pen.rectangle([7 * unit, low, 9 * unit, high], fill=colour)
    elif shape == "diamond":
        pen.polygon([(middle, low), (high, middle), (middle, high), (low, middle)], fill=colour)
    else:
        pen.polygon([(middle, low), (high, high), (low, high)], fill=colour)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _textures(assets: Any) -> list[Tensor]:
    """The wall, with its lights on, the floor and the sides of the sky."""
    walls, sky = assets.get_wall_texture_paths(STYLE), assets.get_sky_texture_paths(SKY)
    wall = _texture(walls[WALL])
    light = _texture(Path(walls[WALL]).with_name("wall_light_m.png")) / 255
    lit = wall + light * (torch.tensor(LIGHT)[:, None, None] - wall.float())
    floor = _texture(assets.get_floor_texture_paths(STYLE)[FLOOR])
    return [lit.to(torch.uint8), floor, *(_texture(getattr(sky, side)) for side in SKY_SIDES)]


def _texture(path: str | Path) -> Tensor:
    with Image.open(path) as image:
        small = image.convert("RGBA").convert("RGB").resize((TEXELS, TEXELS), Image.Resampling.BOX)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)
