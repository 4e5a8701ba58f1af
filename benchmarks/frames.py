"""How fast the frames of data=dmlab are drawn, and how well a noisy frame tells the heading.

    python benchmarks/frames.py --seeds 5 --threads 1

Captured frames are looked up too where `KBR_TEST_DATA` names a folder with .npz tables of them.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch

from kbr.app.tasks.frames import captured_frames, resized
from kbr.app.tasks.maze_frames import HEIGHT, WIDTH, draw_maze, maze_scene
from kbr.core.datasets.raycast import draw

WITHIN = 5  # degrees


def frames_per_second(*, count: int, repeats: int) -> float:
    """The median over repeats, after one run to warm up."""
    scene, position = maze_scene(0, texels=256)
    yaw = torch.arange(count) * (360 / count)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        draw(scene, position, yaw, height=HEIGHT, width=WIDTH)
        seconds.append(time.perf_counter() - start)
    return count / sorted(seconds[1:])[repeats // 2]


def print_look_up(name: str, images: np.ndarray, yaw: np.ndarray) -> None:
    """The nearest frame of each frame at 36 x 48 with pixel noise .1."""
    x = resized(images, height=36, width=48).flatten(1)
    noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    found = yaw[torch.cdist(noisy, x).argmin(1).numpy()]
    error = np.abs((found - yaw + 180) % 360 - 180)
    share = (error <= WITHIN).mean()
    print(f"{name}: {share:.1%} within {WITHIN} degrees, largest error {error.max():.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=720)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5, help="mazes looked at: 0, 1, ..")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    speed = frames_per_second(count=options.count, repeats=options.repeats)
    print(f"{HEIGHT} x {WIDTH}: {speed:,.0f} frames/s, {options.threads} thread(s)")
    for seed in range(options.seeds):
        print_look_up(f"maze_seed {seed}", *draw_maze(seed=seed, count=options.count))
    folder = os.environ.get("KBR_TEST_DATA")
    for path in sorted(Path(folder).glob("dmlab*.npz")) if folder else []:
        print_look_up(path.name, *captured_frames(path))


if __name__ == "__main__":
    main()
