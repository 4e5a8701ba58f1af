"""Sweeps: the estimate of the time left, and that a killed sweep comes to the same end."""

import csv
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from kbr.app.sweep_progress import Cell, Timeline, grid_of, in_words, seconds_left

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
FILES = ("results.csv", "summary.csv", "table.txt", "report.html")


def ran(start: float, end: float) -> Cell:
    return Cell(start=start, end=end, skipped=False)


def skipped(at: float) -> Cell:
    return Cell(start=at, end=at, skipped=True)


def test_the_estimate_is_the_time_of_a_cell_times_those_left():
    assert seconds_left([ran(0, 10), ran(10, 30)], 6) == pytest.approx(60)


def test_skipped_cells_do_not_spoil_the_estimate():
    cells = [skipped(0), skipped(1), skipped(2), ran(3, 13)]
    assert seconds_left(cells, 6) == pytest.approx(20)
    assert seconds_left(cells[:3], 6) is None


def test_cells_side_by_side_share_the_clock():
    assert seconds_left([ran(0, 10), ran(0, 10)], 6) == pytest.approx(20)


def test_without_a_total_there_is_no_estimate():
    assert seconds_left([ran(0, 1)], None) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.42, "0.4 s"), (40, "40 s"), (720, "12 min"), (12600, "3.5 h")]
)
def test_times_in_words(seconds, words):
    assert in_words(seconds) == words


def test_the_timeline_is_shared_through_its_file(tmp_path):
    one, two = (Timeline(path=tmp_path / "progress") for _ in range(2))
    one.clear()
    one.add(ran(0, 1))
    assert two.add(skipped(2)) == [ran(0, 1), skipped(2)]


@pytest.mark.parametrize(
    ("overrides", "total"),
    [
        (["experiment=low_dim"], 50),
        (["experiment=low_dim", "model=iw", "data.n_train=10,20,30"], 6),
        (
            ["data=rotation,oscillatory", "seed=range(0,5)", "model.scales=[1.0,2.0]", "model=iw"],
            10,
        ),
        (["data=rotation"], 1),
    ],
)
def test_the_number_of_cells_is_known_beforehand(overrides, total):
    """Overrides on the command line take the place of the experiment's own."""
    experiment = [text for text in overrides if text.startswith("experiment")]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", overrides=experiment, return_hydra_config=True)
    OmegaConf.set_readonly(config, False)
    config.hydra.overrides.task = overrides
    grid = grid_of(config.hydra)
    assert grid is not None
    product = 1
    for count in grid.values():
        product *= count
    assert product == total


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "-m",
        *arguments,
        f"hydra.sweep.dir={folder}",
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


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
    done = start(tmp_path, *arguments, "data.sigma_x=0.1,0.3", "seed=0,1")
    printed, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
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
    done = start(tmp_path, *arguments)
    printed, errors = done.communicate(timeout=120)
    assert done.returncode == 1
    assert "n_train" in errors
    assert "failed" in printed
    assert len(rows(tmp_path)) == 1
    assert "Failed runs" in (tmp_path / "report.html").read_text()
