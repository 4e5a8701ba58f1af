"""Evaluate a finished run from its folder alone: same data, same checkpoint, same numbers."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from kbr.app.cli import stop
from kbr.app.job import build, saved_config, trial_seeds, write_outcome
from kbr.app.methods import Outcome
from kbr.app.own.problem import OwnData
from kbr.app.run_figures import run_figures
from kbr.app.run_folder import DATA, MANIFEST, write_bytes
from kbr.core.errors import KbrError


def evaluate_job(config: DictConfig) -> float:
    """The task function of evaluate.py."""
    try:
        if config.run is None:
            raise KbrError("say which run to evaluate: python evaluate.py run=outputs/...")
        return evaluate_run(Path(config.run))
    except KbrError as error:
        stop(str(error))
        raise


def evaluate_run(folder: Path) -> float:
    """Writes evaluation/ with metrics.json, results.csv, posterior.npz and figures."""
    saved = saved_config(folder)
    if not (folder / MANIFEST).is_file():
        raise KbrError(
            f"{folder} has not finished: it has no {MANIFEST}. Resume or repeat the run."
        )
    torch.set_num_threads(saved.trainer.threads)
    seeds = trial_seeds(saved)
    problem, method = build(saved)
    if isinstance(problem, OwnData):
        problem.check_same(json.loads((folder / DATA).read_text()))
    outcome = method.evaluate(problem, seeds, folder)
    target = folder / "evaluation"
    metrics = write_outcome(target, problem, method.name, seeds, outcome)
    _save_posterior(target / "posterior.npz", outcome)
    run_figures(target / "figures", outcome)
    print(f"{method.name} on {problem.name}, {len(seeds)} trial(s)")
    print(f"  test/mse   {metrics['test/mse']:.6f}")
    print(f"  written:   {target}")
    return float(metrics["test/mse"])


def _save_posterior(path: Path, outcome: Outcome) -> None:
    assert outcome.cov is not None
    arrays = {"mean": outcome.mean, "cov": outcome.cov, "truth": outcome.truth}
    content: dict[str, Any] = {name: value.numpy() for name, value in arrays.items()}
    if outcome.labels is not None:
        content["labels"] = np.array(outcome.labels)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **content)
    write_bytes(path, buffer.getvalue())
