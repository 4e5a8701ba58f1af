"""Where the config files are, and the resolvers they use, registered on import."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

_PACKAGE = Path(__file__).resolve().parents[2]
CONFIGS = str(
    _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"
)

LONGEST = 200  # bytes of a folder's name; file systems take 255


def flat(name: str) -> str:
    """One folder's name: no slashes; what is too long ends in a hash of the whole."""
    name = name.replace("/", "_")
    if len(name.encode()) <= LONGEST:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name.encode()[:LONGEST].decode(errors='ignore')}+{mark}"


def model_name(model: Mapping[str, Any]) -> str:
    """A model's name in folders and tables; without one of its own, that of its class."""
    return str(model.get("name") or str(model["_target_"]).rpartition(".")[2])


def run_label(size: Any, path: Any, seed: Any, trials: Any) -> str:
    """What tells runs of one model on one data set apart, before the time at which they began."""
    file = f"{Path(path).stem}_" if isinstance(path, str) else ""
    what = file if size is None else f"n{size}_"
    several = "" if trials == 1 else f"_trials{trials}"
    return flat(re.sub(r"[^\w.-]+", "_", f"{what}seed{seed}{several}"))


# `either` stands in run folders of kbr 0.2 and in models.
OmegaConf.register_new_resolver(
    "resume_or", lambda resume, folder: folder if resume is None else resume, replace=True
)
OmegaConf.register_new_resolver("flat", lambda name: flat(name), replace=True)
OmegaConf.register_new_resolver("model_name", lambda model: model_name(model), replace=True)
OmegaConf.register_new_resolver(
    "run_label",
    lambda size, path, seed, trials: run_label(size, path, seed, trials),
    replace=True,
)
OmegaConf.register_new_resolver("either", lambda flag, yes, no: yes if flag else no, replace=True)
