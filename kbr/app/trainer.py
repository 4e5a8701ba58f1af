"""Hardware settings: from the `trainer` config group to arguments of Lightning's Trainer."""

from typing import Any

import torch
from omegaconf import DictConfig

from kbr.core.errors import KbrError


def trainer_settings(config: DictConfig) -> dict[str, Any]:
    """Checked before any work: a GPU that is not there is one line of advice."""
    accelerator = config.trainer.accelerator
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise KbrError(
            "trainer=gpu needs a CUDA device, and PyTorch sees none on this machine. "
            "Use trainer=cpu or trainer=auto."
        )
    return {
        "accelerator": accelerator,
        "devices": config.trainer.devices,
        "precision": config.trainer.precision,
    }
