"""How fast dSprites images are drawn, and how close they are to the published ones.

    python benchmarks/sprites.py --threads 1

The second part needs `KBR_TEST_DATA`, a folder with dsprites_real_frames.npz (images, classes).
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kbr.core.datasets.sprites import SIZES, SpriteRenderer

NAMES = ("squares", "ellipses", "hearts")


def images_per_second(classes: Tensor, *, repeats: int) -> float:
    """The median over repeats, after one run to warm up."""
    renderer = SpriteRenderer()
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        renderer.images(classes)
        seconds.append(time.perf_counter() - start)
    return len(classes) / sorted(seconds[1:])[repeats // 2]


def print_overlap(folder: Path) -> None:
    """Intersection over union with the published frames."""
    with np.load(folder / "dsprites_real_frames.npz") as data:
        real, classes = torch.from_numpy(data["images"]), torch.from_numpy(data["classes"]).long()
    drawn = SpriteRenderer().images(classes)
    score = (drawn & real).sum((1, 2)) / (drawn | real).sum((1, 2))
    hearts = classes[:, 0] == 2
    least = classes[hearts, 1].min()
    groups = {"all": torch.ones_like(hearts)}
    groups |= {name: classes[:, 0] == k for k, name in enumerate(NAMES)}
    groups[f"smallest hearts (scale index {least})"] = hearts & (classes[:, 1] == least)
    for name, rows in groups.items():
        exact = int((score[rows] == 1).sum())
        print(
            f"IoU, {name}: mean {score[rows].mean():.4f}, min {score[rows].min():.4f}, "
            f"{exact} of {int(rows.sum())} frames exact"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    mixed = torch.stack(
        [torch.randint(n, (options.count,), generator=generator) for n in SIZES], dim=1
    )
    hearts = mixed.clone()
    hearts[:, 0] = 2
    for name, classes in (("all shapes", mixed), ("hearts", hearts)):
        speed = images_per_second(classes, repeats=options.repeats)
        print(f"{name}: {speed:,.0f} images/s, {options.threads} thread(s)")
    folder = os.environ.get("KBR_TEST_DATA")
    if folder is None:
        print("IoU: set KBR_TEST_DATA to compare with published frames")
    else:
        print_overlap(Path(folder))


if __name__ == "__main__":
    main()
