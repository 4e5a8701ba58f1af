"""What TensorBoard shows of a run, read back from its event files."""

import pytest
from hydra import compose, initialize_config_dir
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from kbr.app.config.resolvers import CONFIGS, run_label
from kbr.app.run.monitoring import settings
from kbr.app.run.train import _run as run_job
from kbr.training.curves import Curves

TINY = ["debug=smoke", "trainer=cpu", "hydra.run.dir=unused"]
TRAINED = [*TINY, "model.filter.epochs=4", "model.filter.val_every=2"]
PICTURES = {
    "main/trajectory",
    "more/1_error",
    "more/2_coverage",
    "more/3_pit",
    "more/4_ellipses",
    "more/5_weights",
    "more/6_observations",
    "more/7_contact_sheet",
}
OPENS_ON = ["main/loss", "main/mse_on_validation", "main/trajectory"]
TEST_ERROR = "more/test_mse_up_to_step"


def job(folder, *overrides, sweeping=False):
    """Runs in this process, in its folder; returns its config."""
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose("train", overrides=list(overrides))
    folder.mkdir()
    run_job(config, folder, sweeping)
    return config


def events(folder):
    """Everything logged, over all event files of the run's one folder."""
    logged = folder / "tensorboard"
    assert all(path.is_file() for path in logged.iterdir())  # settings make no second run
    return EventAccumulator(str(logged), {"images": 0, "scalars": 0}).Reload()


def hparams(found):
    """The columns that the hparams tab shows; no run lists those of all others."""
    content = found.summary_metadata
    assert "_hparams_/experiment" not in content
    start = content["_hparams_/session_start_info"].plugin_data.content
    data = plugin_data_pb2.HParamsPluginData.FromString(start)
    return data.session_start_info.hparams


def text(found, name):
    return found.Tensors(f"run/{name}/text_summary")[0].tensor_proto.string_val[0].decode()


def check_no_chart_has_one_dot(found):
    short = {tag for tag in found.Tags()["scalars"] if len(found.Scalars(tag)) < 2}
    assert not short


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, job(folder, *TRAINED)


def test_a_trained_run_opens_on_loss_validation_and_trajectory(trained):
    found = events(trained[0])
    tags = found.Tags()
    assert sorted(tags["scalars"] + tags["images"])[:3] == OPENS_ON  # the order it shows them in
    assert set(tags["scalars"]) == {*OPENS_ON[:2], "more/share_explained", TEST_ERROR}
    check_no_chart_has_one_dot(found)
    assert len(found.Scalars("main/mse_on_validation")) == 2
    assert set(tags["images"]) == PICTURES | {"more/8_encoder", "more/encoder_in_training"}
    for tag in tags["images"]:
        image = found.Images(tag)[0]
        assert min(image.width, image.height) > 100


def test_the_error_over_time_ends_in_the_final_error(trained):
    found = events(trained[0])
    points = found.Scalars(TEST_ERROR)
    final = hparams(found)["error test/mse"].number_value
    assert [event.step for event in points] == list(range(1, 11))
    assert points[-1].value == pytest.approx(final, rel=1e-5)


def test_what_tells_runs_apart_stands_beside_the_errors(trained):
    folder, config = trained
    found = events(folder)
    shown = hparams(found)
    assert sorted(shown) == ["data", "error test/mse", "error val/mse", "model", "n_train", "seed"]
    assert shown["model"].string_value == "iw_nn"
    assert shown["n_train"].number_value == config.data.n_train == 40
    assert "SoftArgmaxCNN" in text(found, "settings")


def test_a_closed_form_run_shows_what_applies(tmp_path):
    job(tmp_path / "run", "data=oscillatory", "model=iw", "trials=2", *TINY)
    found = events(tmp_path / "run")
    assert found.Tags()["scalars"] == [TEST_ERROR]
    final = hparams(found)["error test/mse"].number_value
    assert found.Scalars(TEST_ERROR)[-1].value == pytest.approx(final, rel=1e-5)  # of both trials
    assert "| test/coverage_90 |" in text(found, "metrics")
    observed = {"more/6_observations", "more/7_contact_sheet"}
    assert set(found.Tags()["images"]) == PICTURES - observed


def test_answers_without_dynamics_have_no_error_over_time(tmp_path):
    job(tmp_path / "run", "data=gaussian", "model=iw", "trainer=cpu", "hydra.run.dir=unused")
    found = events(tmp_path / "run")
    assert not found.Tags()["scalars"]
    assert found.Tags()["images"] == ["main/posterior_mean"]


def test_without_tensorboard_the_pictures_are_files(tmp_path):
    folder = tmp_path / "run"
    job(folder, *TRAINED, "logger=csv", "model.compare_raw=false")
    assert not (folder / "tensorboard").exists()
    assert not list(folder.rglob("events.*"))
    expected = {"trajectory"} | {tag.partition("_")[2] for tag in PICTURES} - {""} | {"encoder"}
    assert {path.stem for path in (folder / "figures").iterdir()} == expected


def test_a_sweep_logs_the_trajectory_and_the_settings_alone(tmp_path):
    job(tmp_path / "run", "data=oscillatory", "model=iw", *TINY, sweeping=True)
    found = events(tmp_path / "run")
    assert found.Tags()["images"] == ["main/trajectory"]
    assert not found.Tags()["scalars"]
    assert hparams(found)["model"].string_value == "iw"


def test_settings_are_those_of_the_command_line():
    words = ["data=rotation", "model=iw", "data.n_train=50", "model.lam=0.1", "trainer=cpu"]
    words += ["encoder=mlp", "data.sigma_x=0.2"]
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose("train", overrides=[*words, "hydra.run.dir=unused"])
    own = {"data": "rotation", "model": "iw", "n_train": 50, "seed": 0}
    assert settings(config) == own
    typed = {"set model.lam": 0.1, "set encoder": "mlp", "set data.sigma_x": 0.2}
    assert settings(config, words) == own | typed


def test_a_curve_has_two_points_or_none(tmp_path):
    """Also one that goes on after an interruption, where the first points are there already."""
    for steps in ((0, 1), (2,)):
        curves = Curves(save_dir=tmp_path, name="tensorboard", version="")
        assert curves.experiment is not None  # as Lightning does before anything is logged
        for step in steps:
            curves.log_metrics({"train/loss": step, "epoch": step}, step)
            curves.log_metrics({"val/mse": 1.0} if step == 1 else {}, step)
        curves.finalize("success")
    found = events(tmp_path)
    assert found.Tags()["scalars"] == ["main/loss"]
    assert [event.step for event in found.Scalars("main/loss")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("size", "path", "trials", "label"),
    [
        (300, "data/dsprites.npz", 1, "n300_seed3"),
        (300, None, 5, "n300_seed3_trials5"),
        (None, "logs/my log=1,2.csv", 1, "my_log_1_2_seed3"),
        (None, ["a.csv", "b.csv"], 1, "seed3"),
    ],
)
def test_a_run_folder_says_what_was_run(size, path, trials, label):
    assert run_label(size, path, 3, trials) == label
