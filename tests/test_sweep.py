"""Sweeps end to end: what they leave, and that a killed one comes to the same end."""

import csv
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import Done, call
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parent.parent
FILES = ("results.csv", "summary.csv", "table.txt", "report.html")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        every = csv.DictReader(file)
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in every]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "-m",
        *arguments,
        f"hydra.sweep.dir={folder}",
    ]
    pipe = subprocess.PIPE
    marked = {**os.environ, "KBR_TEST_SWEEP": str(folder)}
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=marked)


def sweep(folder: Path, *arguments: str) -> Done:
    return call("-m", *arguments, f"hydra.sweep.dir={folder}")


@pytest.mark.slow
def test_killed_at_a_random_moment_and_started_again_gives_the_same_results(tmp_path):
    arguments = ["experiment=posterior_mean", "data.dim=2,4", "trials=2", "data.n_train=50"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    start(whole, *arguments).communicate(timeout=120)
    killed = start(cut, *arguments)
    deadline = time.monotonic() + 60
    while not list(cut.glob("*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.uniform(0, 1.5))
    killed.kill()
    killed.communicate()
    again = start(cut, *arguments)
    printed, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert "already finished" in printed
    assert rows(cut) == rows(whole)
    assert (cut / "summary.csv").read_text() == (whole / "summary.csv").read_text()


def test_a_sweep_of_ones_own_gets_tables_figure_and_report(tmp_path):
    """A numeric key of any name is the x axis; seeds given as runs are trials."""
    arguments = ["data=rotation", "data.n_test=10", "data.n_train=30", "model=ekf,particle"]
    done = sweep(tmp_path, *arguments, "data.sigma_x=0.1,0.3", "seed=0,1")
    printed = done.stdout
    assert done.returncode == 0, done.stderr
    assert "[8/8]" in printed
    assert "left" in printed
    assert max(map(len, printed.replace(str(tmp_path), "").splitlines())) <= 80
    assert len(rows(tmp_path)) == 8
    assert {row["data.sigma_x"] for row in rows(tmp_path)} == {"0.1", "0.3"}
    for name in (*FILES, "sweep.png", "sweep.svg"):
        assert (tmp_path / name).is_file(), name
    with (tmp_path / "summary.csv").open() as file:
        assert [int(row["trials"]) for row in csv.DictReader(file)] == [2, 2, 2, 2]


def test_a_failed_cell_is_reported_and_the_others_go_on(tmp_path):
    arguments = ["data=rotation", "data.n_test=10", "data.n_train=3,30", "model=iw"]
    done = sweep(tmp_path, *arguments)
    assert done.returncode == 1
    assert "n_train" in done.stderr
    assert "failed" in done.stdout
    assert len(rows(tmp_path)) == 1
    assert "Failed runs" in (tmp_path / "report.html").read_text()


def test_what_cannot_be_gathered_is_an_error(tmp_path, monkeypatch, capsys):
    """Hydra itself would warn and end with exit code 0."""
    from kbr.app.sweep import results as sweep_results
    from kbr.app.sweep.callback import SweepReport

    def broken(folder: Path, figure: object) -> None:
        raise KeyError("label")

    monkeypatch.setattr(sweep_results, "gather", broken)
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    with pytest.raises(SystemExit):
        SweepReport().on_multirun_end(config)
    assert "KeyError" in capsys.readouterr().err


@pytest.mark.slow
def test_cells_end_with_their_sweep(tmp_path):
    """The sweep alone is killed, not its group: its workers stop by themselves."""
    arguments = ["data=dsprites", "model=iw_nn", "data.n_train=300", "seed=0,1,2,3", "logger=csv"]
    killed = start(tmp_path, *arguments, "hydra/launcher=side_by_side")
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*/.hydra/config.yaml"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)
    killed.kill()
    killed.communicate(timeout=120)  # until the last of them has let go of the terminal
    assert not running(tmp_path)
    assert not list(tmp_path.glob("*/run.json"))


def running(folder: Path) -> list[str]:
    """Worker processes of the sweep into `folder`, which its name marks through the environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (place / "environ").read_bytes():
                found.append(place.name)
        except OSError:
            continue  # ended, or not ours
    return found


def test_cells_that_would_share_a_folder_are_refused(tmp_path):
    done = sweep(tmp_path, "data=rotation", "model=ekf", "trials=1,2")
    assert done.returncode != 0
    assert "Give trials once" in done.stderr


def test_finished_trials_of_a_killed_cell_are_not_trained_again(tmp_path):
    """As if killed after the second training ended, before the cell wrote its own files."""
    arguments = ["data=dsprites", "data.n_train=40", "data.n_test=10", "model=iw_nn,lstm"]
    short = ["trials=2", "model.filter.epochs=3", "logger=csv"]
    sweep(tmp_path, *arguments, *short)
    first = rows(tmp_path)
    cell = next(tmp_path.glob("*model-lstm*"))
    (cell / "run.json").unlink()
    weights = sorted(cell.glob("seed_*/checkpoints/last.ckpt"))
    before = [path.stat().st_mtime_ns for path in weights]
    assert len(before) == 2
    again = sweep(tmp_path, *arguments, *short)
    assert "already finished" in again.stdout, again.stderr
    assert [path.stat().st_mtime_ns for path in weights] == before
    assert rows(tmp_path) == first
