"""Optional packages that a config needs and this machine lacks: one line, before any work."""

from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

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
    _check(OmegaConf.to_container(config, resolve=False), "")


def _check(node: Any, path: str) -> None:
    if not isinstance(node, dict):
        return
    target = str(node.get("_target_"))
    for beginning, (module, package) in PACKAGES.items():
        if target.startswith(beginning) and find_spec(module) is None:
            raise KbrError(
                f"{path}._target_={target} needs a package that is not installed: "
                f"pip install {package}"
            )
    for key, value in node.items():
        _check(value, f"{path}.{key}".lstrip("."))
