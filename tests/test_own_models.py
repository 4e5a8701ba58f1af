"""A model of one's own, as a newcomer writes it: trained, tabled, evaluated, from any folder."""

import csv
import io
import json
import sys

import numpy as np
import pytest
import torch
from command_line import call

import kbr
from kbr.app.config.packages import check_packages
from kbr.app.models.own import Answers, FrameRegressor, OwnModel
from kbr.app.streaming import command as streaming
from kbr.core.errors import KbrError

SMALL = ["data=rotation", "data.n_train=60", "data.n_test=20", "trainer=cpu", "logger=csv"]
NEAREST = "model={_target_:my_models.Nearest,k:3}"
MODULE = '''
import numpy as np


class Nearest:
    """The mean latent of the k training observations nearest to the one seen now."""

    def __init__(self, k=1):
        self.k = k

    def fit(self, x, z):
        self.x, self.z = x, z

    def filter(self, x):
        gaps = ((x[:, None] - self.x[None]) ** 2).sum(-1)
        return self.z[np.argsort(gaps, axis=1)[:, : self.k]].mean(1)


class Kept(Nearest):
    def filter(self, x):
        mean = super().filter(x)
        return mean, np.tile(np.eye(mean.shape[1]), (len(mean), 1, 1))

    def save(self, path):
        with open(path, "wb") as file:
            np.savez(file, x=self.x, z=self.z)

    def load(self, path):
        with np.load(path) as kept:
            self.x, self.z = kept["x"], kept["z"]
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of the user's: a module, configs, a recording."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "my_models.py").write_text(MODULE)
    for name, text in {
        "nearest": "_target_: my_models.Nearest\nk: 3\n",
        "kept": "name: my_favourite\n_target_: my_models.Kept\nk: 3\n",
    }.items():
        (folder / "conf" / "model").mkdir(parents=True, exist_ok=True)
        (folder / "conf" / "model" / f"{name}.yaml").write_text(text)
    rng = np.random.default_rng(0)
    yaw = np.cumsum(rng.normal(4, 1, 120)) % 360
    speed = 1000 + np.cumsum(rng.normal(size=120))
    x = np.stack([np.cos(np.radians(yaw)), np.sin(np.radians(yaw)), speed / 1e3], -1)
    rows = np.column_stack([x + 0.01 * rng.normal(size=x.shape), yaw, speed])
    head = "a,b,c,yaw,speed"
    np.savetxt(folder / "walk.csv", rows, delimiter=",", header=head, comments="")
    yield folder
    sys.modules.pop("my_models", None)


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def models_in(folder):
    """The column `model` of a table of results."""
    text = (folder / "results.csv").read_text()
    return [row["model"] for row in csv.DictReader(io.StringIO(text))]


def run(home, name, *arguments):
    folder = home / name
    done = call(*arguments, f"hydra.run.dir={folder}", folder=home)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_class_named_on_the_command_line(home):
    folder, done = run(home, "a", *SMALL, NEAREST, "trials=2")
    assert "Nearest on rotation, 2 trial(s)" in done.stdout
    assert "trust=[my_models]" in done.stdout  # in the command that evaluates it
    assert models_in(folder) == ["Nearest", "Nearest"]
    assert 0 < metrics(folder)["test/mse"] < 0.5
    assert metrics(folder)["val/mse"] > 0
    assert 0 < metrics(folder)["test/coverage_90"] <= 1


def test_evaluate_asks_for_trust_then_fits_it_again_and_says_so(home):
    folder, _ = run(home, "b", *SMALL, NEAREST)
    done = call(f"run={folder}", script="evaluate.py", folder=home)
    assert done.returncode == 2
    assert "trust=[my_models]" in done.stderr
    assert "Traceback" not in done.stderr
    done = call(f"run={folder}", "trust=[my_models]", script="evaluate.py", folder=home)
    assert done.returncode == 0, done.stderr
    assert "Nearest has no save(path) and load(path), so it was fitted again" in done.stdout
    assert metrics(folder / "evaluation")["test/mse"] == metrics(folder)["test/mse"]


def test_a_yaml_of_ones_own_with_save_and_load(home):
    folder, done = run(home, "c", "--config-dir", "conf", *SMALL, "model=kept", "model.k=2")
    assert "my_favourite on rotation" in done.stdout
    assert (folder / "checkpoints" / "own_model").is_file()
    done = call(f"run={folder}", "trust=[my_models]", script="evaluate.py", folder=home)
    assert done.returncode == 0, done.stderr
    assert "fitted again" not in done.stdout
    assert metrics(folder / "evaluation")["test/mse"] == metrics(folder)["test/mse"]
    done = call("--config-dir", "conf", *SMALL, "model=kept", "model.kk=2", folder=home)
    assert done.returncode == 2
    assert "model.kk is no key of model=kept. Did you mean model.k?" in done.stderr


def test_on_a_recording_in_its_own_units(home):
    own = ["data=recording", "data.path=walk.csv", "data.x=[a,b,c]", "data.z=[yaw,speed]"]
    folder, _ = run(home, "d", *own, "data.circular=[yaw]", "logger=csv", "trainer=cpu", NEAREST)
    found = metrics(folder)
    assert found["test/rmse/yaw [deg]"] > 0
    assert found["val/mse_standardised"] > 0
    assert found["test/mse_of_mean"] > 0
    done = call(f"run={folder}", "trust=[my_models]", script="evaluate.py", folder=home)
    assert done.returncode == 0, done.stderr
    assert metrics(folder / "evaluation")["test/mse"] == found["test/mse"]


def test_a_sweep_puts_it_into_the_table_beside_kbrs(home):
    sweep = home / "sweep"
    models = "model=nearest,sklearn"
    given = ["-m", "--config-dir", "conf", *SMALL, models, f"hydra.sweep.dir={sweep}"]
    done = call(*given, folder=home)
    assert done.returncode == 0, done.stderr
    assert sorted(models_in(sweep)) == ["Nearest", "sklearn"]
    assert "Nearest" in (sweep / "report.html").read_text()


def test_scikit_learn_by_a_target(home):
    pytest.importorskip("sklearn")
    forest = "model.estimator._target_=sklearn.ensemble.RandomForestRegressor"
    trees = "+model.estimator.n_estimators=5"
    folder, _ = run(home, "e", *SMALL, "model=sklearn", forest, trees)
    assert metrics(folder)["test/mse"] < 0.5
    done = call(f"run={folder}", script="evaluate.py", folder=home)  # nothing to trust: a regressor
    assert done.returncode == 0, done.stderr
    assert "FrameRegressor has no save(path) and load(path), so it was fitted again" in done.stdout
    assert metrics(folder / "evaluation")["test/mse"] == metrics(folder)["test/mse"]


def test_what_is_wrong_with_a_model_is_one_line(home):
    done = call(*SMALL, "model={_target_:my_models.Nearest,k:3,j:1}", folder=home)
    assert done.returncode == 2
    assert "model.j is no key" in done.stderr
    done = call("data=gaussian", "trainer=cpu", NEAREST, folder=home)
    assert done.returncode == 2
    assert "model=Nearest is a filter; data=gaussian has no dynamics" in done.stderr
    done = call(*SMALL, "model={_target_:collections.OrderedDict}", folder=home)
    assert done.returncode == 2
    assert "needs fit(x, z) and filter(x)" in done.stderr


@pytest.mark.parametrize(
    ("option", "package"),
    [("logger=wandb", "wandb"), ("logger=mlflow", "mlflow"), ("model=sklearn", "scikit-learn")],
)
def test_a_package_that_is_missing_is_one_line(home, monkeypatch, option, package):
    monkeypatch.setattr("kbr.app.config.packages.find_spec", lambda name: None)
    done = call("data=rotation", "data.n_train=60", "trainer=cpu", option, folder=home)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"is not installed: pip install {package}")
    assert done.stderr.count("\n") == 1


def test_what_is_installed_is_not_asked_for(monkeypatch):
    from omegaconf import OmegaConf

    monkeypatch.setattr("kbr.app.config.packages.find_spec", lambda name: "found")
    check_packages(OmegaConf.create({"model": {"a": {"_target_": "sklearn.svm.SVR"}}}))


class Says:
    def __init__(self, answer):
        self.answer = answer

    def fit(self, x, z): ...

    def filter(self, x):
        return self.answer


class Both:
    mean, cov = torch.zeros(4, 2), 2 * torch.eye(2).expand(4, 2, 2)


class MeanAlone:
    mean = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("answer", "scale"),
    [
        (np.zeros((4, 2)), 3.0),
        (torch.zeros(4, 2), 3.0),
        ((np.zeros((4, 2)), 2 * np.tile(np.eye(2), (4, 1, 1))), 2.0),
        (Both(), 2.0),
        (MeanAlone(), 3.0),
    ],
)
def test_answers_of_any_form(answer, scale):
    """A model that gives only means gets the covariance of its validation errors."""
    known = 3 * torch.eye(2, dtype=torch.float64)
    x = np.array([[0.0], [1.0], [np.nan], [2.0]])
    result = Answers(Says(answer), "says", known).filter(x)
    assert result.mean.shape == (4, 2)
    torch.testing.assert_close(result.cov, scale / 3 * known.expand(4, 2, 2))
    assert result.evidence.tolist() == [True, True, False, True]


@pytest.mark.parametrize("answer", [np.zeros((3, 2)), np.zeros((4, 2, 2)), np.full((4, 1), np.nan)])
def test_wrong_answers_are_refused(answer):
    with pytest.raises(KbrError, match=r"model=says must answer with finite means \[T, dz\]"):
        Answers(Says(answer), "says").filter(np.zeros((4, 1)))


def test_a_model_without_the_methods_is_refused():
    with pytest.raises(KbrError, match=r"a list without fit\(\).*needs fit\(x, z\)"):
        OwnModel(name="list", model=[])


def test_a_regressor_holds_its_answer_where_frames_are_missing():
    class Copies:
        def fit(self, x, z): ...

        def predict(self, x):
            return x[:, 0]

    model = FrameRegressor(estimator=Copies())
    model.fit(np.zeros((3, 2)), np.array([[1.0], [2.0], [3.0]]))
    x = np.array([[np.nan, 0], [5.0, 0], [np.nan, 0], [7.0, 0]])
    assert model.filter(x).ravel().tolist() == [2.0, 5.0, 5.0, 7.0]


STEPPING = """

class Running(Kept):
    def step(self, belief, x):
        mean = super().filter(x[None])[0][0]
        return mean, np.eye(2) + (0 if belief is None else belief[1])
"""


@pytest.mark.parametrize("name", ["Kept", "Running"])
def test_its_run_is_loaded_as_a_filter_that_takes_one_row_at_a_time(home, monkeypatch, name):
    """With the model's own `step` where it has one, else by filtering all rows so far."""
    (home / "my_stepping.py").write_text(MODULE + STEPPING)
    folder, _ = run(home, name, *SMALL, f"model={{_target_:my_stepping.{name},k:3}}")
    monkeypatch.syspath_prepend(home)
    with pytest.raises(KbrError, match=r"trust=\[my_stepping\]"):
        kbr.load_filter(folder)
    filt = kbr.load_filter(folder, trust=["my_stepping"])
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, belief, covs = filt.filter(x), filt.init(), []
    assert belief.mean.isfinite().all()
    for t, row in enumerate(x):
        belief = filt.step(belief, row)
        torch.testing.assert_close(belief.mean, whole.mean[t])
        covs.append(float(belief.cov[0, 0]))
    assert covs == ([1, 2, 3, 4] if name == "Running" else [1, 1, 1, 1])
    assert belief.steps == 4


def test_a_run_that_kept_no_model_says_what_it_lacks(home, monkeypatch):
    folder, _ = run(home, "not_kept", *SMALL, NEAREST)
    monkeypatch.syspath_prepend(home)
    with pytest.raises(KbrError, match=r"has not kept its model: Nearest has no save\(path\)"):
        kbr.load_filter(folder, trust=["my_models"])


@pytest.fixture(scope="module")
def on_a_recording(home):
    """A run of a model that is kept, on data with names, an angle and units."""
    data = ["data=recording", "data.path=walk.csv", "data.x=[a,b,c]", "data.z=[yaw,speed]"]
    model = "model={_target_:my_models.Kept,k:3}"
    kept = [*data, "data.circular=[yaw]", "logger=csv", "trainer=cpu", model]
    return run(home, "on_a_recording", *kept)[0]


def test_a_new_recording_is_evaluated_in_the_units_of_training(home, on_a_recording, monkeypatch):
    """The training file again: errors are those of known rows, in variances of the training z."""
    given = [f"run={on_a_recording}", "data.path=walk.csv"]
    done = call(*given, script="evaluate.py", folder=home)
    assert done.returncode == 2
    assert "trust=[my_models]" in done.stderr
    done = call(*given, "trust=[my_models]", script="evaluate.py", folder=home)
    assert done.returncode == 0, done.stderr
    assert "Kept on walk.csv, 120 rows, 1 trial(s)" in done.stdout
    found = metrics(on_a_recording / "evaluation" / "walk")
    assert 0 < found["test/rmse/yaw [deg]"] < 30  # no error of a full turn
    rows = np.loadtxt(home / "walk.csv", delimiter=",", skiprows=1)
    with np.load(on_a_recording / "evaluation" / "walk" / "posterior.npz") as answers:
        mean = answers["mean"][0]
    monkeypatch.syspath_prepend(home)
    units = kbr.load_filter(on_a_recording, trust="my_models").recorded
    inner = [units.z.apply(torch.from_numpy(z)) for z in (mean, rows[:, 3:])]
    expected = float((inner[0] - inner[1]).square().sum(-1).mean())
    assert found["test/mse_standardised"] == pytest.approx(expected)


def kbr_filter(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["kbr-filter", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    streaming.main()


def test_it_streams_where_its_module_is_trusted(home, on_a_recording, monkeypatch, capsys):
    monkeypatch.chdir(home)
    given = [f"run={on_a_recording}", "input=walk.csv", "output=beliefs.jsonl"]
    with pytest.raises(SystemExit):
        kbr_filter(monkeypatch, *given)
    assert "trust=[my_models]" in capsys.readouterr().err
    kbr_filter(monkeypatch, *given, "trust=[my_models]")
    lines = [json.loads(line) for line in (home / "beliefs.jsonl").read_text().splitlines()]
    table = kbr.read_recording(home / "walk.csv", x=["a", "b", "c"])
    whole = kbr.load_filter(on_a_recording, trust=["my_models"]).filter(table)
    np.testing.assert_allclose([line["mean"] for line in lines], whole.mean)
    assert lines[0]["names"] == ["yaw [deg]", "speed"]


def test_its_state_is_not_kept_between_two_calls(home, on_a_recording, monkeypatch, capsys):
    monkeypatch.chdir(home)
    given = [f"run={on_a_recording}", "input=walk.csv", "output=other.jsonl", "state=belief.ckpt"]
    with pytest.raises(SystemExit):
        kbr_filter(monkeypatch, *given, "trust=my_models")
    error = capsys.readouterr().err
    assert "state keeps beliefs of kbr's filters, not those of a model of your own" in error
    assert error.count("\n") == 1
    assert not (home / "other.jsonl").exists()
    assert not (home / "belief.ckpt").exists()
