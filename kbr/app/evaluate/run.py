"""Evaluate a finished run from its folder alone: same data, same checkpoint, same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from omegaconf import DictConfig, ListConfig

from kbr.app.building.trusted import build, names_of, saved_config
from kbr.app.evaluate.recording import evaluate_recording, print_errors, save_posterior
from kbr.app.figures.animation import animate
from kbr.app.figures.run import run_figures
from kbr.app.models.kernel import Method, Outcome
from kbr.app.run.folder import BEST, MANIFEST, read_json
from kbr.app.run.record import altered_files
from kbr.app.run.train import trial_seeds, write_outcome
from kbr.app.tasks.task import Problem
from kbr.app.terminal import stop
from kbr.core.errors import KbrError

TASKS = ("run", "report", "compare")


def evaluate_job(config: DictConfig) -> float | None:
    """The task function of evaluate.py."""
    try:
        asked = [name for name in TASKS if config[name] is not None]
        if len(asked) != 1:
            raise KbrError(
                f"say one thing to do: run=<run folder>, report=<folder> or compare=[a,b]; got "
                f"{' and '.join(asked) or 'none of them'}."
            )
        out = None if config.out is None else Path(config.out)
        if config.report is not None:
            from kbr.app.evaluate.report import rebuild_report

            rebuild_report(_paths(config.report), out)
            return None
        check_device(config.device)
        asked_for = {
            "seed": config.data.seed,
            "device": config.device,
            "trusted": names_of(config.trust),
        }
        if config.compare is not None:
            from kbr.app.evaluate.compare import compare_runs

            compare_runs(_paths(config.compare), out, **asked_for)
            return None
        folder, data = Path(config.run), config.data
        if data.path is None:
            for key in data:
                if key not in ("seed", "path") and data[key] is not None:
                    raise KbrError(f"data.{key} says how a new recording is read: set data.path.")
            return evaluate_run(folder, **asked_for)
        if data.seed is not None:
            raise KbrError(
                "data.path is a new recording, data.seed fresh sequences of a task: say one."
            )
        if config.device != "cpu":
            raise KbrError("a new recording is filtered on the CPU. Leave out device.")
        trust = names_of(config.trust)
        return evaluate_recording(folder, finished_config(folder), data, trust)
    except KbrError as error:
        stop(str(error))


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A run's model on test sequences; `seeds` are those of the sequences."""

    config: DictConfig
    problem: Problem
    method: Method
    seeds: list[int]
    outcome: Outcome


def evaluate_run(
    folder: Path, *, seed: int | None = None, device: str = "cpu", trusted: Sequence[str] = ()
) -> float:
    """Writes evaluation/ with metrics.json, results.csv, posterior.npz and figures."""
    done = apply_model(folder, seed=seed, device=device, trusted=trusted)
    problem, method, outcome = done.problem, done.method, done.outcome
    target = folder / "evaluation" / ("" if seed is None else f"seed_{seed}")
    metrics = write_outcome(target, problem, method.name, done.seeds, outcome)
    save_posterior(target / "posterior.npz", outcome)
    run_figures(target / "figures", outcome)
    animate(target / "figures" / "filter.gif", outcome)
    fresh = "" if seed is None else f", fresh test sequences from seed {seed}"
    print(f"{method.name} on {problem.name}, {len(done.seeds)} trial(s){fresh}")
    if outcome.labels is not None:
        print_errors(metrics, outcome.labels)
    else:
        print(f"  test/mse   {metrics['test/mse']:.6f}")
    print(f"  written:   {target}")
    return float(metrics["test/mse"])


def apply_model(
    folder: Path, *, seed: int | None = None, device: str = "cpu", trusted: Sequence[str] = ()
) -> Evaluated:
    """The checkpoint's model on its own test sequences, or on those of seed, seed + 1, ...

    Of what its settings name, kbr's own parts are built, and those that are `trusted`.
    """
    saved = finished_config(folder)
    torch.set_num_threads(saved.trainer.threads)
    seeds = trial_seeds(saved)
    problem, method = build(saved, trusted)
    problem.check_unchanged(folder)
    if seed is not None:
        problem = problem.with_fresh_tests(seed - seeds[0])
    if device != "cpu":
        if not hasattr(method, "device"):
            raise KbrError(
                f"device={device} is for trained networks; model={method.name} has none and runs "
                "on the CPU. Leave device=cpu."
            )
        method = replace(method, device=device)  # type: ignore[type-var]
    outcome = method.evaluate(problem, seeds, folder)
    tested = seeds if seed is None else [seed + i for i in range(len(seeds))]
    return Evaluated(config=saved, problem=problem, method=method, seeds=tested, outcome=outcome)


def finished_config(folder: Path) -> DictConfig:
    """The config of a run that has finished."""
    saved = saved_config(folder)
    if not (folder / MANIFEST).is_file():
        raise KbrError(
            f"{folder} has not finished: it has no {MANIFEST}. Resume or repeat the run."
        )
    done = read_json(folder / MANIFEST) or {}
    if changed := [name for name in altered_files(folder, done) if name.endswith(BEST.name)]:
        raise KbrError(
            f"{folder / changed[0]} is not the checkpoint that this run left: it was changed or "
            "swapped since. Copy the run again, or train again."
        )
    return saved


def check_device(device: str) -> None:
    """Before any work: a device that is not there is one line of advice."""
    if device not in ("cpu", "cuda"):
        raise KbrError(f"device must be cpu or cuda; got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise KbrError("device=cuda, but PyTorch sees no CUDA device here. Use device=cpu.")


def _paths(folders: str | Sequence[str]) -> list[Path]:
    """One folder or several, as they come from the command line."""
    several = isinstance(folders, list | tuple | ListConfig)
    return [Path(str(one)) for one in (folders if several else [folders])]
