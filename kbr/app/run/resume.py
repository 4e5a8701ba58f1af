"""`resume=FOLDER`: a run goes on with the settings that its folder holds, and with no others."""

from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, flag_override

from kbr.app.building.trusted import check_resolvers, names_of, plain_values, saved_config
from kbr.app.run.folder import MANIFEST
from kbr.app.runs.files import inside, read_yaml
from kbr.app.runs.finished import HYDRA
from kbr.app.text.commands import command, setting, shown
from kbr.core.errors import KbrError

FREE = ("trainer", "logger", "resume", "trust")  # what does not decide the numbers
CHECKPOINT = Path("checkpoints") / "last.ckpt"


def last_checkpoints(folder: Path) -> list[Path]:
    """Of the run, or of its trials."""
    return [*folder.glob(str(CHECKPOINT)), *sorted(folder.glob(f"seed_*/{CHECKPOINT}"))]


def use_saved_settings(config: DictConfig) -> None:
    """Put the settings of the folder `config.resume` in the place of those composed.

    Refuses before anything is written; Hydra does not write its files again.
    """
    folder = Path(str(config.resume))
    saved = _resumable(folder)
    choices = _choices(folder)
    check_resolvers(saved, names_of(config.trust))
    plain_values(saved, "a part")
    typed = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
    for one in typed:
        if one.key_or_group.partition(".")[0] not in FREE:
            _check_same(one, config, saved, choices)
    with flag_override(config, ["struct", "readonly"], False):
        _merge_free(typed, config, saved)
        for key in [key for key in config if key != "hydra"]:
            del config[key]
        for key, value in saved.items_ex(resolve=False):
            if key != "hydra":
                config[key] = value
        config.hydra.output_subdir = None
        config.hydra.runtime.choices.update(choices)
    now_in = Path(config.hydra.run.dir)
    if now_in.resolve() != folder.resolve():
        raise KbrError(
            f"a run goes on in its own folder, not in {now_in}. Leave out hydra.run.dir."
        )


def _resumable(folder: Path) -> DictConfig:
    if not folder.is_dir():
        raise KbrError(f"there is no run folder {folder} to resume. Set resume to one.")
    saved = saved_config(folder)
    if (folder / MANIFEST).is_file():
        look = command("evaluate", setting("run", shown(folder)))
        raise KbrError(f"{folder} is finished: nothing is left to train. Look at it with: {look}")
    if not last_checkpoints(folder):
        raise KbrError(
            f"{folder} has no checkpoint to go on from: its model has none, or the run was stopped "
            "before the first one. Start it anew."
        )
    return saved


def _choices(folder: Path) -> dict[str, str | None]:
    """The option of every config group, as the run was started."""
    choices = inside(read_yaml(folder / HYDRA), "hydra", "runtime", "choices")
    return {str(k): None if v is None else str(v) for k, v in choices.items()}


def begun_with(folder: Path) -> list[str]:
    """The words of the command that began the run in this folder."""
    words = inside(read_yaml(folder / HYDRA), "hydra", "overrides").get("task")
    return [str(word) for word in words] if isinstance(words, list) else []


def _check_same(
    one: Override, config: DictConfig, saved: DictConfig, choices: dict[str, str | None]
) -> None:
    key = one.key_or_group
    if key in choices and not one.is_delete():
        was, now = choices[key], one.value()
        now = None if now is None else str(now)
    else:
        was, now = _value(saved, key), _value(config, key)
    if was != now:
        raise KbrError(
            f"a resumed run must keep its settings: {key} was {was}, is {now}. Leave {key} out, or "
            "start a run of its own without resume."
        )


def _value(config: DictConfig, key: str) -> Any:
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _merge_free(typed: list[Override], config: DictConfig, saved: DictConfig) -> None:
    """What may differ: as typed now, else as saved; a group before its keys."""
    keys = {one.key_or_group for one in typed}
    for key in sorted(key for key in keys if key.partition(".")[0] in ("trainer", "logger")):
        OmegaConf.update(saved, key, OmegaConf.select(config, key), merge=False, force_add=True)
    saved.resume, saved.trust = config.resume, config.trust
