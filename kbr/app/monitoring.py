"""TensorBoard: scalars and pictures of every run, learned or closed-form."""

from pathlib import Path
from typing import Any


def log_outcome(folder: Path, metrics: dict[str, Any], pictures: list[Path]) -> None:
    """Write final metrics and figures beside what training has logged."""
    import matplotlib.image
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                writer.add_scalar(f"final/{name}", value, 0)
        for path in pictures:
            image = matplotlib.image.imread(path)[..., :3]
            writer.add_image(path.stem, image, 0, dataformats="HWC")
