"""evaluate.py on several runs, and on test sequences a run has not seen."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import call
from omegaconf import OmegaConf
from scipy.stats import wilcoxon

from kbr import KernelBayesFilter
from kbr.app.evaluate.compare import compare_runs
from kbr.app.evaluate.run import check_device, evaluate_run
from kbr.core.datasets.dynamics import Rotation
from kbr.core.errors import KbrError

ROOT = Path(__file__).resolve().parent.parent
TRIALS = 7
SMALL = ["data=rotation", "data.n_train=60", "data.n_test=30", f"trials={TRIALS}"]


def train(folder: Path, *arguments: str) -> None:
    kind = "sweep" if "-m" in arguments else "run"
    done = call(*arguments, f"hydra.{kind}.dir={folder}")
    assert done.returncode == 0, done.stderr


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def errors_of(folder: Path) -> np.ndarray:
    return np.array([float(row["mse"]) for row in read(folder / "results.csv")])


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """One finished run for each model: the cells of a sweep are run folders."""
    folder = tmp_path_factory.mktemp("sweep")
    train(folder, "-m", *SMALL, "model=original,iw,ekf")
    return {model: next(folder.glob(f"*model-{model}")) for model in ("original", "iw", "ekf")}


def test_runs_are_compared_on_their_own_test_sequences(runs, tmp_path, capsys):
    """The same errors as the runs wrote, and scipy's p-values on them."""
    compare_runs([runs["original"], runs["iw"], runs["ekf"]], tmp_path)
    errors = {
        m: np.array([float(r["mse"]) for r in read(f / "results.csv")]) for m, f in runs.items()
    }
    table = {row["model"]: row for row in read(tmp_path / "comparison.csv")}
    assert list(table) == ["original", "iw", "ekf"]
    for model in ("iw", "ekf"):
        found = table[model]
        expected = errors[model] - errors["original"]
        assert float(found["mean"]) == pytest.approx(errors[model].mean(), rel=1e-6)
        assert float(found["difference"]) == pytest.approx(expected.mean(), rel=1e-5)
        assert float(found["p_value"]) == pytest.approx(wilcoxon(expected).pvalue, rel=1e-12)
        assert float(found["p_holm"]) >= float(found["p_value"])
    assert table["original"]["p_value"] == ""
    assert (tmp_path / "comparison.png").is_file()
    assert (tmp_path / "comparison.svg").is_file()
    printed = capsys.readouterr().out.replace(str(tmp_path), "")
    assert max(map(len, printed.splitlines())) <= 80


def changed(folder: Path, to: Path, **settings: object) -> Path:
    """A copy of a run folder whose config says something else."""
    shutil.copytree(folder, to)
    path = to / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    for key, value in settings.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    OmegaConf.save(config, path)
    return to


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data__n_train": 50}, r"data.n_train \(60 and 50\)"),
        ({"data__sigma_x": 0.3}, r"data.sigma_x \(0.2 and 0.3\)"),
        ({"seed": 20}, "no seed in common.* has 0 to 6.* has 20 to 26"),
    ],
)
def test_runs_that_cannot_be_paired_are_an_error(runs, tmp_path, settings, words):
    other = changed(runs["ekf"], tmp_path / "other", **settings)
    with pytest.raises(KbrError, match=words):
        compare_runs([runs["original"], other], tmp_path)
    assert not (tmp_path / "comparison.csv").exists()


def test_runs_with_other_seeds_are_paired_on_the_common_ones(runs, tmp_path, capsys):
    few = tmp_path / "few"
    train(few, *SMALL[:-1], "trials=6", "seed=1", "model=ekf")
    table = compare_runs([runs["original"], few], tmp_path)
    assert [row["trials"] for row in table] == [6, 6]
    assert table[1]["pairs"] == 6
    expected = errors_of(few) - errors_of(runs["original"])[1:]
    assert table[1]["p_value"] == pytest.approx(wilcoxon(expected).pvalue, rel=1e-12)
    assert "the 6 seed(s) that all runs have" in capsys.readouterr().out


def test_one_run_or_the_same_twice_is_an_error(runs, tmp_path):
    with pytest.raises(KbrError, match="two runs or more"):
        compare_runs([runs["iw"]], tmp_path)
    with pytest.raises(KbrError, match="the same run twice"):
        compare_runs([runs["iw"], runs["iw"]], tmp_path)


def test_the_same_model_twice_keeps_both_names(runs, tmp_path):
    copy = changed(runs["ekf"], tmp_path / "again")
    table = compare_runs([runs["ekf"], copy], tmp_path)
    assert table[1]["model"] == "ekf again"
    assert table[1]["note"] == "all equal"


def test_a_fresh_test_sequence_leaves_the_model_as_it_was(runs):
    """Trial 0: fitted on the data of seed 0, tested on the sequence of seed 50."""
    evaluate_run(runs["iw"], seed=50)
    target = runs["iw"] / "evaluation" / "seed_50"
    rows = read(target / "results.csv")
    assert [int(row["seed"]) for row in rows] == list(range(50, 50 + TRIALS))
    own = Rotation().generate(n_train=60, n_test=30, seed=0)
    other = Rotation().generate(n_train=60, n_test=30, seed=50)
    filt = KernelBayesFilter(widths=(2.0,), standardize=False).fit(own.x_train, own.z_train)
    mse = (filt.filter(other.x_test).mean - other.z_test).square().sum(-1).mean()
    assert float(rows[0]["mse"]) == pytest.approx(float(mse), rel=1e-5)
    with np.load(target / "posterior.npz", allow_pickle=False) as posterior:
        np.testing.assert_allclose(posterior["truth"][0], other.z_test.numpy())


def test_the_runs_own_seed_gives_its_own_numbers(runs):
    expected = json.loads((runs["iw"] / "metrics.json").read_text())["test/mse"]
    assert evaluate_run(runs["iw"], seed=0) == pytest.approx(expected, rel=1e-6)


def test_compare_takes_fresh_sequences_too(runs, tmp_path):
    table = compare_runs([runs["iw"], runs["ekf"]], tmp_path, seed=50)
    assert table[0]["mean"] != pytest.approx(errors_of(runs["iw"]).mean(), rel=1e-3)


def test_a_trained_network_meets_a_fresh_sequence(tmp_path):
    from kbr.training.filters.learned import LearnedFilter

    folder = tmp_path / "run"
    quick = ["debug=smoke", "trainer=cpu", "model.filter.epochs=2", "model.filter.val_every=1"]
    train(folder, *quick, "data=rotation", "encoder=mlp", "seed=3")
    found = evaluate_run(folder, seed=9)
    config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    other = Rotation().generate(n_train=config.data.n_train, n_test=config.data.n_test, seed=9)
    filt = LearnedFilter.load(folder / "checkpoints" / "best.ckpt")
    mse = (filt.filter(other.x_test).mean - other.z_test).square().sum(-1).mean()
    assert found == pytest.approx(float(mse), rel=1e-6)


def test_a_task_without_sequences_says_so(tmp_path):
    folder = tmp_path / "run"
    train(folder, "data=gaussian", "model=iw")
    with pytest.raises(KbrError, match=r"data\.seed"):
        evaluate_run(folder, seed=4)


def test_devices(runs):
    with pytest.raises(KbrError, match="cpu or cuda"):
        check_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(KbrError, match="device=cpu"):
            check_device("cuda")
    with pytest.raises(KbrError, match="model=ekf"):
        evaluate_run(runs["ekf"], device="cuda")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compare=[{iw},{ekf}]", "out={out}"], 0, "comparison.csv"),
        (["report=[{iw},{ekf}]", "out={out}"], 0, "report over 2 run(s): {out}/report.html"),
        (["compare=[{iw}]", "report=x"], 2, "report and compare"),
        ([], 2, "none of them"),
    ],
)
def test_evaluate_on_the_command_line(runs, tmp_path, arguments, code, words):
    """Cells of a sweep are typed as they are called."""
    names = {**runs, "out": tmp_path}
    given = [text.format(**names) for text in arguments]
    done = call(*given, script="evaluate.py")
    assert done.returncode == code, done.stderr
    assert words.format(**names) in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
