"""Training as a person sees it: one bar over the epochs, never cut, and no chatter."""

import logging
import os
import sys
import warnings

from lightning import Callback, LightningModule, Trainer
from tqdm import tqdm

COLUMNS = 80  # at most, and where there is no terminal
LAYOUTS = (  # the first that fits is used
    "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
    "{desc}: {n_fmt}/{total_fmt} [<{remaining}{postfix}]",
    "{n_fmt}/{total_fmt} [<{remaining}{postfix}]",
    "{n_fmt}/{total_fmt}{postfix}",
)
LONGEST = ", loss=1.23e-05, val=1.23e-05"


class EpochBar(Callback):
    """Loss and validation error beside one bar; a line now and then where there is no terminal."""

    def __init__(self, title: str | None = None) -> None:
        self.title = title
        self.bar: tqdm | None = None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        tty = sys.stderr.isatty()
        wide = os.get_terminal_size(sys.stderr.fileno()).columns if tty else 0
        columns = min(COLUMNS, wide or COLUMNS)  # some terminals do not know their width
        epochs, title = trainer.max_epochs or 0, self.title or "training"
        self.bar = tqdm(
            total=epochs,
            initial=trainer.current_epoch,
            desc=title,
            ncols=columns,
            bar_format=layout(title, epochs, columns),
            mininterval=0.2 if tty else 20,
        )

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        assert self.bar is not None
        logged = trainer.callback_metrics
        short = {"train/loss": "loss", "val/mse": "val"}
        postfix = {new: f"{logged[old]:.3g}" for old, new in short.items() if old in logged}
        self.bar.set_postfix(postfix, refresh=False)
        self.bar.update()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self.bar is not None:
            self.bar.close()


def layout(title: str, epochs: int, columns: int) -> str:
    """The fullest line of which nothing is cut at so many columns."""
    example = {"desc": title, "percentage": 100, "bar": "#####", "postfix": LONGEST}
    example |= {"n_fmt": f"{epochs}", "total_fmt": f"{epochs}"}
    example |= {"elapsed": "00:00", "remaining": "00:00"}
    fits = (line for line in LAYOUTS if len(line.format(**example)) <= columns)
    return next(fits, LAYOUTS[-1])


def quiet_lightning() -> None:
    """Hardware tables, tips and known deprecations are not news to our users."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # That a worker died is news.
    logging.getLogger("lightning.fabric.strategies.launchers").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
