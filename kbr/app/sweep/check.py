"""Before a sweep starts: every value that its cells will have is one that a run would take."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from kbr.app.config.check import check_config
from kbr.app.config.errors import in_our_words
from kbr.app.config.resolvers import CONFIGS
from kbr.app.sweep.grid import grid_of
from kbr.app.terminal import one_line_errors


class CheckSweep(Callback):
    """Hydra callback: a wrong value in any cell stops the sweep before the first one runs."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with one_line_errors():
            grid = grid_of(config.hydra)
            if grid is None:
                return  # the sweeper decides as it goes; every run checks its own settings
            with in_our_words([f"{key}={values[0]}" for key, values in grid.items()]):
                for cell in cells(grid):
                    check_config(cell, cell.hydra)


def cells(grid: Mapping[str, Sequence[str]]) -> Iterator[DictConfig]:
    """Configs in which every value of the grid is found at least once."""
    first = {key: values[0] for key, values in grid.items()}
    start = _composed(first)
    yield start
    for key, values in grid.items():
        for value in values[1:]:
            if (Path(CONFIGS) / key.lstrip("+")).is_dir():  # another option of a group
                yield _composed({**first, key: value})
            else:
                override = OverridesParser.create().parse_override(f"{key}={value}")
                other = start.copy()
                OmegaConf.update(other, override.key_or_group, override.value(), force_add=True)
                yield other


def _composed(given: Mapping[str, str]) -> DictConfig:
    overrides = [f"{key}={value}" for key, value in given.items()]
    return compose("train", overrides=overrides, return_hydra_config=True)
