"""One training by Lightning: our settings, the caller's over them, and errors in our words."""

import inspect
import signal
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import Checkpoint

from kbr.core.errors import Diverged, Preempted, WorkerLost
from kbr.core.io import checkpoint
from kbr.training.callbacks.bar import quiet_lightning
from kbr.training.callbacks.keeping import KeepBest
from kbr.training.curves import Curves
from kbr.training.data import SequenceData
from kbr.training.modules.base import SequenceModule
from kbr.training.workers import check_workers, is_lost


def train(
    module: SequenceModule,
    data: SequenceData,
    keep: KeepBest,
    *,
    folder: Path,
    arguments: dict[str, Any],
    start: Path | None,
) -> bool:
    """Train until `keep` holds the weights; whether this process is the one that writes.

    `arguments` are the caller's for `lightning.Trainer`; `start` is a checkpoint to go on from.
    """
    quiet_lightning()
    others = [one for one in arguments.get("callbacks", ()) if one is not keep]
    settings: dict[str, Any] = {
        "max_epochs": module.epochs,
        "default_root_dir": folder,
        "log_every_n_steps": 1,  # the modules log rarely enough
        "num_sanity_val_steps": 0,
        "enable_checkpointing": any(isinstance(one, Checkpoint) for one in others),
        "enable_model_summary": False,
        "use_distributed_sampler": False,  # the modules share the rows out themselves
        "sync_batchnorm": module.mixes_rows and arguments.get("strategy", "auto") != "auto",
    }
    if "logger" not in arguments:
        settings["logger"] = Curves(save_dir=folder, name="tensorboard", version="")
    runner = lightning.Trainer(**{**settings, **arguments, "callbacks": [keep, *others]})
    if start is not None:
        with checkpoint.restoring(start):
            content = checkpoint.load(start, kind=keep.record["kind"])
            state = content["callbacks"][keep.state_key]
            if state["finished"]:  # nothing left to train: Lightning would start a further epoch
                keep.load_state_dict(state)
                module.fit_scales(*data.training_part)
                return bool(runner.is_global_zero)
    check_workers(
        runner.world_size,
        points=data.cut,
        mixed=module.mixes_rows,
        device=runner.strategy.root_device.type,
    )
    # Nothing that a checkpoint holds is run; older versions of Lightning cannot be asked.
    asked = "weights_only" in inspect.signature(runner.fit).parameters
    reading: dict[str, Any] = {"weights_only": True} if asked else {}
    try:
        with keep.request.on_ctrl_c():
            runner.fit(module, datamodule=data, ckpt_path=start, **reading)
    except RuntimeError as error:
        if runner.world_size == 1 or not is_lost(error):
            raise
        raise WorkerLost(
            f"another of the {runner.world_size} workers has ended or cannot be reached "
            f"({str(error).partition('. ')[0]}). The last checkpoint is in {folder}."
        ) from error
    if keep.preempted:
        number = keep.request.number or signal.SIGTERM  # None: another worker got it
        cause = "Ctrl-C" if number == signal.SIGINT else "a signal"
        raise Preempted(
            f"stopped by {cause}; saved {keep.path}. Go on with resume={folder}", number=number
        )
    if not keep.weights:
        raise Diverged(
            "training ended without a finite validation error, so no weights were kept. Lower "
            "lr, or raise lam."
        )
    return bool(runner.is_global_zero)
