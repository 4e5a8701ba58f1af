"""Targets and names of settings that were written before these changed."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

MOVED = {
    "kbr.app.problems.": "kbr.app.tasks.task.",
    "kbr.app.frames.heading_frames": "kbr.app.tasks.frames.heading_frames",
    "kbr.app.own.problem.OwnData": "kbr.app.recordings.task.OwnData",
    "kbr.app.own.": "kbr.app.recordings.",
    "kbr.app.methods.ModelMethod": "kbr.app.models.classical.ModelMethod",
    "kbr.app.models.kernel.ModelMethod": "kbr.app.models.classical.ModelMethod",
    "kbr.app.methods.": "kbr.app.models.kernel.",
    "kbr.app.learned.": "kbr.app.models.trained.",
    "kbr.app.refined.": "kbr.app.models.refined.",
    "kbr.app.oracle.": "kbr.app.models.classical.",
    "kbr.app.models.oracle.": "kbr.app.models.classical.",
    "kbr.training.learned_filter.": "kbr.training.filters.learned.",
    "kbr.training.lstm_filter.": "kbr.training.filters.lstm.",
}
RENAMED = {"kbr.app.models.refined.RefinedMethod": {"ridge": "correction"}}


def with_present_names(config: DictConfig) -> tuple[DictConfig, dict[str, str]]:
    """The config with the present names of its targets, and those that had old ones."""
    changed: dict[str, str] = {}
    plain = _renamed(OmegaConf.to_container(config, resolve=False), changed)
    return (OmegaConf.create(plain) if changed else config), changed


def _renamed(value: Any, changed: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, changed) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {key: _renamed(item, changed) for key, item in value.items()}
    target = renamed.get("_target_")
    for old, new in MOVED.items():
        if isinstance(target, str) and target.startswith(old):
            renamed["_target_"] = changed[target] = new + target.removeprefix(old)
            break
    for key, new in RENAMED.get(str(renamed.get("_target_")), {}).items():
        if key in renamed:
            renamed[new] = renamed.pop(key)
            changed[key] = new
    return renamed
