"""Runs on own data: answers in recorded units, pictures, networks, and the command line."""

import csv
import json
import re
import shlex
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import numpy as np
import pytest
import torch
from command_line import call
from recordings import own, saved, turning

from kbr import KernelBayesFilter
from kbr.app.building.default_model import default_model
from kbr.core.errors import KbrError
from kbr.loading import RECURRENT

ROOT = Path(__file__).resolve().parent.parent


def test_scaling_is_fitted_on_training_rows_alone(tmp_path):
    x, z = turning(100)
    first = own(saved(tmp_path, x=x, z=z)).filter_units
    np.testing.assert_allclose(first.x.mean, x[:75].mean(0))
    np.testing.assert_allclose(first.z.scale, z[:75].std(0))
    x[80:] *= 100
    z[80:] += 1e4
    again = own(saved(tmp_path, x=x, z=z)).filter_units
    torch.testing.assert_close(again.x.scale, first.x.scale)
    torch.testing.assert_close(again.z.mean, first.z.mean)


def test_answers_and_errors_are_in_recorded_units(tmp_path):
    """Other units of x and z: the same answers in those units."""
    x, z = turning(160)
    z = np.concatenate([np.cos(np.radians(z)), np.sin(np.radians(z))], 1)
    found = []
    for scale, shift in ((1.0, 0.0), (1000.0, 5.0)):
        problem = own(saved(tmp_path, x=x * 3 * scale, z=z * scale + shift))
        data = problem.trials([0, 1])
        made = KernelBayesFilter(scales=(0.7, 1.4), eta=1e-3)
        result, truth = problem.test(made.fit(data.x_train, data.z_train), data)
        assert result.mean.shape == (2, 40, 2)
        found.append(((result.mean - truth) / scale, result.cov / scale**2))
        np.testing.assert_allclose(truth[1], z[120:] * scale + shift)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert found[0][0].square().sum(-1).mean() < 0.1


def test_missing_rows_of_the_test_are_predicted_or_not_scored(tmp_path):
    x, z = turning(160)
    x[130:133], z[140] = np.nan, np.nan
    problem = own(saved(tmp_path, x=x, z=z), circular=["z_1"])
    data = problem.data(0)
    made = KernelBayesFilter(scales=(1.0,)).fit(data.x_train, data.z_train)
    result, truth = problem.test(made, data)
    assert result.mean.shape == (39, 1)
    assert result.mean.isfinite().all()
    assert truth.isfinite().all()
    assert list(np.flatnonzero(~result.evidence)) == [10, 11, 12]
    assert (result.mean - truth)[10:13].abs().max() < 60


def test_pictures_show_recorded_values_at_the_rows_that_are_answered(tmp_path):
    """Several pieces, a missing state and a missing observation: weights belong to their rows."""
    x, angle = turning(160)
    z = np.column_stack([angle, 3 + x[:, 0]])
    x[125], z[130] = np.nan, np.nan
    path = saved(tmp_path, x=x, z=z, sequence=np.arange(160) // 20)
    problem = own(path, z=["yaw", "speed"], circular=["yaw"], units={"speed": "m/s"})
    data = problem.data(0)
    made = KernelBayesFilter(scales=(1.0,), lams=(1e-2,), correction=None)
    made.fit(data.x_train, data.z_train)
    view = problem.view(data, made)
    known = np.delete(np.arange(120, 160), 10)
    np.testing.assert_array_equal(view.x_test, x[known])
    np.testing.assert_array_equal(view.z_train, z[:120])
    assert view.names == ["yaw [deg]", "speed [m/s]"]
    assert not view.shows_x_as_z  # as many columns as z, of other quantities
    found = torch.cat([made.filter(piece).mean for piece in data.x_test])[known - 120]
    torch.testing.assert_close(view.weights @ torch.cat(data.z_train), found)


def test_pictures_of_frames_show_recorded_pixels(tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, size=(60, 1, 6, 5)).astype(np.uint8)
    problem = own(saved(tmp_path, x=frames, z=np.arange(60.0)))
    data, asked = problem.data(0), []
    view = problem.view(data, gaze=asked.append)
    assert view.has_images
    assert view.weights is None
    np.testing.assert_array_equal(view.x_test, frames[45:])
    view.gaze(view.x_test)  # filters take recorded frames
    torch.testing.assert_close(asked[0], data.x_test[0])


def test_a_recording_has_no_fresh_test_sequence(tmp_path):
    x, z = turning(60)
    with pytest.raises(KbrError, match=r"recording.*Leave out data\.seed"):
        own(saved(tmp_path, x=x, z=z)).with_fresh_tests(3)


# The command line


X, Z = turning(100)


def test_one_command_gives_a_run_in_recorded_units_that_evaluates_again(tmp_path):
    x, z = turning(200)
    path, folder = saved(tmp_path, x=x, z=z), tmp_path / "run"
    keys = ["data.z=[yaw]", "data.circular=[yaw]", "data.x=[a,b]", "data.units={a:V,b:V}"]
    words = [f"data.path={path}", *keys, "model=iw", f"hydra.run.dir={folder}"]
    done = call("data=recording", *words, pictures=True)
    assert done.returncode == 0, done.stderr
    assert "yaw [deg]" in done.stdout
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["test/rmse/yaw [deg]"] == pytest.approx(metrics["test/mse"] ** 0.5)
    assert metrics["test/mse"] < 0.05 * metrics["test/mse_of_mean"]
    with (folder / "results.csv").open() as file:
        row = next(csv.DictReader(file))
    assert float(row["rmse yaw [deg]"]) == pytest.approx(metrics["test/rmse/yaw [deg]"])
    assert row["n_train"] == "150"
    record = json.loads((folder / "data.json").read_text())
    assert record["labels"] == ["yaw [deg]"]
    again = call(f"run={folder}", script="evaluate.py")
    assert again.returncode == 0, again.stderr
    evaluated = json.loads((folder / "evaluation" / "metrics.json").read_text())
    assert evaluated["test/mse"] == pytest.approx(metrics["test/mse"], rel=1e-6)
    posterior = np.load(folder / "evaluation" / "posterior.npz")
    assert posterior["labels"].tolist() == ["yaw [deg]"]
    assert ((posterior["mean"] >= 0) & (posterior["mean"] < 360)).all()
    for place in (folder, folder / "evaluation"):
        drawn = {picture.stem for picture in (place / "figures").glob("*.png")}
        assert drawn == {"trajectory", "error", "weights", "coverage", "pit"}
    error = np.square(posterior["mean"] - posterior["truth"]).sum(-1).mean()
    assert error == pytest.approx(metrics["test/mse"], rel=1e-6)

    saved(tmp_path, x=x + 1, z=z)
    changed = call(f"run={folder}", script="evaluate.py")
    assert changed.returncode == 2
    assert "have changed since this run was trained (other values in as many" in changed.stderr


def test_networks_train_on_several_sequences_of_vectors(tmp_path):
    """The default encoder takes images; for vectors the MLP is used by itself."""
    x, z = turning(120)
    x[15] = np.nan
    path = saved(tmp_path, x=x, z=z, sequence=np.arange(120) // 30)
    folder = tmp_path / "run"
    small = ["model.filter.epochs=4", "model.filter.val_every=2", "data.circular=[z_1]"]
    arguments = ["data=recording", f"data.path={path}", "model=iw_nn", *small]
    done = call(*arguments, f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    assert "encoder=mlp" in done.stdout
    again = call(f"run={folder}", script="evaluate.py")
    assert again.returncode == 0, again.stderr
    metrics, evaluated = (
        json.loads((place / "metrics.json").read_text())
        for place in (folder, folder / "evaluation")
    )
    assert evaluated["test/mse"] == pytest.approx(metrics["test/mse"], rel=1e-4)


def test_networks_train_on_images(tmp_path):
    x, z = turning(80)
    pixels = np.arange(12)
    spots = (pixels[None, None] - 6 - 3 * x[:, 0, None, None]) ** 2 + (
        pixels[None, :, None] - 6 - 3 * x[:, 1, None, None]
    ) ** 2
    frames = (255 * np.exp(-spots / 3)).astype(np.uint8)
    path = saved(tmp_path, x=frames, z=z)
    small = ["model.filter.epochs=2", "model.filter.val_every=1", "encoder=cnn"]
    words = [f"data.path={path}", *small, f"hydra.run.dir={tmp_path / 'run'}"]
    done = call("data=recording", *words, pictures=True)
    assert done.returncode == 0, done.stderr
    assert "encoder=mlp" not in done.stdout
    drawn = {picture.stem for picture in (tmp_path / "run" / "figures").glob("*.png")}
    assert drawn >= {"weights", "observations", "contact_sheet", "encoder"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=ekf"], ["ekf", "model=iw"]),
        (["model=particle"], ["particle", "model=iw"]),
        (["model=iw_true_ratio"], ["iw_true_ratio", "model=iw"]),
        (["model=iw", "data.path=null"], ["data.path"]),
        (["model=iw", "data.circlar=[yaw]"], ["circlar"]),
        (["model=iw", "data.circular=[yaw]"], ["data.circular", "z_1"]),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing_behind(tmp_path, arguments, words):
    path, folder = saved(tmp_path, x=X, z=Z), tmp_path / "run"
    done = call("data=recording", f"data.path={path}", *arguments, f"hydra.run.dir={folder}")
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists()


# Trained filters on lists of sequences


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_models_remember_no_other_sequence(kind):
    from networks import ENCODER, MODULES

    module = MODULES[kind](encoder=ENCODER, shape=(3,), dz=2)
    module.fit_scales(torch.randn(20, 3), torch.randn(20, 2))
    psi = module.inputs(torch.randn(20, 4), torch.ones(20, dtype=torch.bool))
    joined = module.run(psi, [12, 8])
    torch.testing.assert_close(joined[:12], module.run(psi[:12], [12]))
    torch.testing.assert_close(joined[12:], module.run(psi[12:], [8]))
    assert not torch.allclose(joined[12:], module.run(psi, [20])[12:])


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_a_learned_filter_learns_no_step_between_sequences(tmp_path):
    from functools import partial

    from kbr.training.encoders import MLP
    from kbr.training.filters.learned import LearnedFilter

    x, z = (torch.from_numpy(part) for part in turning(90))
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    made = LearnedFilter(encoder=partial(MLP, hidden=(16,)), epochs=2, val_every=1)
    made.fit(x.split(30), z.split(30), folder=tmp_path, trainer=quiet)
    after = made.kernel_filter.operators.after
    assert sorted(set(range(90)) - set(after.tolist())) == [0, 30, 60]
    loaded = LearnedFilter.load(tmp_path / "checkpoints" / "best.ckpt")
    torch.testing.assert_close(loaded.kernel_filter.operators.after, after)
    torch.testing.assert_close(loaded.filter(x[:20]).mean, made.filter(x[:20]).mean)


def test_vectors_get_a_kernel_and_frames_get_features_unless_a_model_is_named(tmp_path):
    """The run names the other model and its command, and which validated better if both ran."""
    x, z = turning(100)
    path = saved(tmp_path, x=x, z=z)
    done = call("data=recording", f"data.path={path}", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "x are vectors: model=iw\n" in done.stdout
    said = r"validates (no )?better: [\d.e-]+ against [\d.e-]+"
    assert re.search(f"note: an encoder trained for 50 epochs {said}: model=iw_nn", done.stdout)
    (other,) = [line for line in done.stdout.splitlines() if "the other:" in line]
    assert other.endswith(f"train.py data=recording data.path={path} model=iw_nn")
    small = ["model.filter.epochs=2", "model.filter.val_every=1", "encoder=mlp"]
    words = shlex.split(other.partition("train.py ")[2])
    again = call(*words, *small, f"hydra.run.dir={tmp_path / 'nn'}")
    assert again.returncode == 0, again.stderr
    assert re.search(f"the kernel on raw observations {said}", again.stdout)
    (other,) = [line for line in again.stdout.splitlines() if "the other:" in line]
    assert other.endswith("model=iw")
    frames = tmp_path / "frames.npz"
    np.savez(frames, x=np.zeros((30, 8, 8), np.uint8), z=np.zeros((30, 1)))
    assert default_model([f"data.path={frames}"]) == "iw_nn"
    assert default_model([f"data.path={frames}", "model=lstm"]) is None
    assert default_model([f"data.path={tmp_path / 'absent.csv'}"]) == "iw"
