"""experiment=real: the walk of its user, on a made-up folder in the format of the recordings."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from real_folder import write_folder

import kbr
from kbr.app.real import tasks
from kbr.app.real.battery import battery
from kbr.app.real.thinning import thinned
from kbr.app.real.turbofan import turbofan
from kbr.core.errors import KbrError

DATA = ("rtt_canteen", "battery", "turbofan", "uwb_plaza", "uwb_plaza2")
MEASURES = ("mean error [m]", "mean absolute error [%]", "root mean square error [cycles]")
REAL = Path(os.environ.get("KBR_TEST_DATA", "")) / "real"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("real"))


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def sweep(root, folder, *words):
    given = ["-m", "experiment=real", "quick=true", f"data.root={root}", "data.rows=40"]
    given += ["hydra/launcher=basic", f"hydra.sweep.dir={folder}/sweep", *words]
    done = call(*given, folder=folder)
    assert done.returncode == 0, done.stderr
    return done, folder / "sweep"


def check_tables(folder, data, models):
    """Tables in units, and a report with a picture of every recording."""
    table = rows_of(folder / "summary.csv")
    assert [(row["data"], row["model"]) for row in table] == [
        (name, model) for name in sorted(data) for model in models
    ]
    for row in table:
        assert row["measure"] in MEASURES
        assert 0 < float(row["error"]) < {"m": 8, "%": 30, "cycles": 60}[_unit(row)]
        assert 0 <= float(row["coverage_90"]) <= 1
        assert float(row["fit_cpu_seconds"]) > 0
        assert 0 < float(row["step_cpu_seconds"]) < 1
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(data)
    assert all(row["measure"] in page for row in table)
    assert (folder / "real.png").is_file()
    text = (folder / "table.txt").read_text()
    assert all(f"error: {row['measure']}" in text for row in table)
    assert max(map(len, text.splitlines())) <= 80


def test_a_quick_walk(root, tmp_path):
    """The sweep, its tables, what was said; the same command again has nothing left to do."""
    words = ["data=battery,uwb_plaza2", "model=iw,knn"]
    _, folder = sweep(root, tmp_path, *words)
    check_tables(folder, ["battery", "uwb_plaza2"], ["iw", "knn"])
    said = "this model takes no control inputs: they are in x already"
    assert said in _notes(folder, "battery", "knn")
    assert not any("takes no control" in note for note in _notes(folder, "battery", "iw"))
    done, _ = sweep(root, tmp_path, *words)
    assert done.stdout.count("already finished") == 4


@pytest.mark.slow
def test_all_recordings_and_models(root, tmp_path):
    models = [
        "iw",
        "iw_refined",
        "moving",
        "iw_nn",
        "lstm",
        "knn",
        "kernel_ridge",
        "kalman_regression",
    ]
    _, folder = sweep(root, tmp_path, f"model={','.join(models)}")
    check_tables(folder, DATA, models)


@pytest.mark.parametrize("name", ["rtt_canteen", "turbofan"])
def test_pictures_of_the_others(root, tmp_path, name):
    keys = {"rtt_canteen": {"missing": False, "resample": None}, "turbofan": {"truth": "last"}}
    problem = getattr(tasks, name)(name=name, root=str(root), rows=40, **keys[name])
    data = problem.data(0)
    filt = kbr.KernelBayesFilter(scales=[1.0], lams=[0.01], standardize=False)
    filt.fit(data.x_train, data.z_train, units=problem.filter_units)
    problem.story(tmp_path / "story.png", problem, filt)
    assert (tmp_path / "story.png").stat().st_size > 10_000


def _unit(row):
    return row["measure"].rpartition("[")[2].rstrip("]")


def _notes(sweep, data, model):
    (found,) = sweep.glob(f"*data-{data}+*model-{model}")
    return json.loads((found / "run.json").read_text())["notes"]


@pytest.mark.parametrize("data", ["battery", "uwb_plaza2"])
def test_what_a_run_says_and_an_evaluation_finds_again(root, tmp_path, data):
    keys = [f"data={data}", f"data.root={root}", "data.rows=80", "model=kalman_regression"]
    keys += ["data.controls=true"]
    done = call(*keys, "logger=csv", f"hydra.run.dir={tmp_path}/run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "takes no control inputs" in done.stdout
    assert "test/error" in done.stdout
    done = call(f"run={tmp_path}/run", script="evaluate.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = (
        json.loads((tmp_path / name / "metrics.json").read_text())
        for name in ("run", "run/evaluation")
    )
    assert after["test/error"] == pytest.approx(before["test/error"])


def test_without_controls_the_current_is_seen_only(root, tmp_path):
    keys = ["data=battery", f"data.root={root}", "data.controls=false", "data.rows=60", "model=iw"]
    done = call(*keys, "model.scales=[0.7]", f"hydra.run.dir={tmp_path}/run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "takes no control" not in done.stdout


def test_thinning_keeps_last_rows_and_adds_controls_up(root):
    found = turbofan(root).recording
    held_out = np.char.startswith(found.ids, "test/")
    few = thinned(found, held_out, 50)
    assert (~np.char.startswith(few.ids, "test/")).sum() <= 50
    assert int(np.isfinite(few.z[np.char.startswith(few.ids, "test/")]).sum()) == 6
    assert "every 10th of" in few.notes[-1]
    with pytest.raises(KbrError, match="too few for 6 training sequences"):
        thinned(found, held_out, 11)
    cell = battery(root, step=60).recording
    rest = np.char.startswith(cell.ids, "test/")
    few = thinned(cell, rest, 100)
    some = few.sequence == few.sequence[0]
    moved = np.diff(few.z[some, 0])
    spent = few.u[some, 0][1:] / 3600 / 3.5 * 60 * 5
    np.testing.assert_allclose(moved, spent, atol=2e-3)
    assert thinned(cell, rest, 10**6) is cell


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("KBR_TEST_DATA") and REAL.is_dir()),
    reason="KBR_TEST_DATA names no folder with the real recordings (docs/real_data.md)",
)
def test_the_charge_of_a_real_cell(tmp_path):
    """From an unknown start, without the charge counter, within 1.5 % on three drive cycles."""
    keys = ["data=battery", f"data.root={REAL}", "model=iw", f"hydra.run.dir={tmp_path}/run"]
    done = call(*keys, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert found["test/measure"] == "mean absolute error [%]"
    assert found["test/error"] <= 1.5
    assert 0.8 < found["test/coverage_90"] <= 1
