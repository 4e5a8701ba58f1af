"""Settings that the command line gives and the chosen data and model do not use."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from kbr.app.config.values import walked
from kbr.core.errors import KbrError

KERNEL = ("kbr.app.models.kernel.KernelMethod", "kbr.app.models.refined.RefinedMethod")
TRAINED = "kbr.app.models.trained.TrainedMethod"
OWN = "kbr.app.recordings.task.recording"
REAL = "kbr.app.real.tasks."
POSTERIOR = "kbr.app.tasks.simulated.gaussian"
FILTER_KEYS = (
    "lam_transition",
    "scales",
    "widths",
    "lams",
    "etas",
    "engine",
    "compare_learned",
    "history",
    "velocity",
    "correction",
)
HARDWARE = ("trainer.accelerator", "trainer.devices", "trainer.precision", "trainer.timeout")

Unused = tuple[str, str]  # a key, and why nothing uses it


def check_use(
    script: str,
    values: Mapping[str, Any],
    choices: Mapping[str, str | None],
    overrides: Sequence[str],
) -> None:
    """An error for a setting of the command line that changes nothing."""
    unused = wasted(values, choices) if script == "train" else wasted_in_evaluation(values)
    if first := _first_given(values, overrides, unused):
        raise KbrError(f"{first[0]} is not used here: {first[1]}.")


def idle_note(values: Mapping[str, Any], overrides: Sequence[str]) -> str | None:
    """A word on parts that the model has no use for."""
    first = _first_given(values, overrides, idle(values))
    return first and f"{first[0]} is not used: {first[1]}"


def wasted(values: Mapping[str, Any], choices: Mapping[str, str | None]) -> Iterator[Unused]:
    """Keys without effect on the result that one would expect an effect of: to be refused."""
    data, model = values["data"], values["model"]
    if values["figure"] is None:
        yield "quick", "it shortens experiments. Lower trials or data.n_train"
    if choices.get("data") == "dsprites" and data["source"] == "rendered":
        yield "data.path", "data.source=rendered draws the sprites. Set data.source=file"
    if choices.get("data") == "dmlab" and data["frames"] is not None:
        for name in ("maze_seed", "n_frames", "cache"):
            yield f"data.{name}", "it is for drawn frames, and data.frames names a file"
    if model.get("_target_") in KERNEL:
        yield "model.rule.lam", "set model.lam"
        yield from _of_kernel(model, data.get("_target_"))
        if data.get("sensors") is None:
            for name in ("fusion", "sensor_kernels"):
                yield f"model.{name}", "it is for sensors that may be absent. Set data.sensors"
    if model.get("_target_") == TRAINED:
        yield from _of_training(model["filter"])


def _of_kernel(model: Mapping[str, Any], problem: str | None) -> Iterator[Unused]:
    posterior = problem == POSTERIOR
    if posterior:
        for name in FILTER_KEYS:
            yield f"model.{name}", "it is for filters, and this data has no dynamics"
    else:
        if problem != OWN and not str(problem).startswith(REAL):
            yield "model.compare_learned", "it is for own data"
        yield "model.tune", "it is for data=gaussian; filters are always tuned"
    if posterior and model.get("tune"):
        for name in ("lam", "eta"):
            yield f"model.{name}", "model.tune=true chooses it"
    elif not posterior:
        for name in ("lam", "eta"):
            if model.get(name) is not None:
                yield f"model.{name}s", f"model.{name} is given"
    if model.get("true_ratio"):
        why = f"model={model['name']} is given the true ratio"
        for name in ("eta", "etas", "lam_transition", "rule.ratio"):
            yield f"model.{name}", why


def _of_training(filter_: Mapping[str, Any]) -> Iterator[Unused]:
    if filter_.get("dropout") is not None:
        yield "encoder.dropout", "model.filter.dropout takes its place"
    if filter_.get("targets") == "cholesky":
        yield "model.filter.n_fourier", "model.filter.targets=cholesky draws no features"


def idle(values: Mapping[str, Any]) -> Iterator[Unused]:
    """Parts that a model without a network has no use for: worth a word, not a refusal."""
    if values["model"].get("_target_") in (*KERNEL, "kbr.app.models.classical.ModelMethod"):
        for name in ("encoder", "logger", *HARDWARE):
            yield name, f"model={values['model']['name']} trains no network"


def wasted_in_evaluation(values: Mapping[str, Any]) -> Iterator[Unused]:
    if values["run"] is not None:
        yield "out", "results of run= are written into the run folder"
    if values["report"] is not None:
        for name in ("device", "data.seed"):
            yield name, "report= runs no model"


def _first_given(
    values: Mapping[str, Any], overrides: Sequence[str], unused: Iterable[Unused]
) -> Unused | None:
    """The first unused key that the command line sets to something, itself or a part of it."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    held = {key for key, value in walked(values) if value is not None and value is not False}
    keys = [one.key_or_group for one in parsed if not one.is_delete() and one.key_or_group in held]
    for name, why in unused:
        for key in keys:
            if key == name or key.startswith(f"{name}."):
                return key, why
    return None
