"""One training by Lightning: our settings, the caller's over them, and errors in our words."""

from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.loggers import TensorBoardLogger

from kbr.core import checkpoint
from kbr.core.errors import Diverged, KbrError, Preempted
from kbr.training.callbacks import KeepBest
from kbr.training.data import SequenceData
from kbr.training.sequence_module import SequenceModule
from kbr.training.workers import check_workers, is_lost


def train(
    module: SequenceModule,
    data: SequenceData,
    keep: KeepBest,
    *,
    folder: Path,
    val_every: int,
    arguments: dict[str, Any],
    start: Path | None,
) -> bool:
    """Train until `keep` holds the weights; whether this process is the one that writes.

    `arguments` are the caller's for `lightning.Trainer`; `start` is a checkpoint to go on from.
    """
    settings: dict[str, Any] = {
        "max_epochs": module.epochs,
        "default_root_dir": folder,
        "check_val_every_n_epoch": min(val_every, module.epochs),
        "log_every_n_steps": 1,  # the modules log rarely enough
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,  # the modules share the rows out themselves
        "sync_batchnorm": module.mixes_rows and "strategy" in arguments,
    }
    if "logger" not in arguments:
        settings["logger"] = TensorBoardLogger(save_dir=folder, name="tensorboard", version="")
    callbacks = [keep, *arguments.get("callbacks", ())]
    runner = lightning.Trainer(**{**settings, **arguments, "callbacks": callbacks})
    if start is not None:
        state = checkpoint.load(start, kind=module.record["kind"])["callbacks"][keep.state_key]
        if state["finished"]:  # nothing left to train: Lightning would start a further epoch
            keep.load_state_dict(state)
            return bool(runner.is_global_zero)
    check_workers(
        runner.world_size,
        points=data.cut,
        mixed=module.mixes_rows,
        device=runner.strategy.root_device.type,
    )
    try:
        runner.fit(module, datamodule=data, ckpt_path=start)
    except RuntimeError as error:
        if runner.world_size == 1 or not is_lost(error):
            raise
        raise KbrError(
            f"another of the {runner.world_size} workers has ended or cannot be reached "
            f"({str(error).partition('. ')[0]}). Go on from the last checkpoint with "
            f"resume={folder}."
        ) from error
    if keep.preempted:
        raise Preempted(f"stopped by a signal; saved {keep.path}. Go on: resume={folder}")
    if not keep.weights:
        raise Diverged(
            "training ended without a finite validation error, so no weights were kept. Lower "
            "lr, or raise lam."
        )
    return bool(runner.is_global_zero)
