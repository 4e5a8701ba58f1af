"""One callback: remembers the weights to keep, stops early or when asked, and writes last.ckpt."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from kbr.core.errors import Preempted
from kbr.core.io.checkpoint import VERSION, write_atomically

STATE = ("best", "score", "epoch", "waited", "finished", "weights")
SIGNALS = ("SIGTERM", "SIGUSR1")  # the second is what Slurm jobs ask for: --signal=USR1@120


class StopRequest:
    """Which signal has asked training to stop since `listen`, if any: of a cluster that wants its
    machine back, or Ctrl-C.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def received(self) -> bool:
        return self.number is not None

    def listen(self) -> None:
        """Take the signals over from Lightning, which puts back what was there when it ends.

        Its own handlers would talk to other workers in the middle of a step, or requeue the job.
        """
        if threading.current_thread() is threading.main_thread():
            for name in SIGNALS:
                if hasattr(signal, name):  # Windows has no SIGUSR1
                    signal.signal(getattr(signal, name), self._note)

    @contextmanager
    def on_ctrl_c(self) -> Iterator[None]:
        """Take Ctrl-C over from Lightning, which would end the process; twice: stop at once."""
        self.number = None
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        ):
            yield  # ignored on purpose, as in the background of a script
            return
        before = signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.number == number:
            raise Preempted("stopped in the middle of an epoch", number=number)
        self.number = number


class KeepBest(Callback):
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
        # The filter that is trained sets these; its `record` goes into every checkpoint.
        self.path, self.patience, self.every, self.slack = path, patience, every, slack
        self.record: dict[str, Any] = {}
        self.best = self.score = float("inf")
        self.epoch = 0
        self.waited = 0
        self.finished = False
        self.weights: dict[str, Tensor] = {}
        self.request = StopRequest()
        self.preempted = False

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.request.listen()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
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

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        self.finished = trainer.should_stop or epoch >= (trainer.max_epochs or epoch)
        asked = trainer.strategy.reduce_boolean_decision(self.request.received, all=False)
        self.preempted = asked and not self.finished
        if self.finished or self.preempted or epoch % self.every == 0:
            self.save(trainer)
        if self.preempted:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Lightning asks callbacks that stop training by a metric after all others."""
        if not (self.finished or self.preempted):
            self.finished = True
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Every worker takes part in gathering the state; the first one writes."""

        def write(path: Path) -> None:
            trainer.save_checkpoint(path, weights_only=False)

        if trainer.is_global_zero:
            write_atomically(self.path, write)
        else:
            write(self.path)

    def on_save_checkpoint(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint.update(self.record, version=VERSION)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)
