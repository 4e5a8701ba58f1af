"""Building from settings that a folder brings along: nothing but kbr's own parts is called.

A run folder may come from anybody. Its config names what is built (`_target_`), and values may call
resolvers (`${name:...}`): both are checked before anything is imported, built or looked up.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
from omegaconf.grammar_parser import parse

from kbr.app.building.moved import with_present_names
from kbr.app.config.check import first_line
from kbr.app.config.errors import instantiation_error
from kbr.app.config.resolvers import model_name
from kbr.app.config.values import nested, strings
from kbr.app.models.outcome import Method
from kbr.app.models.own import OwnModel
from kbr.app.recordings.task import OwnData
from kbr.app.runs.files import read_yaml
from kbr.app.tasks.task import Problem
from kbr.core.errors import KbrError

NEEDED = ("data", "model", "trainer", "logger", "seed", "trials")
SIMULATED = (
    "rotation",
    "oscillatory",
    "dsprites",
    "dmlab",
    "gaussian",
    "lorenz_images",
    "pendulum_images",
)
REAL = ("rtt_canteen", "battery", "turbofan", "uwb_plaza")
RESOLVERS = ("either", "flat", "resume_or")  # those of config/resolvers.py
FUNCTIONS = (
    *(f"kbr.app.tasks.simulated.{name}" for name in SIMULATED),
    "kbr.app.recordings.task.recording",
    *(f"kbr.app.real.tasks.{name}" for name in REAL),
    "kbr.app.tasks.task.sprite_source",
    "kbr.app.tasks.frames.heading_frames",
)
LIGHTNING = (
    "lightning.Trainer",
    "lightning.pytorch.loggers.TensorBoardLogger",
    "lightning.pytorch.loggers.CSVLogger",
    "lightning.pytorch.loggers.WandbLogger",
    "lightning.pytorch.loggers.MLFlowLogger",
)

Trusted = Sequence[str] | None  # names of modules, classes, resolvers; None: the user typed it all


def saved_config(folder: Path) -> DictConfig:
    """The config a run was started with, as it stands in its folder; nothing is resolved yet."""
    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        raise KbrError(f"{folder} is no run folder: it has no .hydra/config.yaml. Name another.")
    try:
        read_yaml(path)  # names what is damaged, or a trap
        loaded = OmegaConf.load(path)
    except (OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
        raise KbrError(f"{first_line(error)}. Repeat the run.") from None
    assert isinstance(loaded, DictConfig)
    if missing := [key for key in NEEDED if key not in loaded]:
        raise KbrError(f"{path} is damaged: it has no {', '.join(missing)}. Repeat the run.")
    return with_present_names(loaded)[0]


def names_of(trust: Any) -> tuple[str, ...]:
    """The setting `trust` as names: one, several or none."""
    if trust is None or isinstance(trust, str):
        return () if trust is None else (trust,)
    return tuple(str(name) for name in trust)


def build(config: DictConfig, trusted: Trusted = ()) -> tuple[Problem, Method]:
    """The problem and the method that a config describes.

    `trusted` names what may be built beside kbr's own parts, `None` anything: for a config that
    the user has typed, not for one that was read from a folder.
    """
    config, changed = with_present_names(config)
    for old, new in changed.items():
        print(f"  {old} is now {new}: change your config")
    data = "data.problem" if "problem" in config.data else "data"  # as kbr 0.2 wrote it
    built = construct(part(config, data, trusted)), method_of(config, trusted)
    for key, thing, needed in zip((data, "model"), built, ("trials", "run"), strict=True):
        if not hasattr(thing, needed):
            raise KbrError(f"{key} is a {type(thing).__name__}, which cannot be used as one.")
    problem, method = built
    return problem.suited(method) if isinstance(problem, OwnData) else problem, method


def method_of(config: DictConfig, trusted: Trusted = ()) -> Any:
    """One of kbr's methods, or a model of the user's own as one."""
    model = part(config, "model", trusted)
    try:
        kind = get_object(str(model._target_))
    except (ImportError, AttributeError, ValueError):
        kind = None  # `construct` says what is wrong
    if kind is None or hasattr(kind, "run"):
        return construct(model, _convert_="all")
    arguments = OmegaConf.masked_copy(model, [str(key) for key in model if key != "name"])
    return OwnModel(name=model_name(model), model=construct(arguments, _convert_="all"))


def part(config: DictConfig, key: str, trusted: Trusted = ()) -> DictConfig:
    """The settings at `key`; those of a folder are checked, and hold plain values only."""
    if trusted is not None:
        check_resolvers(config, trusted)
    settings = OmegaConf.select(config, key)
    if not isinstance(settings, DictConfig) or "_target_" not in settings:
        raise KbrError(f"the settings have no {key} that can be built. Repeat the run.")
    if trusted is None:
        return settings
    plain = plain_values(settings, key)
    for target in _targets(plain):
        _check_target(target, trusted)
    return DictConfig(plain)


def plain_values(config: DictConfig, key: str) -> Any:
    """All values looked up, once: a value that would be looked up a second time is refused."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise KbrError(f"{key} of the saved settings is damaged ({first_line(error)}).") from None
    for value in strings(plain):
        if "${" in value:
            raise KbrError(f"{key} of the saved settings hides a reference: {value!r}. Remove it.")
    return plain


def construct(config: DictConfig, **settings: Any) -> Any:
    """What a config describes; what cannot be built is one error that names its key."""
    try:
        return instantiate(config, **settings)
    except InstantiationException as error:
        raise instantiation_error(error) from error


def check_resolvers(config: DictConfig, trusted: Sequence[str]) -> None:
    """Values may refer to each other and call kbr's resolvers, not those that read the machine."""
    for text in strings(OmegaConf.to_container(config, resolve=False)):
        if "${" not in text:
            continue
        try:
            left = [parse(text)]
        except OmegaConfBaseException as error:
            raise KbrError(f"the saved settings hold {text!r}, which cannot be read.") from error
        while left:
            node = left.pop()
            left += getattr(node, "children", None) or ()
            if isinstance(node, OmegaConfGrammarParser.InterpolationResolverContext):
                name = node.resolverName().getText()  # type: ignore[no-untyped-call]
                if name not in (*RESOLVERS, *trusted):
                    raise KbrError(
                        f"the saved settings look something up by {name!r} ({text}), which kbr "
                        f"does not do for settings from a folder. If you trust it: trust=[{name}]"
                    )


def _check_target(target: Any, trusted: Sequence[str]) -> None:
    """Classes of kbr, its few functions that make data, and what the user names.

    Functions are named one by one: some of kbr's read further configs, write or end processes. A
    name that passes through kbr to another module's object is that object's.
    """
    name = str(target)
    if any(name == one or name.startswith(f"{one}.") for one in trusted):
        return
    if name in LIGHTNING or name in FUNCTIONS or _is_regressor(name):
        return
    if name.startswith("kbr."):
        if isinstance(_found(name), type):
            return
        raise KbrError(f"the saved settings name {name}, which is no class of kbr and was not run.")
    module = name.rpartition(".")[0] or name
    raise KbrError(
        f"the saved settings name {name}, which is not part of kbr and was not run. If you trust "
        f"it, say so: trust=[{module}]"
    )


def _is_regressor(name: str) -> bool:
    """Whether this is a regressor of scikit-learn: constructing one only keeps its arguments."""
    if not name.startswith("sklearn.") or find_spec("sklearn") is None:
        return False
    from sklearn.base import RegressorMixin

    try:
        named = get_object(name)
    except (ImportError, AttributeError, ValueError):
        return False
    return isinstance(named, type) and issubclass(named, RegressorMixin)


def _found(name: str) -> Any:
    """What a dotted name means, as far as it stays inside kbr; None beyond."""
    module, *inside = name.split(".")
    named: Any = sys.modules[module]
    for step in inside:
        if isinstance(named, ModuleType) and not hasattr(named, step):
            try:
                import_module(f"{named.__name__}.{step}")
            except ImportError:
                return None
        named = getattr(named, step, None)
        home = named.__name__ if isinstance(named, ModuleType) else getattr(named, "__module__", "")
        if str(home).partition(".")[0] != "kbr":
            return None
    return named


def outside(config: DictConfig) -> list[str]:
    """Modules beside kbr that a config names, to be trusted by name when it is read back."""
    plain = OmegaConf.to_container(config, resolve=False)
    names = {str(name) for name in _targets(plain)} - set(LIGHTNING)
    foreign = (n for n in names if not (n.startswith("kbr.") or _is_regressor(n)))
    return sorted({name.rpartition(".")[0] for name in foreign})


def _targets(value: Any) -> Iterator[Any]:
    return (one["_target_"] for one in nested(value) if isinstance(one, dict) and "_target_" in one)
