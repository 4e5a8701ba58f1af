"""One training run: build, run all trials, write the run folder, say what came out."""

import errno
import math
import shlex
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from kbr.app.building.trusted import build, names_of, outside, part
from kbr.app.config.check import check_config, typed_words
from kbr.app.config.packages import check_packages
from kbr.app.figures.run import run_figures
from kbr.app.models.outcome import Outcome
from kbr.app.models.own import OwnModel
from kbr.app.recordings.measure import Measure
from kbr.app.recordings.task import OwnData
from kbr.app.report.next_steps import without
from kbr.app.report.run_page import PAGE, write_run_page
from kbr.app.run.ending import end_early, remove_if_empty, way_on
from kbr.app.run.folder import (
    BEST,
    DATA,
    FAILURE,
    MANIFEST,
    METRICS,
    RESULTS,
    STORY,
    RunContext,
    read_json,
    write_json,
    write_rows,
)
from kbr.app.run.monitoring import log_outcome
from kbr.app.run.record import fingerprint, manifest, why_unfinished
from kbr.app.run.resume import begun_with
from kbr.app.run.trainer import is_parallel, launch_of, trainer_settings
from kbr.app.runs.metrics import trial_uncertainty, uncertainty_metrics
from kbr.app.sweep.grid import searches
from kbr.app.sweep.progress import SweepProgress
from kbr.app.tasks.task import Problem
from kbr.app.terminal import stop
from kbr.app.text.commands import command, setting, shown
from kbr.app.text.numbers import in_digits, with_error
from kbr.core.errors import KbrError, Preempted, WorkerLost
from kbr.core.io import checkpoint
from kbr.loading import load_filter

FULL = (errno.ENOSPC, errno.EDQUOT)
LAST_SEED = 2**63 - 1  # of PyTorch's generators

SHOWN = (
    "val/mse",
    "val/mse_standardised",
    "test/mse_standardised",
    "test/angular_error_degrees",
    "test/mse_db",
    "test/mse_of_zero",
    "test/mse_of_mean",
    "test/mse_of_raw_kernel",
)


def train_job(config: DictConfig) -> float | None:
    """The task function: returns the validation error for sweepers to minimise, see `objective`."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    sweeping = hydra.mode == RunMode.MULTIRUN
    if not launch_of().is_first:
        _work(config, folder)
        return None
    if sweeping:
        reason = why_unfinished(folder, fingerprint(config))
        if reason is None:
            return objective(read_json(folder / METRICS) or {}, config.optimized_metric)
        if reason:
            print(f"  {folder.name} is run again: {reason}")
        for name in (FAILURE, MANIFEST):
            (folder / name).unlink(missing_ok=True)
    try:
        return _run(config, folder, sweeping)
    except (Preempted, KeyboardInterrupt) as stopped:
        end_early(config, folder, stopped, sweeping)
    except KbrError as error:
        if not sweeping:
            remove_if_empty(folder)
            way = f" Go on: {way_on(config, folder)}" if isinstance(error, WorkerLost) else ""
            stop(f"{error}{way}")
        (folder / FAILURE).write_text(f"{error}\n")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL and not sweeping:
            way = way_on(config, folder)
            stop(f"{error.strerror}. Checkpoints are whole: make room, then: {way}")
        if not sweeping:
            raise
        # Whatever it is, the other cells go on; a bug's report needs the traceback.
        (folder / FAILURE).write_text(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    return math.nan


def objective(metrics: dict[str, Any], name: str | None = None) -> float | None:
    """What sweepers minimise: the metric of this name, else the error on the validation block.

    None for models that choose nothing by validation (ekf, ukf, particle, oracle) and for
    data=gaussian: a sweeper that searches is told so, a grid needs none.
    """
    if name is not None:
        if name not in metrics:
            raise KbrError(
                f"optimized_metric={name} was not measured. There are: {', '.join(metrics)}."
            )
        return float(metrics[name])
    errors = [value for key, value in metrics.items() if key.startswith("val/mse")]
    return float(errors[0]) if errors else None


def _work(config: DictConfig, folder: Path) -> None:
    """Take part in the training of another process, which writes and reports."""
    try:
        _run(config, folder, sweeping=False)
    except (Preempted, KeyboardInterrupt):
        raise SystemExit(0) from None
    except KbrError as error:
        started = torch.distributed.is_available() and torch.distributed.is_initialized()
        if started:  # otherwise the first worker says the same
            stop(f"worker {launch_of().rank}: {error}")
        raise SystemExit(2) from None


def _run(config: DictConfig, folder: Path, sweeping: bool) -> float | None:
    by_hydra = HydraConfig.initialized()
    check_packages(config)
    if by_hydra:
        check_config(config, HydraConfig.get())
    torch.set_num_threads(config.trainer.threads)
    seeds = trial_seeds(config)
    mark = fingerprint(config)
    trusted = None if config.resume is None else names_of(config.trust)
    problem, method = build(config, trusted)
    is_first = launch_of().is_first
    if not (is_first or getattr(method, "trains", False)):
        raise SystemExit(0)  # a closed form has work for one process
    if sweeping and is_parallel(config.trainer):
        raise KbrError(
            "the cells of a sweep run in one process each. Use trainer=cpu or trainer=gpu, and "
            "hydra/launcher=side_by_side for several cells at once."
        )
    added = config.get("callbacks") or ()
    context = RunContext(
        folder=folder,
        trainer=trainer_settings(config),
        logger=part(config, "logger", trusted),
        callbacks=[part(config, f"callbacks.{name}", trusted) for name in added],
        resume=Path(str(config.resume)) if config.resume is not None else None,
        quiet=sweeping,
        sweep=SweepProgress.of(HydraConfig.get()) if by_hydra and sweeping else None,
        is_first=is_first,
    )
    if is_first and not sweeping:
        print(f"{method.name} on {problem.name}, {len(seeds)} trial(s)")
    started, busy = time.perf_counter(), time.process_time()
    outcome = method.run(problem, seeds, context)
    cores = (time.process_time() - busy) / (time.perf_counter() - started)
    if outcome.alternative is not None and getattr(method, "compare_learned", False):
        from kbr.app.models.trained import tried  # with Lightning, which few runs need

        other = tried(outcome.alternative, outcome, problem, seeds[0])  # type: ignore[arg-type]
        outcome = replace(outcome, alternative=other)
    seconds = time.perf_counter() - started
    metrics = write_outcome(folder, problem, method.name, seeds, outcome, cores=cores)
    minimised = objective(metrics, config.get("optimized_metric"))
    if sweeping and by_hydra and searches(HydraConfig.get()) and minimised is None:
        raise KbrError(
            f"model={method.name} on data={problem.name} has no validation error that a sweeper "
            "could minimise. List its values instead, or search settings of another model."
        )
    if isinstance(problem, OwnData):
        write_json(folder / DATA, problem.record())
    if outcome.state:  # trained models have written theirs already
        checkpoint.save(folder / BEST, outcome.state)
    words = typed_words(HydraConfig.get()) if by_hydra else []
    typed = words if config.resume is None else begun_with(folder)
    pictures = run_figures(folder / "figures", outcome, quick=sweeping)
    pictures += story_figures(folder, problem, method)
    if config.logger.get("name") == "tensorboard":
        log_outcome(folder, config, metrics, outcome, pictures, typed)
    if not sweeping:
        write_run_page(
            folder,
            model=method.name,
            data=problem.name,
            outcome=outcome,
            metrics=metrics,
            seconds=seconds,
            typed=typed,
            recorded=problem.is_recorded,
            units=problem.filter_units,
        )
    about = {
        "seconds": round(seconds, 3),
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "notes": list(outcome.notes),
        "edges": [asdict(edge) for edge in outcome.edges],
    }
    write_json(folder / MANIFEST, {**manifest(folder, mark), **about})
    (folder / FAILURE).unlink(missing_ok=True)  # of a cell that failed before it was resumed
    if not sweeping:
        _report(folder, metrics, outcome, seconds, outside(config), typed)
    return minimised


def trial_seeds(config: DictConfig) -> list[int]:
    """The seeds seed .. seed + trials - 1; an experiment may have fewer trials for some models."""
    own = OmegaConf.select(config, "figure.trials") or {}
    trials = own.get(config.model.get("name"), config.trials)
    if trials < 1:
        raise KbrError(f"trials must be at least 1; got {trials}.")
    if not 0 <= config.seed <= LAST_SEED - trials:
        raise KbrError(f"seed must be from 0 to 2**63 - 1 - trials; got {config.seed}.")
    return list(range(config.seed, config.seed + trials))


def story_figures(folder: Path, problem: Problem, method: Any) -> list[Path]:
    """The picture of a real recording, by the filter that this run has kept, if it has."""
    story = getattr(problem, "story", None)
    if story is None or isinstance(method, OwnModel):
        return []
    path = folder / STORY
    story(path, problem, load_filter(folder))
    return [path]


def write_outcome(
    folder: Path,
    problem: Problem,
    model: str,
    seeds: Sequence[int],
    outcome: Outcome,
    *,
    cores: float = 1.0,
) -> dict[str, Any]:
    """metrics.json (flat) and results.csv (a row for each trial).

    `cores` is how many were in use on average: CPU seconds in one of the clock.
    """
    mse = outcome.mse
    steps = getattr(problem, "test_steps", outcome.mean.shape[-2]) * len(seeds)
    cpu = {
        "fit_cpu_seconds": cores * outcome.fit_seconds / len(seeds),
        "step_cpu_seconds": cores * outcome.test_seconds / steps,
    }
    measure: Measure | None = getattr(problem, "measure", None)
    errors = None if measure is None else measure.of(outcome.mean - outcome.truth)
    metrics: dict[str, Any] = {
        "test/mse": float(mse.mean()),
        "test/mse_stderr": float(mse.std() / len(seeds) ** 0.5) if len(seeds) > 1 else 0.0,
        "test/trials": len(seeds),
        "fit/seconds": outcome.fit_seconds,
        "filter/seconds_per_step": outcome.test_seconds / steps,
        "fit/cpu_seconds": cores * outcome.fit_seconds,
        "filter/cpu_seconds_per_step": cpu["step_cpu_seconds"],
        **({} if errors is None else {"test/error": float(errors.mean())}),
        **({} if errors is None else {"test/measure": str(measure)}),
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
    shares = trial_uncertainty(outcome)
    rows = [
        {
            **problem.columns(),
            "model": model,
            "seed": seed,
            **{name: _tidy(float(values[i])) for name, values in outcome.chosen.items()},
            "mse": float(mse[i]),
            **({} if errors is None else {"error": float(errors[i]), "measure": str(measure)}),
            **{name: float(share[i]) for name, share in shares.items()},
            **{f"rmse {n}": float(rmse[i, k]) for k, n in enumerate(outcome.labels or ())},
            "seconds": round((outcome.fit_seconds + outcome.test_seconds) / len(seeds), 4),
            **{name: _tidy(value) for name, value in cpu.items()},
        }
        for i, seed in enumerate(seeds)
    ]
    write_rows(folder / RESULTS, rows)
    write_json(folder / METRICS, metrics)
    return metrics


def _tidy(value: float) -> float | str:
    return "" if value != value else float(f"{value:.6g}")


def _report(
    folder: Path,
    metrics: dict[str, Any],
    outcome: Outcome,
    seconds: float,
    trust: Sequence[str],
    typed: Sequence[str],
) -> None:
    line = in_digits(metrics["test/mse"])
    if metrics["test/trials"] > 1:
        line = with_error(metrics["test/mse"], metrics["test/mse_stderr"])
    others = [name for name in SHOWN if name in metrics]
    width = max(map(len, ["test/mse  ", *others]))
    summed = "   summed over columns of z" if len(outcome.labels or ()) > 1 else ""
    print(f"\n  {'test/mse':<{width}} {line}   ({seconds:.1f} s){summed}")
    if "test/measure" in metrics:
        print(f"  {'test/error':<{width}} {metrics['test/error']:<8.4g} {metrics['test/measure']}")
    for name in others:
        print(f"  {name:<{width}} {in_digits(metrics[name])}")
    for label in outcome.labels or ():
        print(f"  {'test/rmse':<{width}} {metrics[f'test/rmse/{label}']:<8.4g} {label}")
    for name in ("engine", "history", "velocity"):
        if f"filter/{name}" in metrics:
            print(f"  {name:<{width}} {metrics[f'filter/{name}']}")
    for note in outcome.notes:
        print(f"  note: {note}")
    other = outcome.alternative
    if other is not None:
        print(f"  note: {other}: model={other.model}")
    print(f"\n  run folder:  {shown(folder)}")
    print(f"  report:      {shown(folder / PAGE)}")
    trusting = [f"trust=[{','.join(trust)}]"] if trust else []
    print(f"  evaluate:    {command('evaluate', setting('run', shown(folder)), *trusting)}")
    if other is not None and HydraConfig.initialized():
        print(
            f"  the other:   {command('train', *without(typed, 'model'), f'model={other.model}')}"
        )
    if (folder / "tensorboard").is_dir():
        print(f"  monitor:     {shlex.join(['tensorboard', '--logdir', str(shown(folder))])}")
