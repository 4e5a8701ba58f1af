"""What a search found, kept: the best settings as a yaml of configs/hparams, all runs as a csv.

`python train.py data=dsprites model=lstm hparams=dsprites_lstm` then applies them.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kbr.app.text.commands import quoted
from kbr.core.io.checkpoint import write_atomically

PARTS = ("model.", "encoder.")  # of a config that settings belong to


def keep_settings(
    folder: Path, config: DictConfig, study: Any, fixed: Sequence[str], measure: str
) -> Path:
    """<data>_<model>.yaml and .csv in `folder`.

    Settings of the model that were the same in all runs are kept too: the others go with them.
    """
    best, name = study.best_trial, f"{config.data.name}_{config.model.name}"
    settings = OmegaConf.create()
    for key in (word.partition("=")[0].lstrip("+") for word in fixed):
        if key.startswith(PARTS):
            OmegaConf.update(settings, key, OmegaConf.select(config, key))
    for key, value in best.params.items():
        written = float(f"{value:.4g}") if isinstance(value, float) else value
        OmegaConf.update(settings, key, _plain(written))
    runs = f"run {best.number} of {len(study.trials)}"
    head = f"# {measure} {best.value:.4g}, {runs}: kbr-tune {' '.join(map(quoted, fixed))}"
    path = folder / f"{name}.yaml"
    _write(path, f"# @package _global_\n{head}\n{OmegaConf.to_yaml(settings)}")
    table, keys = io.StringIO(), sorted({key for one in study.trials for key in one.params})
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["run", "state", measure, *keys])
    for one in study.trials:
        values = [one.params.get(key) for key in keys]
        rows.writerow([one.number, one.state.name.lower(), one.value, *values])
    _write(path.with_suffix(".csv"), table.getvalue())
    return path


def _plain(value: Any) -> Any:
    """A choice is kept as text; as a setting it is the number it stands for."""
    return OmegaConf.create(f"value: {value}").value if isinstance(value, str) else value


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda target: target.write_text(text))
