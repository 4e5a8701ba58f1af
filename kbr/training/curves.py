"""What training logs, for TensorBoard."""

from collections.abc import Mapping

from lightning.pytorch.loggers import TensorBoardLogger


class Curves(TensorBoardLogger):
    """Lightning's logger without `epoch`: a step is an epoch here, so its curve is a diagonal."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step)
