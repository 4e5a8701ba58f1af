"""What TensorBoard shows of a run, read back from its event files."""

import math

import pytest
from hydra import compose, initialize_config_dir
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from kbr.app.config.resolvers import CONFIGS
from kbr.app.run.monitoring import settings
from kbr.app.run.train import _run as run_job

TINY = ["debug=smoke", "trainer=cpu", "hydra.run.dir=unused"]
TRAINED = [*TINY, "model.filter.epochs=4", "model.filter.val_every=2"]
PICTURES = {
    "view/1_trajectory",
    "view/2_error",
    "view/3_coverage",
    "view/4_pit",
    "view/5_ellipses",
    "view/6_weights",
    "view/7_observations",
    "view/8_contact_sheet",
}
TRAINING = ["training/loss", "training/mse_on_validation", "training/share_explained"]
CURVES = [*TRAINING, "view/squared_error"]
WHOLE = ["whole_run/test/mse", "whole_run/val/mse"]


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
    """The settings that the hparams tab shows, and the metrics beside them."""
    content = found.summary_metadata
    start = content["_hparams_/session_start_info"].plugin_data.content
    data = plugin_data_pb2.HParamsPluginData.FromString(start)
    experiment = content["_hparams_/experiment"].plugin_data.content
    metrics = plugin_data_pb2.HParamsPluginData.FromString(experiment).experiment.metric_infos
    return data.session_start_info.hparams, {info.name.tag for info in metrics}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, job(folder, *TRAINED)


def test_a_trained_run_shows_curves_and_pictures(trained):
    found = events(trained[0])
    assert sorted(found.Tags()["scalars"]) == CURVES + WHOLE  # the order in which it shows them
    assert len(found.Scalars(TRAINING[1])) == 2
    assert set(found.Tags()["images"]) == PICTURES | {
        "view/9_encoder",
        "view/encoder_in_training",
    }
    for tag in found.Tags()["images"]:
        image = found.Images(tag)[0]
        assert min(image.width, image.height) > 100


def test_the_error_over_time_has_the_final_error_as_its_mean(trained):
    found = events(trained[0])
    error = [event.value for event in found.Scalars("view/squared_error")]
    (final,) = found.Scalars("whole_run/test/mse")
    assert [event.step for event in found.Scalars("view/squared_error")] == list(range(1, 11))
    assert sum(error) / len(error) == pytest.approx(final.value, rel=1e-5)


def test_the_settings_stand_beside_the_final_metric(trained):
    folder, config = trained
    shown, metrics = hparams(events(folder))
    assert shown["model"].string_value == "iw_nn"
    assert shown["encoder"].string_value == "SoftArgmaxCNN"
    assert shown["n_train"].number_value == config.data.n_train == 40
    assert sorted(shown)[:5] == ["data", "encoder", "model", "n_train", "seed"]
    assert metrics == set(WHOLE)


def test_a_closed_form_run_shows_what_applies(tmp_path):
    job(tmp_path / "run", "data=oscillatory", "model=iw", "trials=2", *TINY)
    found = events(tmp_path / "run")
    assert sorted(found.Tags()["scalars"]) == ["view/squared_error", *WHOLE]
    text = found.Tensors("whole_run/metrics/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| test/coverage_90 |" in text
    observed = {"view/7_observations", "view/8_contact_sheet"}
    assert set(found.Tags()["images"]) == PICTURES - observed
    assert "encoder" not in hparams(found)[0]


def test_answers_without_dynamics_have_no_error_over_time(tmp_path):
    job(tmp_path / "run", "data=gaussian", "model=iw", "trainer=cpu", "hydra.run.dir=unused")
    found = events(tmp_path / "run")
    assert "view/squared_error" not in found.Tags()["scalars"]
    assert found.Tags()["images"] == ["view/posterior_mean"]


def test_without_tensorboard_the_pictures_are_files(tmp_path):
    folder = tmp_path / "run"
    job(folder, *TRAINED, "logger=csv", "model.compare_raw=false")
    assert not (folder / "tensorboard").exists()
    assert not list(folder.rglob("events.*"))
    expected = {tag.partition("_")[2] for tag in PICTURES} | {"encoder"}
    assert {path.stem for path in (folder / "figures").iterdir()} == expected


def test_a_sweep_logs_the_trajectory_and_the_settings_alone(tmp_path):
    job(tmp_path / "run", "data=oscillatory", "model=iw", *TINY, sweeping=True)
    found = events(tmp_path / "run")
    assert found.Tags()["images"] == ["view/1_trajectory"]
    assert "view/squared_error" not in found.Tags()["scalars"]
    assert hparams(found)[0]["model"].string_value == "iw"


def test_settings_are_flat_and_say_nothing_of_classes():
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose("train", overrides=["data=rotation", "model=iw", "hydra.run.dir=unused"])
    found = settings(config)
    assert found["set.data.sigma_x"] == config.data.sigma_x
    assert all(isinstance(value, bool | int | float | str) for value in found.values())
    assert not [name for name in found if "_target_" in name or "problem" in name]
    assert not [v for v in found.values() if isinstance(v, float) and math.isnan(v)]
