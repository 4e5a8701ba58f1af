"""Loggers that need a package of their own: every trial is a run, all on this machine."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALL = ["debug=smoke", "encoder=mlp", "model.filter.epochs=4", "trials=2", "trainer=cpu"]


def trained(folder: Path, logger: str) -> None:
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, f"logger={logger}"]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    done = subprocess.run(
        [*command, f"hydra.run.dir={folder / 'run'}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def test_mlflow_has_the_curves_of_both_trials(tmp_path):
    pytest.importorskip("mlflow")
    trained(tmp_path, "mlflow")
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        rows = store.execute("select run_uuid, count(*) from metrics group by run_uuid, key")
        runs = {run for run, _ in rows}
    assert len(runs) == 2


def test_weights_and_biases_has_a_run_for_each_trial(tmp_path):
    pytest.importorskip("wandb")
    trained(tmp_path, "wandb")
    assert len(list((tmp_path / "run").glob("seed_*/wandb/offline-run-*"))) == 2
