"""Hardware settings: from the `trainer` config group to arguments of Lightning's Trainer."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from kbr.core.errors import KbrError

TRAINER = "lightning.Trainer"
OURS = ("_target_", "threads", "timeout")  # what Lightning's Trainer does not take
TIMEOUT = 600  # seconds of silence after which a worker counts as lost
WORKERS_A_CORE = 4  # more is a mistake
STRATEGY = "kbr_ddp"  # Lightning's DDP with our time limit, under a name of its own


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Who started this process, and which of how many it is; one process without a launcher."""

    launcher: str | None = None
    rank: int = 0
    size: int = 1
    nodes: int = 1

    @property
    def is_first(self) -> bool:
        """The first process alone writes and prints."""
        return self.rank == 0


def launch_of(environ: Mapping[str, str] = os.environ) -> Launch:
    """What torchrun, srun or Lightning say about this process."""
    if "TORCHELASTIC_RUN_ID" in environ:
        size = int(environ["WORLD_SIZE"])
        return Launch(
            launcher="torchrun",
            rank=int(environ["RANK"]),
            size=size,
            nodes=size // int(environ["LOCAL_WORLD_SIZE"]),
        )
    if "SLURM_STEP_ID" in environ and "SLURM_NTASKS" in environ:
        return Launch(
            launcher="srun",
            rank=int(environ["SLURM_PROCID"]),
            size=int(environ["SLURM_NTASKS"]),
            nodes=int(environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1"))),
        )
    return Launch(rank=int(environ.get("LOCAL_RANK", "0")))  # set for Lightning's own children


def is_parallel(trainer: DictConfig) -> bool:
    """Whether several workers share the training; configs before `strategy` had a timeout then."""
    return str(trainer.get("strategy", "ddp" if "timeout" in trainer else "auto")) == "ddp"


def trainer_settings(config: DictConfig) -> dict[str, Any]:
    """Arguments of `lightning.Trainer`: those of the config, with the hardware that is there.

    Checked before any work: hardware that is not there is one line of advice.
    """
    trainer, launch = config.trainer, launch_of()
    parallel = is_parallel(trainer)
    if trainer.get("_target_", TRAINER) != TRAINER:
        raise KbrError(f"trainer._target_ must be {TRAINER}; got {trainer._target_}. Leave it out.")
    if trainer.accelerator == "gpu" and not torch.cuda.is_available():
        name, other = ("ddp", "ddp_cpu") if parallel else ("gpu", "auto")
        raise KbrError(
            f"trainer={name} needs a CUDA device, and PyTorch sees none on this machine. "
            f"Use trainer=cpu or trainer={other}."
        )
    plain = OmegaConf.to_container(trainer, resolve=True)
    assert isinstance(plain, dict)
    settings = {str(name): value for name, value in plain.items() if name not in OURS}
    settings["accelerator"] = _accelerator(trainer, launch)
    if parallel:
        return {**settings, **_parallel(trainer, launch)}
    devices = 1 if trainer.devices == "auto" else trainer.devices
    if launch.size > 1 or devices != 1:
        raise KbrError(
            f"this trainer is one process on one device; got trainer.devices={trainer.devices}, "
            f"and {launch.size} process(es) started. Use trainer=ddp (GPUs) or trainer=ddp_cpu."
        )
    return {**settings, "devices": devices}


def _accelerator(trainer: DictConfig, launch: Launch) -> str:
    """A CUDA device, else the CPU: filters solve in float64, which Apple's devices lack."""
    if trainer.accelerator == "mps":
        raise KbrError("trainer.accelerator=mps has no float64, which filters need. Use cpu.")
    if trainer.accelerator != "auto":
        return str(trainer.accelerator)
    if torch.cuda.is_available():
        return "gpu"
    if torch.backends.mps.is_available() and launch.is_first:
        print("  note: trainer=auto uses the CPU: Apple's MPS has no float64, which filters need")
    return "cpu"


def _parallel(trainer: DictConfig, launch: Launch) -> dict[str, Any]:
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

    limit = timedelta(seconds=trainer.get("timeout", TIMEOUT))
    StrategyRegistry.register(STRATEGY, DDPStrategy, override=True, timeout=limit)
    os.environ.setdefault("OMP_NUM_THREADS", str(trainer.threads))  # of every worker
    devices = _devices(trainer, launch)
    return {"strategy": STRATEGY, "devices": devices, "num_nodes": launch.nodes}


def _devices(trainer: DictConfig, launch: Launch) -> int:
    """Workers on this node: as many as the launcher started, else what the config says."""
    if launch.launcher is not None:
        devices = launch.size // launch.nodes
    elif "SLURM_NTASKS" in os.environ and int(os.environ["SLURM_NTASKS"]) > 1:
        raise KbrError(
            "several workers under Slurm are started by srun: put srun before python in the job "
            "script (docs/scaling.md)."
        )
    else:
        devices = torch.cuda.device_count() if trainer.devices == "auto" else trainer.devices
    if not isinstance(devices, int) or devices < 1:
        raise KbrError(f"trainer.devices must be a number of workers, 1 or more; got {devices}.")
    on_gpus = trainer.accelerator == "gpu"
    there = torch.cuda.device_count() if on_gpus else os.cpu_count() or 1
    if on_gpus and devices > there:
        raise KbrError(
            f"trainer.devices={devices}, and this machine has {there} GPU(s). Lower "
            "trainer.devices."
        )
    if devices > WORKERS_A_CORE * there:
        raise KbrError(
            f"trainer.devices={devices}, and this machine has {there} CPU core(s): so many "
            f"workers only wait for each other. Use at most {there}."
        )
    if devices > there and launch.is_first:
        print(f"  note: {devices} workers share {there} CPU cores; fewer are faster")
    return devices
