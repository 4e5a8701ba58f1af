"""A run folder belongs to one run: claimed before anything is written, kept while it runs."""

import os
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from kbr.app.building.trusted import saved_config
from kbr.app.config.values import walked
from kbr.app.run.folder import LOCK, MANIFEST, METRICS, RESULTS
from kbr.app.run.resume import FREE, last_checkpoints
from kbr.app.text.commands import resume_command, shown
from kbr.core.errors import KbrError

RUN_ID = "KBR_RUN_ID"
BY_CLOCK = "KBR_RUN_ID_BY_CLOCK"  # the process that made the id from the time, if one did
_held: list[FileLock] = []  # until the process ends, however it does


def claim(config: DictConfig, key: str) -> Path:
    """The folder that `key` (hydra.run.dir, hydra.sweep.dir) names, for this process alone.

    Runs that are named by the time and started in the same second get different folders.
    """
    folder = Path(OmegaConf.select(config, key))
    _check_writable(folder, key)
    by_clock = os.environ.get(BY_CLOCK) == str(os.getpid()) and os.environ[RUN_ID] in str(folder)
    if not by_clock:
        _check_free(config, folder, key)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        first = os.environ[RUN_ID]
        for number in count(2):
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                os.environ[RUN_ID] = f"{first}_{number}"
                folder = Path(OmegaConf.select(config, key))
    lock(folder, key)
    _check_free(config, folder, key)  # again: another run may have ended in between
    return folder


def lock(folder: Path, key: str) -> None:
    """Until this process ends; `key` is the setting that names the folder."""
    held = FileLock(folder / LOCK)
    try:
        held.acquire(timeout=0)
    except Timeout:
        raise KbrError(
            f"{shown(folder)} is in use by another run. Wait for its end, or set {key} to "
            "another folder."
        ) from None
    except NotImplementedError:
        print(f"  note: no locks on this disk; start no second run in {shown(folder)}")
    _held.append(held)


def _check_free(config: DictConfig, folder: Path, key: str) -> None:
    """A folder that holds a run is for that run only, and only until it is finished."""
    advice = f"Set {key} to another folder, or delete it"
    if key == "hydra.sweep.dir":
        if (folder / ".hydra").exists():
            raise KbrError(f"{shown(folder)} holds a single run. {advice}.")
        return
    if (folder / MANIFEST).is_file():
        raise KbrError(f"{shown(folder)} holds a finished run. {advice}.")
    if not (folder / ".hydra" / "config.yaml").is_file():
        others = [METRICS, RESULTS, "checkpoints", "multirun.yaml"]
        if left := [name for name in others if (folder / name).exists()]:
            raise KbrError(f"{shown(folder)} holds {left[0]} of another run or sweep. {advice}.")
        return
    saved, now = _plain(saved_config(folder)), _plain(config)
    changed = sorted(name for name in {*saved, *now} if saved.get(name) != now.get(name))
    if changed:
        was, given = saved.get(changed[0]), now.get(changed[0])
        on = f", or go on with it: {resume_command(folder)}" if last_checkpoints(folder) else ""
        raise KbrError(
            f"{shown(folder)} holds another run: {changed[0]} was {was}, is {given}. {advice}{on}."
        )


def _plain(config: DictConfig) -> dict[str, Any]:
    """Every value by its dotted key, references as they are written."""
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    decisive = {key: value for key, value in plain.items() if key not in (*FREE, "hydra")}
    return {key: value for key, value in walked(decisive) if value == {} or type(value) is not dict}


def _check_writable(folder: Path, key: str) -> None:
    """Fail before anything is made, with the setting to change."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            pass
    except OSError as error:
        raise KbrError(
            f"cannot write the run folder {folder}: {place} is not a writable folder "
            f"({error.strerror}). Set {key}=..."
        ) from None
