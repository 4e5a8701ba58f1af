"""One training run: build, run all trials, write the run folder, say what came out."""

import errno
import json
import math
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from kbr.app.cli import stop
from kbr.app.config_numbers import check_numbers
from kbr.app.methods import Method, Outcome
from kbr.app.monitoring import log_outcome
from kbr.app.own.problem import OwnData
from kbr.app.problems import Problem
from kbr.app.run_figures import run_figures
from kbr.app.run_folder import (
    BEST,
    DATA,
    FAILURE,
    MANIFEST,
    METRICS,
    RESULTS,
    RunContext,
    is_finished,
    manifest,
    write_json,
    write_rows,
)
from kbr.app.sweep_progress import SweepProgress
from kbr.app.trainer import launch_of, trainer_settings
from kbr.app.uncertainty_figures import trial_coverage, uncertainty_metrics
from kbr.app.words import in_digits, with_error
from kbr.core import checkpoint
from kbr.core.errors import KbrError, Preempted

FULL = (errno.ENOSPC, errno.EDQUOT)
PREEMPTED = 143  # exit code of a run that a signal stopped and that can go on: 128 + SIGTERM

SHOWN = (
    "val/mse",
    "val/mse_standardised",
    "test/angular_error_degrees",
    "test/mse_of_zero",
    "test/mse_of_mean",
    "test/mse_of_raw_kernel",
)


def train_job(config: DictConfig) -> float | None:
    """The task function: returns test/mse, so that sweepers can minimise it."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    sweeping = hydra.mode == RunMode.MULTIRUN
    if sweeping and is_finished(folder, config):
        return float(json.loads((folder / METRICS).read_text())["test/mse"])
    if not launch_of().is_first:
        _work(config, folder)
        return None
    for name in (FAILURE, MANIFEST):  # of other settings
        (folder / name).unlink(missing_ok=True)
    try:
        return _run(config, folder, sweeping)
    except Preempted as stopped:
        print(f"kbr: {stopped}", file=sys.stderr)
        raise SystemExit(PREEMPTED) from None
    except KbrError as error:
        if not sweeping:
            _remove_if_empty(folder)
            stop(str(error))
        (folder / FAILURE).write_text(f"{error}\n")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL and not sweeping:
            stop(f"{error.strerror}. Checkpoints are whole: make room, then resume={folder}")
        if not sweeping:
            raise
        # Whatever it is, the other cells go on; a bug's report needs the traceback.
        (folder / FAILURE).write_text(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    return math.nan


def _work(config: DictConfig, folder: Path) -> None:
    """Take part in the training of another process, which writes and reports."""
    try:
        _run(config, folder, sweeping=False)
    except Preempted:
        raise SystemExit(0) from None
    except KbrError as error:
        started = torch.distributed.is_available() and torch.distributed.is_initialized()
        if started:  # otherwise the first worker says the same
            stop(f"worker {launch_of().rank}: {error}")
        raise SystemExit(2) from None


def _run(config: DictConfig, folder: Path, sweeping: bool) -> float:
    by_hydra = HydraConfig.initialized()
    if by_hydra:
        check_numbers(config, HydraConfig.get().runtime.choices)
    torch.set_num_threads(config.trainer.threads)
    seeds = trial_seeds(config)
    problem, method = build(config)
    is_first = launch_of().is_first
    if not (is_first or getattr(method, "trains", False)):
        raise SystemExit(0)  # a closed form has work for one process
    if sweeping and "timeout" in config.trainer:
        raise KbrError(
            "the cells of a sweep run in one process each. Use trainer=cpu or trainer=gpu, and "
            "hydra/launcher=side_by_side for several cells at once."
        )
    context = RunContext(
        folder=folder,
        trainer=trainer_settings(config),
        logger=config.logger,
        resume=Path(config.resume) if config.resume else None,
        quiet=sweeping,
        sweep=SweepProgress.of(HydraConfig.get()) if by_hydra and sweeping else None,
        is_first=is_first,
    )
    if is_first and not sweeping:
        print(f"{method.name} on {problem.name}, {len(seeds)} trial(s)")
    started = time.perf_counter()
    outcome = method.run(problem, seeds, context)
    seconds = time.perf_counter() - started
    metrics = write_outcome(folder, problem, method.name, seeds, outcome)
    if isinstance(problem, OwnData):
        write_json(folder / DATA, problem.record())
    if outcome.state:  # trained models have written theirs already
        checkpoint.save(folder / BEST, outcome.state)
    pictures = run_figures(folder / "figures", outcome, quick=sweeping)
    if config.logger.name == "tensorboard":
        log_outcome(folder, config, metrics, outcome, pictures)
    made = {
        "seconds": round(seconds, 3),
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "notes": list(outcome.notes),
    }
    write_json(folder / MANIFEST, {**manifest(config), **made})
    if not sweeping:
        _report(folder, metrics, outcome, seconds)
    return float(metrics["test/mse"])


def build(config: DictConfig) -> tuple[Problem, Method]:
    """The problem and the method that a config describes."""
    return construct(config.data.problem), construct(config.model, _convert_="all")


def construct(config: DictConfig, **settings: Any) -> Any:
    """What a config describes; our own errors come through."""
    try:
        return instantiate(config, **settings)
    except InstantiationException as error:
        if isinstance(error.__cause__, KbrError):
            raise error.__cause__ from None
        raise


def trial_seeds(config: DictConfig) -> list[int]:
    """The seeds seed .. seed + trials - 1."""
    if config.trials < 1:
        raise KbrError(f"trials must be at least 1; got {config.trials}.")
    return list(range(config.seed, config.seed + config.trials))


def write_outcome(
    folder: Path, problem: Problem, model: str, seeds: Sequence[int], outcome: Outcome
) -> dict[str, Any]:
    """metrics.json (flat) and results.csv (a row for each trial)."""
    mse = outcome.mse
    steps = outcome.mean.shape[-2] * len(seeds)
    metrics: dict[str, Any] = {
        "test/mse": float(mse.mean()),
        "test/mse_stderr": float(mse.std() / len(seeds) ** 0.5) if len(seeds) > 1 else 0.0,
        "test/trials": len(seeds),
        "fit/seconds": outcome.fit_seconds,
        "filter/seconds_per_step": outcome.test_seconds / steps,
        **problem.extra_metrics(outcome.mean, outcome.truth),
        **outcome.info,
    }
    if outcome.evidence is not None:
        metrics["test/steps_without_evidence"] = int((~outcome.evidence).sum())
        metrics |= uncertainty_metrics(outcome)
    for name, values in outcome.chosen.items():
        key = f"val/{name[4:]}" if name.startswith("val_") else f"chosen/{name}"
        if not bool(values.isnan().any()):
            metrics[key] = float(values.double().mean())
    rmse = (outcome.mean - outcome.truth).square().mean(-2).sqrt()  # [trials, dz]
    for name, values in zip(outcome.labels or (), rmse.unbind(-1), strict=False):
        metrics[f"test/rmse/{name}"] = float(values.mean())
    shares = trial_coverage(outcome)
    rows = [
        {
            **problem.columns(),
            "model": model,
            "seed": seed,
            **{name: _tidy(float(values[i])) for name, values in outcome.chosen.items()},
            "mse": float(mse[i]),
            **{name: float(share[i]) for name, share in shares.items()},
            **{f"rmse {n}": float(rmse[i, k]) for k, n in enumerate(outcome.labels or ())},
            "seconds": round((outcome.fit_seconds + outcome.test_seconds) / len(seeds), 4),
        }
        for i, seed in enumerate(seeds)
    ]
    write_rows(folder / RESULTS, rows)
    write_json(folder / METRICS, metrics)
    return metrics


def _tidy(value: float) -> float | str:
    return "" if value != value else float(f"{value:.6g}")


def _report(folder: Path, metrics: dict[str, Any], outcome: Outcome, seconds: float) -> None:
    line = in_digits(metrics["test/mse"])
    if metrics["test/trials"] > 1:
        line = with_error(metrics["test/mse"], metrics["test/mse_stderr"])
    shown = [name for name in SHOWN if name in metrics]
    width = max(map(len, ["test/mse  ", *shown]))
    print(f"\n  {'test/mse':<{width}} {line}   ({seconds:.1f} s)")
    for name in shown:
        print(f"  {name:<{width}} {in_digits(metrics[name])}")
    for label in outcome.labels or ():
        print(f"  {'test/rmse':<{width}} {metrics[f'test/rmse/{label}']:<8.4g} {label}")
    if "filter/engine" in metrics:
        print(f"  {'engine':<{width}} {metrics['filter/engine']}")
    for note in outcome.notes:
        print(f"  note: {note}")
    place = _shown(folder)
    print(f"\n  run folder:  {place}")
    print(f"  evaluate:    python evaluate.py run={place}")
    if (folder / "tensorboard").is_dir():
        print(f"  monitor:     tensorboard --logdir {place}")


def _shown(folder: Path) -> Path:
    """The folder as a user would type it from here."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def _remove_if_empty(folder: Path) -> None:
    """A run that could not start leaves no folder behind."""
    left = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if left and left <= {".hydra", "train.log"}:
        shutil.rmtree(folder)


def saved_config(folder: Path) -> DictConfig:
    """The config a run was started with."""
    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        raise KbrError(f"{folder} is no run folder: it has no .hydra/config.yaml. Set run=...")
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return loaded
