"""One callback: remembers the weights to keep, stops early, and writes last.ckpt."""

from pathlib import Path
from typing import Any

import lightning
from torch import Tensor

from kbr.core.io.checkpoint import VERSION, write_atomically
from kbr.training.preemption import StopRequest


class KeepBest(lightning.Callback):
    """Good weights by `val/mse`, early stopping, and a checkpoint every so many epochs.

    A few hundred validation steps give a noisy error, and an early look can be lucky: later weights
    are kept unless their error is more than `slack` (a share) above the best one seen. `patience`
    such looks in a row end the training. All of its state is in last.ckpt, the kept weights too: a
    run continued from there ends like one that was never interrupted. A signal that asks any of
    the workers to stop makes all of them save and stop after the epoch.
    """

    def __init__(
        self,
        path: Path = Path("last.ckpt"),
        *,
        patience: int = 6,
        every: int = 25,
        slack: float = 0.0,
    ) -> None:
        self.configure(path=path, patience=patience, every=every, slack=slack, record={})
        self.best = self.score = float("inf")
        self.epoch = 0
        self.waited = 0
        self.finished = False
        self.weights: dict[str, Tensor] = {}
        self.request = StopRequest()
        self.preempted = False

    def configure(
        self, *, path: Path, patience: int, every: int, slack: float, record: dict[str, Any]
    ) -> None:
        """What the filter that is trained decides; `record` goes into every checkpoint."""
        self.path, self.patience, self.every, self.slack = path, patience, every, slack
        self.record = record

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.request.listen()

    def on_validation_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        score = float(trainer.callback_metrics["val/mse"])
        self.best = min(self.best, score)
        if score < self.score or score <= (1 + self.slack) * self.best:
            self.score, self.epoch, self.waited = score, trainer.current_epoch + 1, 0
            self.weights = {
                name: value.detach().cpu().clone() for name, value in module.state_dict().items()
            }
        else:
            self.waited += 1
        if self.waited >= self.patience:
            trainer.should_stop = True

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        epoch = trainer.current_epoch + 1
        self.finished = trainer.should_stop or epoch >= (trainer.max_epochs or epoch)
        asked = trainer.strategy.reduce_boolean_decision(self.request.received, all=False)
        self.preempted = asked and not self.finished
        if self.finished or self.preempted or epoch % self.every == 0:
            self.save(trainer)
        if self.preempted:
            trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Lightning asks callbacks that stop training by a metric after all others."""
        if not (self.finished or self.preempted):
            self.finished = True
            self.save(trainer)

    def save(self, trainer: lightning.Trainer) -> None:
        """Every worker takes part in gathering the state; the first one writes."""
        if trainer.is_global_zero:
            write_atomically(
                self.path, lambda path: trainer.save_checkpoint(path, weights_only=False)
            )
        else:
            trainer.save_checkpoint(self.path, weights_only=False)

    def on_save_checkpoint(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        checkpoint.update(self.record, version=VERSION)

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "score": self.score,
            "epoch": self.epoch,
            "waited": self.waited,
            "finished": self.finished,
            "weights": self.weights,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)
