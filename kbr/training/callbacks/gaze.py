"""One callback: pictures of what the encoder looks at, while it learns."""

from collections.abc import Callable
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from kbr.core.showing.tags import SECOND
from kbr.training.modules.base import SequenceModule

EVERY = 5  # looks at the validation error between two pictures

Draw = Callable[[Tensor, Tensor, Tensor], Any]


class LogGaze(Callback):
    """Draws `frames` with the encoder's heat maps and places, for TensorBoard.

    `draw` makes a matplotlib figure from frames [b, c, h, w], heat maps and places. Nothing happens
    for other loggers, other encoders, or observations that are no images.
    """

    def __init__(self, frames: Tensor, draw: Draw) -> None:
        self.frames, self.draw = frames.float(), draw
        self.looks = 0

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        logger, self.looks = trainer.logger, self.looks + 1
        due = trainer.is_global_zero and self.looks % EVERY == 1
        if not (due and isinstance(logger, TensorBoardLogger) and self.frames.ndim == 4):
            return
        assert isinstance(module, SequenceModule)
        gaze = module.gaze(self.frames.to(module.device))
        if gaze is not None:
            figure = self.draw(self.frames, *gaze)
            logger.experiment.add_figure(
                f"{SECOND}/encoder_in_training", figure, trainer.current_epoch + 1
            )
