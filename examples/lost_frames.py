"""A sprite is tracked in noisy images, and some of them are lost: the GIF of the README.

A small CNN and a kernel filter learn from 300 frames with the sprite's position. Of 60 new frames
those of LOST are missing. The filter then predicts, and its 90 % region grows until the next frame
arrives. One minute on a CPU:

    python examples/lost_frames.py --output lost_frames.gif
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from kbr.app.figures.animation import animate
from kbr.app.figures.view import view_of
from kbr.app.models.outcome import stacked
from kbr.core.datasets.dsprites import DSprites
from kbr.training import LearnedFilter

LOST = (range(14, 22), range(38, 46))  # steps, from 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("lost_frames.gif"))
    parser.add_argument("--frames", type=int, default=300, help="to learn from")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1000)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    task = DSprites()
    data = task.generate(n_train=arguments.frames, n_test=60, seed=arguments.seed)
    seen = data.x_test.clone()
    for steps in LOST:
        seen[list(steps)] = torch.nan
    filt = LearnedFilter(epochs=arguments.epochs)
    with tempfile.TemporaryDirectory() as folder:
        filt.fit(data.x_train, data.z_train, folder=Path(folder))
    out = filt.filter(seen)
    region = filt.credible_region(out, level=0.9)
    inside = region.contains(data.z_test.double()).double().mean()
    view = view_of(task, replace(data, x_test=seen))
    animate(arguments.output, stacked([(out, data.z_test)], view=lambda: view))
    print(f"wrote {arguments.output}; {inside:.0%} of the truths are in their 90 % regions")


if __name__ == "__main__":
    main()
