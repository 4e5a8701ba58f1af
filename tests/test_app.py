"""The command line as a user meets it: every yaml runs, results are written, mistakes are named."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Done, call
from hydra import compose, initialize_config_dir

from kbr.loading import RECURRENT

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
SMOKE = ["debug=smoke", "trainer=cpu"]


def train(folder: Path, *arguments: str, pictures: bool = False) -> Done:
    return call(*arguments, *SMOKE, f"hydra.run.dir={folder}", pictures=pictures)


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


@pytest.mark.parametrize("group", ["data", "model", "encoder", "trainer", "logger", "experiment"])
def test_every_option_composes(group):
    """Each yaml of each group gives a complete config; interpolations resolve."""
    from omegaconf import OmegaConf

    import kbr.app.cli  # noqa: F401  (registers the resolvers)

    for option in options(group):
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = compose("train", overrides=[f"{group}={option}"])
        OmegaConf.to_container(config, resolve=True)


# One for each set of pictures that a run may have; the other models have the same.
DRAWN = [("gaussian", "iw"), ("oscillatory", "iw_refined"), ("oscillatory", "ekf")]
DRAWN += [("dsprites", "particle")]


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ("gaussian", "iw"),
        ("gaussian", "iw_paper"),
        ("gaussian", "original"),
        ("gaussian", "iw_true_ratio"),
        ("rotation", "iw"),
        ("oscillatory", "iw_refined"),
        ("rotation", "moving"),
        ("oscillatory", "iw_paper"),
        ("oscillatory", "original"),
        ("oscillatory", "iw_true_ratio"),
        ("oscillatory", "ekf"),
        ("rotation", "ukf"),
        ("oscillatory", "particle"),
        ("dsprites", "particle"),
    ],
)
def test_a_run_leaves_its_folder_and_evaluates_to_the_same_numbers(tmp_path, data, model):
    folder, pictures = tmp_path / "run", (data, model) in DRAWN
    words = [f"data={data}", f"model={model}", "trials=2", "seed=5"]
    done = train(folder, *words, pictures=pictures)
    assert done.returncode == 0, done.stderr
    assert str(folder) in done.stdout
    assert max(len(line) for line in done.stdout.replace(str(folder), "").splitlines()) <= 80
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = read(folder / "results.csv")
    assert [row["seed"] for row in rows] == ["5", "6"]
    mean = sum(float(row["mse"]) for row in rows) / 2
    assert metrics["test/mse"] == pytest.approx(mean)
    assert (folder / ".hydra" / "config.yaml").is_file()
    assert list((folder / "figures").glob("*.png"))
    assert list((folder / "tensorboard").iterdir())

    again = call(f"run={folder}", script="evaluate.py", pictures=pictures)
    assert again.returncode == 0, again.stderr
    evaluated = json.loads((folder / "evaluation" / "metrics.json").read_text())
    assert evaluated["test/mse"] == pytest.approx(metrics["test/mse"], rel=1e-6)
    assert (folder / "evaluation" / "posterior.npz").is_file()


def test_the_same_seed_gives_the_same_metrics(tmp_path):
    found = []
    for name in ("a", "b"):
        train(tmp_path / name, "data=oscillatory", "model=iw")
        metrics = json.loads((tmp_path / name / "metrics.json").read_text())
        found.append({k: v for k, v in metrics.items() if "seconds" not in k})
    assert found[0] == found[1]


def test_a_sweep_writes_tables_and_skips_what_is_finished(tmp_path):
    arguments = [
        "-m",
        "experiment=low_dim",
        "data=rotation",
        "model=iw,ekf",
        "data.n_train=40,60",
        "data.n_test=10",
        "trials=2",
        f"hydra.sweep.dir={tmp_path}",
    ]
    command = [sys.executable, str(ROOT / "train.py"), *arguments]  # its cells are processes too
    first = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert first.returncode == 0, first.stderr
    assert "wall time" in first.stdout
    rows = read(tmp_path / "results.csv")
    assert len(rows) == 8
    for name in ("summary.csv", "table.txt", "low_dim.png", "low_dim.svg"):
        assert (tmp_path / name).is_file()
    before = (tmp_path / "results.csv").read_text()
    second = call(*arguments, "hydra/launcher=basic")  # nothing is left to do side by side
    assert second.stdout.count("already finished") == 4
    assert (tmp_path / "results.csv").read_text() == before


def test_a_trained_model_runs_evaluates_and_resumes(tmp_path):
    """The default model through both scripts; a run that was cut short goes on."""
    small = ["model.filter.val_every=2", "model.filter.checkpoint_every=2", "model.filter.epochs=4"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = train(whole, *small, "logger=csv")
    assert done.returncode == 0, done.stderr
    assert "test/mse_of_raw_kernel" in done.stdout
    assert (whole / "csv" / "metrics.csv").is_file()
    expected = json.loads((whole / "metrics.json").read_text())["test/mse"]
    again = call(f"run={whole}", script="evaluate.py")
    assert again.returncode == 0, again.stderr
    evaluated = json.loads((whole / "evaluation" / "metrics.json").read_text())
    assert evaluated["test/mse"] == pytest.approx(expected, rel=1e-6)
    # A run that was killed leaves its settings, last.ckpt and no results.
    (cut / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / "checkpoints" / "last.ckpt", cut / "checkpoints" / "last.ckpt")
    shutil.copytree(whole / ".hydra", cut / ".hydra")
    resumed = call(f"resume={cut}")
    assert resumed.returncode == 0, resumed.stderr
    found = json.loads((cut / "metrics.json").read_text())["test/mse"]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("model", RECURRENT)
def test_networks_run(tmp_path, model):
    few = ["model.filter.epochs=2", "model.filter.val_every=1"]
    done = train(tmp_path / "run", f"model={model}", *few)
    assert done.returncode == 0, done.stderr


def test_posterior_mean_has_a_dim_column(tmp_path):
    folder = tmp_path / "run"
    train(folder, "data=gaussian", "model=iw_paper", "data.dim=3", "model.tune=true")
    rows = read(folder / "results.csv")
    assert rows[0]["dim"] == "3"
    assert float(rows[0]["lam"]) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["modle=iw"], ["modle"]),
        (["data=oscillatory", "model=iw", "model.lamm=1"], ["lamm"]),
        (["data=nonsense"], ["nonsense", "oscillatory"]),
        (["data=oscillatory", "model=iw", "model.lam=-1"], ["lam", "-1"]),
        (["data=oscillatory", "model=iw", "data.n_train=3"], ["n_train"]),
        (["data=gaussian", "model=ekf"], ["ekf", "gaussian"]),
        (["data=gaussian", "model=lstm"], ["lstm", "gaussian"]),
        (["data=gaussian", "data.dim=0", "model=iw"], ["dim"]),
        (["data=oscillatory", "model=iw", "trainer.threads=0"], ["trainer.threads"]),
        (["data=dsprites", "data.source=file", "data.path=/nowhere", "model=iw"], ["data.path"]),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing_behind(tmp_path, arguments, words):
    folder = tmp_path / "run"
    done = call(*arguments, f"hydra.run.dir={folder}")
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists()


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = call("data=rotation", "model=ekf", f"hydra.run.dir={tmp_path}/file/run")
    assert done.returncode == 2
    assert "hydra.run.dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gpu_that_is_not_there_is_advice():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = call("data=rotation", "model=iw", "trainer=gpu")
    assert done.returncode == 2
    assert "trainer=cpu" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder, "data=rotation", "model=iw", "logger=csv")
    return folder


@pytest.mark.parametrize("damage", ["truncated", "foreign", "code", "missing"])
def test_a_bad_checkpoint_is_a_clear_error(finished, tmp_path, damage):
    import pickle

    import torch

    folder, mark = tmp_path / "run", tmp_path / "executed"
    shutil.copytree(finished, folder)
    path = folder / "checkpoints" / "best.ckpt"

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (mark,))

    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "foreign":
        torch.save({"kind": "kbr.lstm_filter"}, path)
    elif damage == "code":
        torch.save({"kind": Bomb()}, path, pickle_module=pickle)
    else:
        path.unlink()
    done = call(f"run={folder}", script="evaluate.py")
    assert done.returncode == 2
    assert "best.ckpt" in done.stderr
    assert "Traceback" not in done.stderr
    assert not mark.exists()


def test_evaluate_names_a_folder_that_is_no_run(tmp_path):
    done = call(f"run={tmp_path}", script="evaluate.py")
    assert done.returncode == 2
    assert "run folder" in done.stderr


def test_help_is_quick_and_shows_the_groups():
    done = call("--help")
    assert done.returncode == 0
    for group in ("data", "model", "encoder", "trainer", "experiment"):
        assert f"{group}:" in done.stdout
    code = "import sys, kbr.app.cli; print([m for m in ('torch', 'lightning') if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"
