"""How a run ends that does not finish: what is left of it, and the way to go on."""

import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig

from kbr.app.building.trusted import outside
from kbr.app.run.folder import LOCK
from kbr.app.run.resume import last_checkpoints
from kbr.app.text.commands import resume_command, shown
from kbr.core.errors import Preempted

PREEMPTED = 143  # exit code of a run that a signal stopped and that can go on: 128 + SIGTERM


def end_early(
    config: DictConfig, folder: Path, stopped: Preempted | KeyboardInterrupt, sweeping: bool
) -> NoReturn:
    """A run that a signal stopped: one line that says how to go on, and the signal's exit code."""
    number = stopped.number if isinstance(stopped, Preempted) else signal.SIGINT
    if sweeping and number == signal.SIGINT:
        if isinstance(stopped, KeyboardInterrupt):
            raise stopped
        signal.raise_signal(signal.SIGINT)  # the sweep knows how to go on
    if last_checkpoints(folder):
        saved = shown(last_checkpoints(folder)[-1])
        advice = f"The last checkpoint is {saved}. Go on: {way_on(config, folder)}"
    else:
        remove_if_empty(folder)
        advice = "Nothing was saved yet: the same command starts anew."
    if number == signal.SIGINT:
        raise KeyboardInterrupt(advice) from None
    print(f"kbr: stopped by a signal. {advice}", file=sys.stderr)
    raise SystemExit(PREEMPTED) from None


def way_on(config: DictConfig, folder: Path) -> str:
    return resume_command(folder, outside(config))


def remove_if_empty(folder: Path) -> None:
    """A run that could not start leaves no folder behind."""
    left = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if left and left <= {".hydra", "train.log", LOCK}:
        shutil.rmtree(folder)
