"""Numbers of the config that are of the wrong kind: named before any work, with what was meant."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kbr.app.cli import CONFIGS
from kbr.core.errors import KbrError


def check_numbers(config: DictConfig, choices: Mapping[str, str | None]) -> None:
    """What is a number in the config files must be one of the same kind in `config`.

    `choices` are the options of the config groups; `trainer.devices` may also be a word.
    """
    files = {group: Path(CONFIGS) / group / f"{option}.yaml" for group, option in choices.items()}
    files = {group: file for group, file in files.items() if file.is_file()}
    for group, file in {"": Path(CONFIGS) / "train.yaml", **files}.items():
        for key, default in _numbers(OmegaConf.to_container(OmegaConf.load(file)), group):
            given = OmegaConf.select(config, key)
            if given is not None and not _suits(given, default) and key != "trainer.devices":
                kind = "a whole number" if isinstance(default, int) else "a number"
                raise KbrError(f"{key} must be {kind}, like {default}; got {given!r}. Set {key}.")


def _numbers(content: Any, prefix: str) -> Iterator[tuple[str, int | float]]:
    """Keys of all numbers in nested mappings; Hydra's own settings are Hydra's to check."""
    if isinstance(content, dict):
        for name, value in content.items():
            if (prefix, name) != ("", "hydra"):
                yield from _numbers(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield prefix, content


def _suits(given: Any, default: int | float) -> bool:
    kinds = int if isinstance(default, int) else int | float
    return isinstance(given, kinds) and not isinstance(given, bool)
