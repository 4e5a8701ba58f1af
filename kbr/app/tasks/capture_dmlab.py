"""Record a full turn on the spot in DeepMind Lab, as a file for data.frames.

    python -m kbr.app.tasks.capture_dmlab --level nav_maze_static_01 --count 720 --out frames.npz

The file holds `images` [N, H, W, 3] uint8 and `yaw` [N] in degrees, counter-clockwise.
"""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kbr.app.run.folder import write_bytes
from kbr.app.terminal import stop
from kbr.core.errors import KbrError

PIXELS, HEADING = "RGB_INTERLEAVED", "DEBUG.POS.ROT"  # rotation is (pitch, yaw, roll)
LOOK = "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME"
TRIAL = 20  # pixels looked aside to find out how far a pixel turns
MISSING = (
    "the Python package deepmind_lab is not installed, and pip cannot fetch it. Build it on Linux "
    "from https://github.com/google-deepmind/lab (see docs/users/build.md and python/pip_package "
    "there) and install the wheel; or use data=dmlab as it is: it draws frames of its own."
)


def record(env: Any, *, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """About `count` frames over a full turn, and their headings in degrees."""
    if count < 2:
        raise KbrError(f"--count must be at least 2 frames; got {count}.")
    env.reset(seed=seed)  # which also decides the spot
    images, yaw = zip(*_turn(env, count), strict=True)
    return np.stack(images), np.array(yaw, dtype=np.float64)


def _turn(env: Any, count: int) -> Iterator[tuple[np.ndarray, float]]:
    """Frames and headings; one looks aside by whole pixels, so steps are only near 360 / count."""
    names = [spec["name"] for spec in env.action_spec()]
    if LOOK not in names:
        raise KbrError(f"The level has no action {LOOK}; it has {names}. Set --level.")

    def look(pixels: int) -> tuple[np.ndarray, float]:
        action = np.zeros(len(names), dtype=np.intc)
        action[names.index(LOOK)] = pixels
        env.step(action, num_steps=1)
        if not env.is_running():
            raise KbrError("The episode ended before the turn did. Set --count lower.")
        seen = env.observations()
        return np.array(seen[PIXELS]), float(seen[HEADING][1])

    _, start = look(0)
    image, yaw = look(TRIAL)
    pixels = max(1, round(TRIAL * 360 / count / max(abs(_gap(start, yaw)), 1e-3)))
    turned = 0.0
    while turned < 360:
        yield image, yaw
        image, ahead = look(pixels)
        if abs(_gap(yaw, ahead)) < 1e-3:
            raise KbrError("The view does not turn in this level. Set --level.")
        turned, yaw = turned + abs(_gap(yaw, ahead)), ahead


def _gap(before: float, after: float) -> float:
    """Degrees from one heading to another, the short way round."""
    return (after - before + 180) % 360 - 180


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m kbr.app.tasks.capture_dmlab",
        description="Record a full turn on the spot in DeepMind Lab, as a file for data.frames.",
    )
    parser.add_argument("--level", default="nav_maze_static_01")
    parser.add_argument("--count", type=int, default=720, help="about how many frames")
    parser.add_argument("--seed", type=int, default=0, help="of the episode, and so of the spot")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--height", type=int, default=72)
    parser.add_argument("--out", type=Path, default=Path("frames.npz"))
    try:
        _capture(parser.parse_args(argv))
    except KbrError as error:
        stop(str(error))


def _capture(options: argparse.Namespace) -> None:
    if options.out.exists():
        raise KbrError(f"{options.out} exists. Set --out to another file.")
    try:
        import deepmind_lab
    except ImportError as error:
        raise KbrError(MISSING) from error
    size = {"width": str(options.width), "height": str(options.height)}
    env = deepmind_lab.Lab(options.level, [PIXELS, HEADING], config=size)
    images, yaw = record(env, count=options.count, seed=options.seed)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=images, yaw=yaw)
    write_bytes(options.out, buffer.getvalue())
    print(f"{options.out}: {len(yaw)} frames. Train on them:")
    print(f"  python train.py data=dmlab data.frames={options.out}")


if __name__ == "__main__":
    main()
