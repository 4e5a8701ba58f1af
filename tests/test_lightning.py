"""Lightning as its users know it: plain modules, any callback, any argument of the Trainer."""

from functools import partial
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import lightning
import networks
import pytest
import torch
from hydra import compose, initialize_config_dir
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from networks import ENCODER

from kbr.app.run.trainer import is_parallel, trainer_settings
from kbr.core.errors import KbrError
from kbr.training import LearnedFilter
from kbr.training.data import SequenceData
from kbr.training.modules.features import FeatureModule

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",
    "ignore:.*does not have many workers.*",
    "ignore:`lr_scheduler.step..` before",
)
QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
MODULES = {
    "learned": partial(FeatureModule, n_fourier=16, coarse_scales=(1.0,), lams=(1e-3, 1e-1)),
    **networks.MODULES,
}
FILTERS = {
    "learned": partial(LearnedFilter, n_fourier=16, coarse_scales=(1.0,), lams=(1e-3, 1e-1)),
    **networks.FILTERS,
}


def points(n=40, seed=0):
    z = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed)).cumsum(0)
    return z + 0.1, z.double()


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_trains_tests_and_loads_without_a_filter(tmp_path, kind):
    """As any LightningModule: constructed without data, and rebuilt from its checkpoint alone."""
    x, z = points()
    module = MODULES[kind](encoder=ENCODER, shape=(2,), dz=2, epochs=2)
    keep = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    trainer = lightning.Trainer(max_epochs=2, callbacks=[keep], logger=False, **QUIET)
    data = SequenceData(x, z, test=points(12, seed=1))
    trainer.fit(module, datamodule=data)
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    assert tested["test/mse"] > 0
    again = type(module).load_from_checkpoint(tmp_path / "last.ckpt")
    assert dict(again.hparams) == dict(module.hparams)
    assert again.hparams["encoder"]["target"] == "kbr.training.encoders.MLP"
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.cpu()), name
    assert (again.x_mean != 0).all()  # scales come from the training data


@pytest.mark.parametrize("kind", FILTERS)
def test_fit_needs_no_folder_and_returns_the_filter(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, z = points()
    model = FILTERS[kind](encoder=ENCODER, epochs=2, val_every=1)
    filt = model.fit(x, z, trainer=QUIET)
    assert filt is model
    assert filt.filter(x).mean.shape == (40, 2)
    filt.save(tmp_path / "kept.ckpt")
    assert torch.equal(type(filt).load(tmp_path / "kept.ckpt").filter(x).mean, filt.filter(x).mean)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.ckpt"]


def test_callbacks_of_lightning_work_in_a_filter(tmp_path):
    x, z = points()
    added = [
        ModelCheckpoint(dirpath=tmp_path / "theirs", monitor="val/mse"),
        EarlyStopping("val/mse", patience=1, min_delta=1e9),
        LearningRateMonitor(),
    ]
    model = FILTERS["learned"](encoder=ENCODER, epochs=30, val_every=1)
    logger = CSVLogger(tmp_path, name="csv", version="")
    model.fit(x, z, folder=tmp_path, trainer={**QUIET, "callbacks": added, "logger": logger})
    assert added[1].stopped_epoch == 1
    (theirs,) = (tmp_path / "theirs").iterdir()
    for path in (theirs, tmp_path / "checkpoints" / "last.ckpt"):  # Lightning's, and kbr's own
        assert FeatureModule.load_from_checkpoint(path).hparams["n_fourier"] == 16
    assert "lr-Adam" in (tmp_path / "csv" / "metrics.csv").read_text()


def composed(*overrides: str):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def test_any_argument_of_the_trainer_is_a_key(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    added = ["+trainer.max_time=00:00:01:00", "+trainer.gradient_clip_val=1"]
    config = composed("trainer=cpu", *added)
    assert config.trainer._target_ == "lightning.Trainer"
    settings = trainer_settings(config)
    assert settings["max_time"] == "00:00:01:00"
    assert lightning.Trainer(**settings, logger=False).gradient_clip_val == 1
    assert not is_parallel(config.trainer)
    assert is_parallel(composed("trainer=ddp_cpu").trainer)
    with pytest.raises(KbrError, match=r"trainer._target_ must be lightning.Trainer; got mine.T"):
        trainer_settings(composed("trainer=cpu", "trainer._target_=mine.T"))


def test_callbacks_are_a_config_group():
    config = composed("+callbacks.lr._target_=lightning.pytorch.callbacks.LearningRateMonitor")
    assert sorted(config.callbacks) == ["bar", "keep", "lr"]
    assert "bar" not in composed("~callbacks.bar").callbacks
