"""Search for the settings of a trained model with Optuna: `kbr-tune`, or as a module.

    python -m kbr.app.sweep.tune --trials 40 data=dsprites model=iw_nn
    python -m kbr.app.sweep.tune model=lstm 'model.filter.lr=tag(log,interval(1e-4,1e-2))' \
        model.filter.hidden=32,64,128

Overrides are those of train.py; the ones that give a range or several values are searched, else
those of configs/hparams_search. The first run has the model's own settings. What counts is the
error on the validation block, the mean over the trials' seeds; test data are not looked at. A run
that does worse than the median at the same epoch is cut short. Values without a range are each
tried once, if --trials are enough for all of their combinations. The study is a SQLite file: the
same command goes on with it.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from kbr.app.config.check import check_config
from kbr.app.config.errors import in_our_words
from kbr.app.config.resolvers import CONFIGS
from kbr.app.sweep.tuned import keep_settings
from kbr.app.terminal import one_line_errors, piped, stop, version_line
from kbr.app.text.commands import quoted
from kbr.core.errors import Diverged, KbrError, Preempted

GROUP = "hparams_search"
STARTUP = 5  # runs before any is cut short
ABSENT = object()  # a key that the model does not have; null is a value

Value = bool | int | float | str


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="kbr-tune", description="Search for the settings of a trained model."
    )
    parser.add_argument("--trials", type=int, default=30, help="runs in all, earlier ones included")
    parser.add_argument("--study", type=Path, default=Path("outputs/search.db"))
    parser.add_argument(
        "--keep", type=Path, help="folder for the best settings and all runs, like configs/hparams"
    )
    parser.add_argument("overrides", nargs="*", help="as for train.py; ranges are searched")
    parser.add_argument("--version", action="version", version=version_line())
    options = parser.parse_args(argv)
    try:
        with one_line_errors():
            asked = {"trials": options.trials, "study": options.study, "keep": options.keep}
            piped(lambda: search(options.overrides, **asked))
    except Preempted:
        stop("stopped by a signal; the same command goes on with the study.")


def search(overrides: Sequence[str], *, trials: int, study: Path, keep: Path | None = None) -> Any:
    """Run until the study has so many finished trials; prints and returns its best."""
    try:
        import optuna
    except ImportError as error:
        raise KbrError('the search needs Optuna: pip install "kbr[tune]"') from error
    if trials < 1:
        raise KbrError(f"--trials must be at least 1; got {trials}.")
    fixed, space = split(overrides)
    config = composed([*fixed, *map(_first, space)])
    space = space or default_space(config, fixed)
    fixed = [word for word in fixed if not word.startswith(f"{GROUP}=")]
    _, _, measure = _task(config)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study.parent.mkdir(parents=True, exist_ok=True)
    kept = optuna.create_study(
        study_name=" ".join(sorted([*fixed, *(one.input_line or "" for one in space)])),
        storage=f"sqlite:///{study}",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
    )
    keys, done = [str(one.get_key_element()) for one in space], _finished(kept)
    grid = all_values(space, trials)
    trials = trials if grid is None else math.prod(map(len, grid.values()))
    if grid is None and not kept.trials:
        kept.enqueue_trial(own_values(composed(fixed), space))
    print(f"search over {', '.join(keys)}; {done} done")
    while done < trials:
        # A seed for each run: a search that is interrupted and started again draws new points.
        kept.sampler = (
            optuna.samplers.TPESampler(seed=len(kept.trials), multivariate=True)
            if grid is None
            else optuna.samplers.GridSampler(grid, seed=0)
        )
        kept.optimize(lambda trial: _objective(trial, fixed, space), n_trials=1, catch=(Diverged,))
        done, last = _finished(kept), kept.trials[-1]
        result = f"{last.value:.4f}" if last.state.name == "COMPLETE" else last.state.name.lower()
        values = " ".join(f"{k.rpartition('.')[2]}={_written(v)}" for k, v in last.params.items())
        print(f"[{done:>{len(str(trials))}}/{trials}] {result:<8} {values}", flush=True)
    if all(one.state.name != "COMPLETE" for one in kept.trials):
        raise KbrError("no run ended with a finite error. Search over smaller model.filter.lr.")
    best = kept.best_trial
    words = [*fixed, *(f"{key}={_written(value)}" for key, value in best.params.items())]
    print(f"\n  {measure}    {best.value:.4f} (run {best.number})")
    print(f"  python train.py {' '.join(map(quoted, words))}")
    if keep is not None:
        print(f"  settings    {keep_settings(keep, config, kept, fixed, measure)}")
    return best


def all_values(space: Sequence[Override], trials: int) -> dict[str, list[str]] | None:
    """The values of every key, where there are no ranges and so many runs can try them all."""
    if any(one.is_interval_sweep() for one in space):
        return None
    values = {str(one.get_key_element()): list(one.sweep_string_iterator()) for one in space}
    return values if math.prod(map(len, values.values())) <= trials else None


def own_values(config: DictConfig, space: Sequence[Override]) -> dict[str, Value]:
    """The config's values of what is searched, where they are among those to try."""
    found: dict[str, Value] = {}
    for one in space:
        key, value = str(one.get_key_element()), OmegaConf.select(config, one.get_key_element())
        if one.is_interval_sweep():
            interval: Any = one.value()
            if isinstance(value, int | float) and interval.start <= value <= interval.end:
                found[key] = type(interval.start)(value)
        elif str(value) in list(one.sweep_string_iterator()):
            found[key] = str(value)
    return found


def _finished(study: Any) -> int:
    """Runs that ended, well or not: others may be under way in processes beside this one."""
    return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def split(overrides: Sequence[str]) -> tuple[list[str], list[Override]]:
    """What is set, and what is searched: overrides with a range or several values."""
    with in_our_words(overrides):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    space = [one for one in parsed if one.is_sweep_override()]
    return [one.input_line or "" for one in parsed if not one.is_sweep_override()], space


def default_space(config: DictConfig, fixed: Sequence[str]) -> list[Override]:
    """The ranges of configs/hparams_search, of keys that the command line does not set.

    The file is the one that `hparams_search` names, else that of the model.
    """
    model = config.model.get("name")
    if not config.hydra.runtime.choices.get(GROUP):
        spaces = sorted(path.stem for path in (Path(CONFIGS) / GROUP).glob("*.yaml"))
        if model not in spaces:
            raise KbrError(
                f"model={model} has no training to search over. Use model={', '.join(spaces)}."
            )
        config = composed([*fixed, f"{GROUP}={model}"])
    typed = {text.partition("=")[0].lstrip("+") for text in fixed}
    ranges = {k: v for k, v in config.hydra.sweeper.params.items() if k not in typed}
    known = {k: OmegaConf.select(config, k, default=ABSENT) for k in ranges}
    there = [f"{k}={v}" for k, v in ranges.items() if known[k] is not ABSENT]
    return OverridesParser.create().parse_overrides(there)


def suggestion(trial: Any, override: Override) -> Value:
    """Ask the study for a value of one override."""
    key = override.get_key_element()
    if override.is_interval_sweep():
        interval: Any = override.value()
        low, high, log = interval.start, interval.end, "log" in interval.tags
        if isinstance(low, int) and isinstance(high, int):
            return int(trial.suggest_int(key, low, high, log=log))
        return float(trial.suggest_float(key, low, high, log=log))
    return trial.suggest_categorical(key, list(override.sweep_string_iterator()))  # type: ignore[no-any-return]


def _first(override: Override) -> str:
    """A key that is searched, with the first of its values."""
    value: Any = override.value()
    is_range = override.is_interval_sweep()
    first = value.start if is_range else next(override.sweep_string_iterator())
    return f"{override.get_key_element()}={first}"


def composed(overrides: Sequence[str]) -> DictConfig:
    """The checked config of train.py."""
    with in_our_words(overrides), initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose("train", overrides=list(overrides), return_hydra_config=True)
    check_config(config, config.hydra)
    return config


def _task(config: DictConfig) -> tuple[Any, Any, str]:
    """The data, the method that is trained on them, and the name of its validation error."""
    from kbr.app.building.trusted import build
    from kbr.app.models.trained import TrainedMethod
    from kbr.app.tasks.task import PosteriorMean

    problem, method = build(config, trusted=None)
    if not isinstance(method, TrainedMethod) or isinstance(problem, PosteriorMean):
        raise KbrError(
            f"the search is for trained filters; got model={method.name} on data={problem.name}."
        )
    if problem.has_own_vectors and config.encoder.get("_target_") != "kbr.training.encoders.MLP":
        raise KbrError("x are vectors, which the MLP takes: add encoder=mlp to the search.")
    return problem, method, problem.val_name.replace("_", "/", 1)


def _objective(trial: Any, fixed: Sequence[str], space: Sequence[Override]) -> float:
    """Validation error of one setting; the first seed's training can be cut short."""
    import torch

    from kbr.app.run.train import trial_seeds
    from kbr.app.run.trainer import trainer_settings
    from kbr.core.units.units import Units
    from kbr.training.callbacks.bar import quiet_lightning

    values = [f"{one.get_key_element()}={_written(suggestion(trial, one))}" for one in space]
    config = composed([*fixed, *values])
    torch.set_num_threads(config.trainer.threads)
    quiet_lightning()
    problem, method, _ = _task(config)
    settings = {**trainer_settings(config), "logger": False, "enable_progress_bar": False}
    errors = []
    for number, seed in enumerate(trial_seeds(config)):
        data, watch = problem.data(seed), [_pruner(trial)] if number == 0 else []
        with tempfile.TemporaryDirectory() as folder:
            method.filter.fit(
                data.x_train,
                data.z_train,
                u=getattr(data, "u_train", None),
                units=problem.filter_units or Units.none(data.z_train[0]),
                seed=seed,
                folder=Path(folder),
                trainer={**settings, "callbacks": watch},
            )
        errors.append(method.filter.val_mse)
    return float(sum(errors) / len(errors))


def _pruner(trial: Any) -> Any:
    """A callback that reports the validation error and ends the runs that lag behind."""
    import optuna
    from lightning.pytorch.callbacks import LambdaCallback

    def look(trainer: Any, module: Any) -> None:
        trial.report(float(trainer.callback_metrics["val/mse"]), trainer.current_epoch + 1)
        if trial.should_prune():
            raise optuna.TrialPruned

    return LambdaCallback(on_validation_end=look)


def _written(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
