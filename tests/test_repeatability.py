"""The same seed gives the same run: networks, filters and every metric but the times."""

import json

import pytest
from hydra import compose, initialize_config_dir

from kbr.app.config.resolvers import CONFIGS
from kbr.app.run.train import _run as run_job


def metrics(folder, *overrides):
    small = ["model.filter.epochs=4", "model.filter.val_every=2"]
    common = ["debug=smoke", "trainer=cpu", "logger=csv", "hydra.run.dir=unused"]
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose("train", overrides=[*overrides, *small, *common])
    folder.mkdir()
    run_job(config, folder, True)
    found = json.loads((folder / "metrics.json").read_text())
    return {name: value for name, value in found.items() if "seconds" not in name}


@pytest.mark.parametrize("model", [["model=iw_nn", "model.compare_raw=false"], ["model=lstm"]])
def test_the_same_seed_trains_the_same_model(tmp_path, model):
    first = metrics(tmp_path / "first", *model, "seed=3")
    assert metrics(tmp_path / "second", *model, "seed=3") == first
    assert metrics(tmp_path / "other", *model, "seed=4")["test/mse"] != first["test/mse"]
