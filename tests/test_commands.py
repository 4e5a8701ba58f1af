"""What a person sees who types something wrong: one line, exit code 2, and nothing done."""

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import call

import kbr
from kbr.app import cli, inspect_data
from kbr.app.models.kernel import KernelMethod
from kbr.app.tasks.task import Filtering, PosteriorMean
from kbr.app.text.commands import quoted
from kbr.core.datasets.gaussian import GaussianTask
from kbr.core.errors import KbrError

ROOT = Path(__file__).resolve().parent.parent


def run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / script), *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("data.n_trian=300", "data.n_trian is no key of data=dsprites. Did you mean data.n_train?"),
        ("data=rotation model=iw model.lam=abc", "model.lam must be a number above 0 or null"),
        ("-m data=rotation model=iw data.n_train=40,-3", "data.n_train must be a whole number of"),
        (
            "data=rotation model=iw model.rule._target_=kbr.Nope",
            "model.rule._target_=kbr.Nope is not there",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, words, says):
    own_process = "n_trian" in words  # one of them is enough: each takes seconds
    done = (
        run(tmp_path, "train.py", *words.split())
        if own_process
        else call(*words.split(), folder=tmp_path)
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"kbr: {says}")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not list(tmp_path.rglob("*.yaml"))


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    command = f"{shlex.quote(sys.executable)} {ROOT / 'train.py'} --help | head -1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("kbr: kernel Bayes' rule")
    assert done.stderr == ""


def test_versions_are_kbrs(tmp_path, capsys):
    expected = f"kbr {kbr.__version__} (torch {torch.__version__})\n"
    for script in ("train.py", "evaluate.py"):
        assert run(tmp_path, script, "--version").stdout == expected
    inspect_data.main(["--version"])
    assert capsys.readouterr().out == expected
    search = pytest.importorskip("kbr.app.sweep.tune")
    with pytest.raises(SystemExit) as end:
        search.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    "word", ["data.path=my file.npz", "data.x=[a,'b c']", "a=$HOME", "a='b\"c'"]
)
def test_printed_words_can_be_pasted(word):
    assert shlex.split(quoted(word)) == [word]


def test_keys_of_inspect_are_checked(tmp_path):
    with pytest.raises(KbrError, match=r"'resiz=3' is no setting. Did you mean resize\?"):
        inspect_data.inspect("my.npz", ["resiz=3"])
    with pytest.raises(KbrError, match=r"data.max_gap must be a number above 0 or null; got -3"):
        inspect_data.inspect("my.npz", ["max_gap=-3"])
    with pytest.raises(KbrError, match=r"the bracket \[ has no partner"):
        inspect_data.inspect("my.npz", ["x=[a"])


@pytest.mark.filterwarnings("ignore")  # Optuna's own, about what is experimental
@pytest.mark.parametrize("model", ["iw_nn", "lstm"])
def test_a_search_takes_own_data_and_its_command_can_be_pasted(
    tmp_path, capsys, monkeypatch, model
):
    pytest.importorskip("optuna")
    from kbr.app.sweep import tune as search

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1000)
    z = np.cumsum(rng.normal(size=(80, 2)), axis=0) * [1000.0, 1.0]
    np.savez(tmp_path / "my log.npz", x=z + 0.1 * rng.normal(size=z.shape), z=z)
    given = [
        "data=recording",
        "data.path=my log.npz",
        f"model={model}",
        "model.filter.epochs=2",
        "model.filter.val_every=1",
        "trainer=cpu",
    ]
    study = tmp_path / "study.db"
    with pytest.raises(KbrError, match="encoder=mlp"):
        search.search(given, trials=1, study=study)
    given += ["encoder=mlp", "encoder.hidden=[8]"]
    ranged = "model.filter.lr=1e-3,1e-2"
    best = search.search([*given, ranged], trials=1, study=study)
    assert 0 < best.value < 10  # in standard deviations, whatever the units of the recording
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert shlex.split(last)[2:-1] == given


@dataclass(frozen=True, kw_only=True)
class Unmodelled:
    """A task that knows no true model."""


def test_a_task_without_a_true_model_is_named():
    problem = Filtering(name="pendulum", n_train=30, n_test=10, task=Unmodelled())
    with pytest.raises(KbrError, match=r"Unmodelled \(data=pendulum\) has no state_space"):
        problem.state_space()


def outcome(**settings):
    problem = PosteriorMean(name="gaussian", task=GaussianTask(n_train=60, n_prior=60, n_test=20))
    method = KernelMethod(name="iw", **settings)
    return method._posterior(problem, [1000, 1001], None)


def test_ridges_and_ratios_given_for_the_posterior_mean_are_used():
    """Not those of the paper, which stand in where nothing is given."""
    rule = kbr.ImportanceWeightedRule
    usual = outcome(rule=rule())
    assert usual.chosen["lam"].tolist() == usual.chosen["eta"].tolist() == [0.2, 0.2]
    torch.testing.assert_close(outcome(rule=rule(), eta=0.2, lam=0.2).mean, usual.mean)
    with pytest.raises(KbrError, match="lam must be"):
        outcome(rule=rule(), lam=0.0)
    by_ratio = outcome(rule=rule(ratio=kbr.KuLSIF(eta=5.0)))
    torch.testing.assert_close(by_ratio.mean, outcome(rule=rule(), eta=5.0).mean)
    other = outcome(rule=rule(ratio=kbr.RuLSIF(eta=0.1)))
    assert not torch.allclose(other.mean, usual.mean)
    assert other.chosen["eta"].isnan().all()
    with pytest.raises(KbrError, match=r"model.eta is the ridge of KuLSIF"):
        outcome(rule=rule(ratio=kbr.RuLSIF(eta=0.1)), eta=0.1)
    wide = outcome(rule=rule(kernel_x=kbr.Gaussian(scale=3.0)))
    assert wide.chosen["scale_x"].tolist() == [3.0, 3.0]
    assert not torch.allclose(wide.mean, usual.mean)


@pytest.mark.parametrize(
    ("words", "process", "terminal", "said"),
    [
        ([], None, True, True),
        (["-m", "experiment=low_dim"], None, True, True),
        (["--help"], None, True, False),
        ([], None, False, False),
        ([], "1", True, False),  # a worker of another process
    ],
)
def test_something_is_said_before_the_imports(monkeypatch, capsys, words, process, terminal, said):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("KBR_RUN_ID_BY_CLOCK", process or str(os.getpid()))
    cli._greet()
    assert ("loading" in capsys.readouterr().out) == said
