"""Optional packages that a config needs and this machine lacks: one line, before any work."""

from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from kbr.app.config.values import walked
from kbr.core.errors import KbrError

LOGGERS = "lightning.pytorch.loggers."
PACKAGES = {  # by the beginning of what needs them: the module, and what pip calls it
    f"{LOGGERS}WandbLogger": ("wandb", "wandb"),
    f"{LOGGERS}MLFlowLogger": ("mlflow", "mlflow"),
    f"{LOGGERS}CometLogger": ("comet_ml", "comet-ml"),
    f"{LOGGERS}NeptuneLogger": ("neptune", "neptune"),
    "sklearn.": ("sklearn", "scikit-learn"),
}


def check_packages(config: DictConfig) -> None:
    """An error that says what to install."""
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    for key, target in walked(plain):
        for beginning, (module, package) in PACKAGES.items():
            named = key.endswith("_target_") and str(target).startswith(beginning)
            if named and find_spec(module) is None:
                raise KbrError(
                    f"{key}={target} needs a package that is not installed: pip install {package}"
                )
