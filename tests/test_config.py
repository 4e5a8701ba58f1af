"""Numbers of the wrong kind on the command line are named before any work."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from kbr.app.cli import CONFIGS
from kbr.app.config_numbers import check_numbers
from kbr.core.errors import KbrError


def checked(*overrides: str) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose("train", overrides=list(overrides), return_hydra_config=True)
    choices = config.hydra.runtime.choices
    check_numbers(config, choices)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trials=1.3", r"trials must be a whole number, like 1; got 1.3"),
        ("seed=one", r"seed must be a whole number, like 0; got 'one'"),
        ("data.n_train=3e2", r"data.n_train must be a whole number, like 300; got 300.0"),
        ("model.filter.epochs=true", r"model.filter.epochs must be a whole number.*got True"),
        ("encoder.channels=1.5", r"encoder.channels must be a whole number.*got 1.5"),
        ("data.sigma_x=large", r"data.sigma_x must be a number, like 0.05; got 'large'"),
        ("trainer.threads=1.5", r"trainer.threads must be a whole number.*got 1.5"),
    ],
)
def test_a_number_of_the_wrong_kind_is_named(override, says):
    with pytest.raises(KbrError, match=says):
        checked(override)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("data=rotation", "model=iw", "data.sigma_x=1", "trials=3"),
        ("data=npz", "data.n_train=20"),
        ("trainer=cpu", "trainer.devices=auto"),
        ("experiment=low_dim", "quick=true"),
    ],
)
def test_numbers_of_the_right_kind_pass(overrides):
    checked(*overrides)
