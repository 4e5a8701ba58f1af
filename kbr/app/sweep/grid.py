"""The cells of a grid sweep, as Hydra's override grammar spells them."""

from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob

from kbr.core.errors import KbrError

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def searches(hydra: Any) -> bool:
    """Whether the sweeper decides as it goes, by what the cells return."""
    return bool(hydra.sweeper.get("_target_") != BASIC)


def grid_of(hydra: Any) -> dict[str, list[str]] | None:
    """The values a grid sweep gives each key; None for sweepers that decide as they go."""
    if searches(hydra):
        return None
    texts = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*texts, *hydra.overrides.task])
    if ranges := [one.key_or_group for one in overrides if one.is_interval_sweep()]:
        raise KbrError(
            f"{ranges[0]} is a range, and a grid needs its values listed. kbr-tune searches ranges."
        )
    if any(isinstance(one.value(), Glob) for one in overrides):
        return None  # which options there are, only Hydra's own parser knows
    grid = {}  # a key on the command line takes the place of the experiment's own
    for one in overrides:
        swept = one.is_sweep_override() and one.is_discrete_sweep()
        key = one.get_key_element()
        grid[key] = list(one.sweep_string_iterator()) if swept else [one.get_value_element_as_str()]
    return grid
