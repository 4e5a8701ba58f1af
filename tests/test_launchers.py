"""Sweeps over processes, run ids under launchers, and the search for settings."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import call
from omegaconf import OmegaConf

from kbr.app.cli import _launchers_id
from kbr.core.errors import KbrError

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["data=rotation", "data.n_test=10", "model=ekf"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "train.py"), "-m", *arguments]
    return subprocess.Popen(
        [*command, f"hydra.sweep.dir={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        every = csv.DictReader(file)
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in every]


def test_all_processes_of_a_launcher_have_one_id():
    slurm = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2"}
    assert _launchers_id(slurm) == "17.2"
    assert _launchers_id({"SLURM_JOB_ID": "17"}) is None  # a shell on a cluster: by the clock
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert _launchers_id({**torchrun, "TORCHELASTIC_RUN_ID": "mine"}) == "mine"
    assert _launchers_id(torchrun) == f"torchrun_{os.getppid()}"
    with pytest.raises(SystemExit):
        _launchers_id({**torchrun, "LOCAL_WORLD_SIZE": "1"})


def test_a_cell_with_a_bug_is_reported_and_the_others_go_on(tmp_path):
    """Not one of our own errors: a class that makes no data."""
    (tmp_path / "mine" / "data").mkdir(parents=True)
    text = "_target_: kbr.app.tasks.task.Filtering\nname: broken\nn_train: 40\nn_test: 10\n"
    broken = tmp_path / "mine" / "data" / "broken.yaml"
    broken.write_text(text + "task: {_target_: collections.OrderedDict}\n")
    own = ["--config-dir", str(tmp_path / "mine")]
    words = ["-m", *own, "data=broken,rotation", "data.n_test=10", "model=iw"]
    done = call(*words, f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 1, done.stderr
    assert "[2/2]" in done.stdout
    assert "failed: " in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(rows(tmp_path)) == 1
    (failure,) = tmp_path.glob("*/failure.txt")
    assert "Traceback" in failure.read_text()


def test_cells_of_a_sweep_are_one_process_each(tmp_path):
    done = call("-m", *SMALL, "trainer=ddp_cpu", "seed=0,1", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 1
    assert "hydra/launcher=side_by_side" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_joblib_sweep_killed_half_way_is_completed_by_the_same_command(tmp_path):
    cells = [*SMALL, "data.sigma_x=0.1,0.2,0.3,0.4", "seed=0,1"]
    joblib = ["hydra/launcher=side_by_side"]
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    killed = start(cut, *cells, *joblib)
    deadline = time.monotonic() + 600
    while len(list(cut.glob("*/run.json"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    finished = {path: path.stat().st_mtime_ns for path in cut.glob("*/run.json")}
    assert 4 <= len(finished) < 8
    for begun in {path.parent for path in cut.glob("*/.hydra")} - {p.parent for p in finished}:
        (begun / "metrics.json").write_text('{"test/mse": 0.')  # what a killed process may leave
        (begun / ".results.csv.1.tmp").write_text("data,model")
    again = start(cut, *cells, *joblib)
    printed, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    assert printed.count("already finished") == len(finished)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    uninterrupted = start(whole, *cells)
    assert "[8/8]" in uninterrupted.communicate(timeout=600)[0]
    assert len(rows(cut)) == 8
    assert rows(cut) == rows(whole)


@pytest.fixture
def search():
    pytest.importorskip("optuna")
    from kbr.app.sweep import tune as search

    return search


def test_ranges_on_the_command_line_are_searched(search):
    given = [
        "model=lstm",
        "model.filter.lr=tag(log,interval(1e-4,1e-2))",
        "model.filter.hidden=8,9",
    ]
    fixed, space = search.split(given)
    assert fixed == ["model=lstm"]
    assert [one.get_key_element() for one in space] == ["model.filter.lr", "model.filter.hidden"]

    class Trial:
        def suggest_float(self, key, low, high, *, log):
            return (low, high, log)[1]

        def suggest_categorical(self, key, values):
            return values

    assert search.suggestion(Trial(), space[0]) == 1e-2
    assert search.suggestion(Trial(), space[1]) == ["8", "9"]
    assert search.all_values(space, 100) is None
    assert search.all_values(space[1:], 1) is None
    assert search.all_values(space[1:], 2) == {"model.filter.hidden": ["8", "9"]}


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        *(
            (model, {f"model.filter.{name}" for name in ("lr", "noise", "patience", own)})
            for model, own in (
                ("iw_nn", "lam"),
                ("lstm", "window"),
                ("gru", "chunk"),
                ("lru", "layers"),
                ("rkn", "hidden"),
                ("transformer", "window"),
                ("kalman_nn", "hidden"),
            )
        ),
    ],
)
def test_what_is_searched_by_itself(search, model, keys):
    fixed = [f"model={model}"]
    space = search.default_space(search.composed(fixed), fixed)
    assert {one.get_key_element() for one in space} == keys
    kept = search.default_space(search.composed(fixed), [*fixed, "model.filter.lr=1"])
    assert {one.get_key_element() for one in kept} == keys - {"model.filter.lr"}


def test_a_space_is_a_file_by_its_name(search):
    fixed = ["model=iw_nn", "hparams_search=lstm"]
    space = search.default_space(search.composed(fixed), fixed)
    assert [one.input_line for one in space] == [
        "model.filter.lr=tag(log,interval(1e-3,2e-2))",
        "model.filter.noise=tag(log,interval(0.03,1.0))",
        "model.filter.patience=choice(6,100)",
    ]


TUNED = sorted(path.stem for path in (ROOT / "configs" / "hparams").glob("*.yaml"))


@pytest.mark.parametrize("name", TUNED)
def test_tuned_settings_are_those_of_the_best_run(search, name):
    """Of the study beside them; they are in use where their file is named."""
    data, _, model = name.partition("_")
    config = search.composed([f"data={data}", f"model={model}", f"hparams={name}"])
    with (ROOT / "configs" / "hparams" / f"{name}.csv").open() as file:
        runs = [row for row in csv.DictReader(file) if row["state"] == "complete"]
    best = min(runs, key=lambda row: float(row["val/mse"]))
    searched = [key for key in best if key.startswith(("model.", "encoder."))]
    assert len(searched) >= 4
    for key in searched:
        used = OmegaConf.select(config, key)
        assert used == pytest.approx(float(best[key]), rel=1e-3)


def test_the_first_run_has_the_models_own_settings(search):
    """Where they are among the values to try; others are drawn."""
    config = search.composed(["model=gru"])
    space = search.default_space(config, ["model=gru"])
    assert search.own_values(config, space) == {
        "model.filter.lr": 3e-3,
        "model.filter.noise": 0.1,
        "model.filter.patience": "6",
        "model.filter.chunk": "100",
    }
    other = search.composed(["model=gru", "model.filter.noise=5", "model.filter.chunk=70"])
    assert set(search.own_values(other, space)) == {"model.filter.lr", "model.filter.patience"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hparams_search=iw_nn"], "hparams_search=iw_nn is a search: `kbr-tune hparams_search="),
        (["-m", "hparams_search=iw_nn"], "model.filter.lr is a range, and a grid needs its values"),
    ],
)
def test_a_space_is_not_for_a_single_run_nor_for_a_grid(tmp_path, words, says):
    done = call(*words, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"kbr: {says}")
    assert done.stderr.count("\n") == 1


def test_a_search_that_has_nothing_to_search_says_so(search, tmp_path):
    with pytest.raises(KbrError, match="no training to search over"):
        search.search(["data=rotation", "model=iw"], trials=1, study=tmp_path / "study.db")
    with pytest.raises(KbrError, match="at least 1"):
        search.search([], trials=0, study=tmp_path / "study.db")
    with pytest.raises(KbrError, match=r"trials must be a whole number of at least 1; got 1.3"):
        search.search(["trials=1.3"], trials=1, study=tmp_path / "study.db")


@pytest.mark.filterwarnings("ignore")  # Optuna's own, about what is experimental
def test_a_search_goes_on_prunes_and_ends_with_a_command(search, tmp_path, capsys, monkeypatch):
    given = [
        "data=rotation",
        "data.n_train=30",
        "data.n_test=2",
        "trainer=cpu",
        "model.filter.epochs=2",
        "model.filter.val_every=1",
        "model.filter.n_fourier=8",
        "encoder=mlp",
        "encoder.hidden=[8]",
    ]
    study = tmp_path / "study.db"
    search.search([*given, "model.filter.lr=interval(1e-3,1e-2)"], trials=1, study=study)
    capsys.readouterr()
    keep, searched = tmp_path / "configs" / "hparams", "model.filter.lr=interval(1e-3,1e-2)"
    best = search.search([*given, searched], trials=2, study=study, keep=keep)
    printed = capsys.readouterr().out
    assert "1 done" in printed
    assert printed.count("[2/2]") == 1
    assert f"model.filter.lr={best.params['model.filter.lr']:.4g}" in printed
    assert "python train.py data=rotation" in printed
    assert best.value > 0
    assert f"settings    {keep / 'rotation_iw_nn.yaml'}" in printed
    assert len((keep / "rotation_iw_nn.csv").read_text().splitlines()) == 3
    applied = ["data=rotation", "model=iw_nn", "encoder=mlp", "hparams=${data}_${model}"]
    config = search.composed([*applied, f"hydra.searchpath=[file://{keep.parent}]"])
    assert config.model.filter.lr == pytest.approx(best.params["model.filter.lr"], rel=1e-3)
    assert config.model.filter.n_fourier == 8  # which was the same in all runs
    assert config.data.n_train != 30
    others = ["model=lstm", "hparams=rotation_iw_nn", f"hydra.searchpath=[file://{keep.parent}]"]
    with pytest.raises(KbrError, match="hparams=rotation_iw_nn holds settings of another model"):
        search.composed(others)
    pruner = sys.modules["optuna"].pruners.MedianPruner
    monkeypatch.setattr(pruner, "prune", lambda self, study, trial: trial.number == 2)
    search.search([*given, "model.filter.lr=interval(1e-3,1e-2)"], trials=3, study=study)
    assert "[3/3] pruned" in capsys.readouterr().out
    search.search([*given, "model.filter.lr=3e-3,5e-3"], trials=9, study=study)
    assert "[2/2]" in (printed := capsys.readouterr().out)
    assert sorted(re.findall(r"lr=(\S+)", printed)[:2]) == ["0.003", "0.005"]
