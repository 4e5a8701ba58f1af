"""Building from settings that a folder brings along: nothing but kbr's own parts is called.

A run folder may come from anybody. Its config names what is built (`_target_`), and values may call
resolvers (`${name:...}`): both are checked before anything is imported, built or looked up.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
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
from kbr.app.config.errors import instantiation_error
from kbr.app.config.resolvers import model_name
from kbr.app.models.outcome import Method
from kbr.app.models.own import OwnModel
from kbr.app.tasks.task import Problem
from kbr.core.errors import KbrError

LARGEST = 1_000_000  # bytes of a config; ours have some thousand
NEEDED = ("data", "model", "trainer", "logger", "seed", "trials")
DAMAGE = (  # what reading such a file may raise
    OSError,
    ValueError,
    AssertionError,
    RecursionError,
    yaml.YAMLError,
    OmegaConfBaseException,
)
SIMULATED = ("rotation", "oscillatory", "dsprites", "dmlab", "gaussian")
RESOLVERS = ("either", "flat", "resume_or")  # those of config/resolvers.py
FUNCTIONS = (
    *(f"kbr.app.tasks.simulated.{name}" for name in SIMULATED),
    "kbr.app.recordings.task.recording",
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
    loaded = read_yaml(path, OmegaConf.create)
    if not isinstance(loaded, DictConfig) or not loaded:
        raise KbrError(f"{path} is empty or holds no settings. Repeat the run.")
    if missing := [key for key in NEEDED if key not in loaded]:
        raise KbrError(f"{path} is damaged: it has no {', '.join(missing)}. Repeat the run.")
    return with_present_names(loaded)[0]


def names_of(trust: Any) -> tuple[str, ...]:
    """The setting `trust` as names: one, several or none."""
    if trust is None or isinstance(trust, str):
        return () if trust is None else (trust,)
    return tuple(str(name) for name in trust)


def read_yaml(path: Path, parse: Callable[[str], Any] = yaml.safe_load) -> Any:
    """The content of a small file of settings; one that is damaged, or a trap, is named."""
    try:
        if path.stat().st_size > LARGEST:
            raise KbrError(f"{path} is larger than settings are ({LARGEST:,} bytes).")
        text = path.read_text()
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise KbrError(f"{path} repeats parts by aliases, which kbr never writes.")
        return parse(text)
    except KbrError:
        raise
    except DAMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise KbrError(f"{path} is damaged ({reason}). Repeat the run.") from None


def build(config: DictConfig, trusted: Trusted = ()) -> tuple[Problem, Method]:
    """The problem and the method that a config describes.

    `trusted` names what may be built beside kbr's own parts, `None` anything: for a config that
    the user has typed, not for one that was read from a folder.
    """
    config, changed = with_present_names(config)
    for old, new in changed.items():
        print(f"  {old} is now {new}: change your config")
    data = "data.problem" if "problem" in config.data else "data"  # as kbr 0.2 wrote it
    made = construct(part(config, data, trusted)), method_of(config, trusted)
    for key, thing, needed in zip((data, "model"), made, ("trials", "run"), strict=True):
        if not hasattr(thing, needed):
            raise KbrError(f"{key} is a {type(thing).__name__}, which cannot be used as one.")
    return made


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
    found = OmegaConf.select(config, key)
    if not isinstance(found, DictConfig) or "_target_" not in found:
        raise KbrError(f"the settings have no {key} that can be built. Repeat the run.")
    if trusted is None:
        return found
    plain = plain_values(found, key)
    for target in _targets(plain):
        _check_target(target, trusted)
    made: DictConfig = OmegaConf.create(plain)
    return made


def plain_values(config: DictConfig, key: str) -> Any:
    """All values looked up, once: a value that would be looked up a second time is refused."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise KbrError(f"{key} of the saved settings is damaged ({reason}).") from None
    for value in _strings(plain):
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
    for text in _strings(OmegaConf.to_container(config, resolve=False)):
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
        found = get_object(name)
    except (ImportError, AttributeError, ValueError):
        return False
    return isinstance(found, type) and issubclass(found, RegressorMixin)


def _found(name: str) -> Any:
    """What a dotted name means, as far as it stays inside kbr; None beyond."""
    module, *inside = name.split(".")
    found: Any = sys.modules[module]
    for step in inside:
        if isinstance(found, ModuleType) and not hasattr(found, step):
            try:
                import_module(f"{found.__name__}.{step}")
            except ImportError:
                return None
        found = getattr(found, step, None)
        home = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", "")
        if str(home).partition(".")[0] != "kbr":
            return None
    return found


def outside(config: DictConfig) -> list[str]:
    """Modules beside kbr that a config names, to be trusted by name when it is read back."""
    plain = OmegaConf.to_container(config, resolve=False)
    names = {str(name) for name in _targets(plain)} - set(LIGHTNING)
    foreign = (n for n in names if not (n.startswith("kbr.") or _is_regressor(n)))
    return sorted({name.rpartition(".")[0] for name in foreign})


def _targets(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "_target_" in value:
            yield value["_target_"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _targets(item)


def _strings(value: Any) -> Iterator[str]:
    """All strings of nested settings, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
