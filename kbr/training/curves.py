"""What training logs, for TensorBoard."""

from collections.abc import Mapping

from lightning.pytorch.loggers import TensorBoardLogger

# One group: TensorBoard opens the first two, by the alphabet, and the pictures are the second.
TAGS = {
    "train/loss": "training/loss",
    "val/mse": "training/mse_on_validation",
    "train/explained": "training/share_explained",
}


class Curves(TensorBoardLogger):
    """Lightning's logger without `epoch`: a step is an epoch here, so its curve is a diagonal."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        kept = {TAGS.get(name, name): v for name, v in metrics.items() if name != "epoch"}
        super().log_metrics(kept, step)
