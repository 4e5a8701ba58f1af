"""Console commands. Only light imports here: `--help` must answer at once."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kbr.app.config.resolvers import CONFIGS
from kbr.app.terminal import interruptible, one_line_errors, piped, stop, version_line

SWEEP = ("-m", "--multirun")
ONE_LINE = "KBR_ONE_LINE"  # set where HYDRA_FULL_ERROR is kbr's own doing, for workers too


def _prepare() -> None:
    """One id for all processes of a run, whoever launches them, before Hydra names folders; and
    the user's modules in the working folder can be named in `_target_`."""
    sys.path.append(os.getcwd())
    if "KBR_RUN_ID" not in os.environ:
        launched = _launchers_id(os.environ)
        os.environ["KBR_RUN_ID"] = launched or time.strftime("%Y-%m-%d_%H-%M-%S")
        if launched is None:  # so this process may choose another, should the folder be taken
            os.environ["KBR_RUN_ID_BY_CLOCK"] = str(os.getpid())


def _greet() -> None:
    """Imports take seconds, so something is said before them, on a terminal.

    A question (--help) is answered alone, and workers that another process has started are silent.
    """
    first = os.environ.get("KBR_RUN_ID_BY_CLOCK") == str(os.getpid())
    asks = any(word.startswith("-") and word not in SWEEP for word in sys.argv[1:])
    if first and not asks and sys.stdout.isatty():
        print("loading PyTorch and kbr ...", flush=True)


def _choose_model() -> None:
    """Own data without a word on the model get the one that suits them, and say which.

    A model that is written out, model={_target_:...}, takes the place of the default one.
    """
    if "data=npz" in sys.argv[1:]:
        print("data=npz is now called data=recording", flush=True)
        sys.argv = ["data=recording" if word == "data=npz" else word for word in sys.argv]
    written = [word for word in sys.argv[1:] if word.startswith("model={")]
    for word in written:
        place = sys.argv.index(word)
        sys.argv[place : place + 1] = ["~model", f"+{word}"]
    if written or "data=recording" not in sys.argv[1:]:
        return
    from kbr.app.building.default_model import default_model

    if (name := default_model(sys.argv[1:])) is not None:
        sys.argv += [f"model={name}", *(["model.compare_learned=true"] if name == "iw" else [])]
        kind = "frames" if name == "iw_nn" else "vectors"
        print(f"x are {kind}: model={name}", flush=True)


def _shorten() -> None:
    """With quick=true an experiment sets what its `figure.quick` says, unless the user does.

    A number of trials that the user gives is that of every model.
    """
    given = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:] if "=" in word}
    name = given.get("experiment")
    if name and "trials" in given:
        sys.argv.append("++figure.trials=null")
    if not name or given.get("quick", "").lower() != "true":
        return
    words = sys.argv[1:]
    folders = [after for word, after in pairwise(words) if word in ("--config-dir", "-cd")]
    folders += [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    files = [Path(folder) / "experiment" / f"{name}.yaml" for folder in (*folders, CONFIGS)]
    for file in filter(Path.is_file, files):
        short = OmegaConf.select(OmegaConf.load(file), "figure.quick") or {}
        sys.argv += [f"{key}={value}" for key, value in short.items() if key not in given]
        return


def _launchers_id(environ: Mapping[str, str]) -> str | None:
    """The same for all processes that srun or torchrun starts, and for a job that is requeued."""
    if "SLURM_STEP_ID" in environ:  # a job script may run several commands, each with its srun
        return f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    given = environ.get("TORCHELASTIC_RUN_ID")
    if given != "none":  # what torchrun says without --rdzv-id
        return given
    if environ["WORLD_SIZE"] == environ["LOCAL_WORLD_SIZE"]:
        return f"torchrun_{os.getppid()}"
    return stop("torchrun on several nodes needs a name for the run: --rdzv-id=NAME.")


@hydra.main(version_base="1.3", config_path=CONFIGS, config_name="train")
def _train(config: DictConfig) -> Any:
    from kbr.app.run.train import train_job

    return train_job(config)


@hydra.main(version_base="1.3", config_path=CONFIGS, config_name="evaluate")
def _evaluate(config: DictConfig) -> Any:
    from kbr.app.config.check import check_config
    from kbr.app.evaluate.run import evaluate_job

    with one_line_errors():
        check_config(config, HydraConfig.get(), script="evaluate")
    return evaluate_job(config)


def train() -> None:
    """`kbr-train`: train one model, or a sweep with -m."""
    with interruptible():
        _prepare()
        _greet()
        _choose_model()
        _shorten()
        _in_one_line(_train)


def evaluate() -> None:
    """`kbr-evaluate`: test metrics and pictures of a finished run."""
    with interruptible():
        _prepare()
        _in_one_line(_evaluate)


def _in_one_line(command: Callable[[], None]) -> None:
    """What Hydra finds wrong with the arguments is one line of ours.

    With HYDRA_FULL_ERROR=1 Hydra raises what it would print itself; a user who sets it sees all.
    """
    if "--version" in sys.argv[1:]:
        print(version_line())
        return
    asked = os.environ.get("HYDRA_FULL_ERROR") == "1" and ONE_LINE not in os.environ
    if not asked:
        os.environ |= {"HYDRA_FULL_ERROR": "1", ONE_LINE: "1"}
    try:
        piped(command)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        from kbr.app.config.errors import composition_error

        line = None if asked else composition_error(error, sys.argv[1:])
        if line is None:
            raise
        stop(str(line))
