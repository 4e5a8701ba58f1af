"""The built-in frames: a full turn on the spot in a maze of labmaze, with DeepMind Lab's textures."""

import hashlib
import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kbr.app.run_folder import write_bytes
from kbr.core.datasets.raycast import Scene, cast, draw
from kbr.core.errors import KbrError

VERSION = 1  # of what is drawn: a new one makes old files in the cache unused
HEIGHT, WIDTH = 72, 96
CELLS = 11
TEXELS = 256
STYLE, WALL, FLOOR, SKY = "style_01", "green", "orange", "sky_02"
SKY_SIDES = ("right", "left", "front", "back")


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
    """The maze of this seed with its pictures, and the spot to turn on."""
    labmaze = _labmaze()
    if seed < 0:
        raise KbrError(f"data.maze_seed must be at least 0; got {seed}.")
    maze = labmaze.RandomMaze(
        height=CELLS, width=CELLS, max_rooms=4, room_min_size=3, room_max_size=3, random_seed=seed
    )
    cells = np.array(maze.entity_layer)
    solid = torch.from_numpy(cells[::-1].T == "*").contiguous()  # x to the right, y upwards
    rng = np.random.default_rng(seed)
    position = _spot(solid, rng)
    plain = _textures(labmaze)
    bare = Scene(
        solid=solid, walls=torch.zeros((*solid.shape, 4), dtype=torch.long), textures=plain
    )
    return bare, position


def _labmaze():
    try:
        import labmaze
        from labmaze import assets  # noqa: F401
    except ImportError as error:
        raise KbrError(
            "The built-in frames of data=dmlab need the package labmaze (CPython 3.8 to 3.12). "
            "Install it with `pip install 'kbr[maze]'`, or set data.frames to captured frames."
        ) from error
    return labmaze


def _spot(solid: Tensor, rng: np.random.Generator) -> tuple[float, float]:
    free = (~solid).nonzero()
    i, j = free[int(rng.integers(len(free)))].tolist()
    return i + float(rng.uniform(0.3, 0.7)), j + float(rng.uniform(0.3, 0.7))


def _textures(labmaze) -> Tensor:
    assets = labmaze.assets
    sky = assets.get_sky_texture_paths(SKY)
    paths = [
        assets.get_wall_texture_paths(STYLE)[WALL],
        assets.get_floor_texture_paths(STYLE)[FLOOR],
        *(getattr(sky, side) for side in SKY_SIDES),
    ]
    return torch.stack([_texture(path) for path in paths])


def _texture(path: str) -> Tensor:
    with Image.open(path) as image:
        small = image.convert("RGBA").convert("RGB").resize((TEXELS, TEXELS), Image.Resampling.BOX)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)
