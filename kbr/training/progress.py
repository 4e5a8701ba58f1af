"""Training as a person sees it: one bar over the epochs, 80 columns, and no chatter."""

import logging
import sys
import warnings

import lightning
from lightning.pytorch.callbacks import Callback
from tqdm import tqdm


class EpochBar(Callback):
    """Loss and validation error beside one bar; a line now and then where there is no terminal."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.bar: tqdm | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        tty = sys.stderr.isatty()
        self.bar = tqdm(
            total=trainer.max_epochs,
            initial=trainer.current_epoch,
            desc=self.title,
            ncols=80,
            unit="epoch",
            mininterval=0.2 if tty else 20,
        )

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        assert self.bar is not None
        seen = trainer.callback_metrics
        short = {"train/loss": "loss", "val/mse": "val"}
        shown = {new: f"{float(seen[old]):.4f}" for old, new in short.items() if old in seen}
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update()

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self.bar is not None:
            self.bar.close()


def quiet_lightning() -> None:
    """Hardware tables, tips and known deprecations are not news to our users."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # That a worker died is news.
    logging.getLogger("lightning.fabric.strategies.launchers").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
