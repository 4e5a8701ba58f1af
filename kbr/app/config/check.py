"""The whole composed config is checked before any work: its keys, their values, who reads them."""

import inspect
import pydoc
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kbr.app.cli import CONFIGS
from kbr.app.config.schema import OPTIONS, TARGETS, Target
from kbr.app.config.unknown import unknown_key
from kbr.app.config.unused import check_use, idle_note
from kbr.app.config.values import Node, expected, suits, written
from kbr.core.errors import KbrError

COPY = re.compile(r"\$\{([\w.]+)\}")  # a value that is another key's
REFERENCE = re.compile(r"(?:\$\{|oc\.select:)\s*([\w.]+)")

Kind = Any  # what a key may hold: an annotation of the schema, or of a signature


def check_config(config: DictConfig, hydra: Any, *, script: str = "train") -> None:
    """An error for the first key that is unknown or missing, that holds what it may not, or that
    the command line sets in vain.

    `hydra` is Hydra's own part of the config: options of the groups, overrides, who refers to keys.
    """
    check = Check(script, config, hydra)
    check.run()
    overrides = list(hydra.overrides.task)
    check_use(script, check.values, check.choices, overrides)
    single = script == "train" and hydra.mode == RunMode.RUN
    if single and (experiment := check.choices.get("experiment")):
        raise KbrError(
            f"experiment={experiment} is a sweep: put -m before it, as in "
            f"`python train.py -m experiment={experiment}`."
        )
    if single and (note := idle_note(check.values, overrides)):
        print(f"  note: {note}")


@dataclass(frozen=True)
class Check:
    """One config with its options; `script` names the config file at the top."""

    script: str
    config: DictConfig
    hydra: Any

    def run(self) -> None:
        self._walk("", self.written, self.values)

    @cached_property
    def choices(self) -> Mapping[str, str | None]:
        return dict(self.hydra.runtime.choices)

    @cached_property
    def _own(self) -> DictConfig:
        return OmegaConf.masked_copy(self.config, [k for k in self.config if k != "hydra"])

    @cached_property
    def written(self) -> dict[str, Any]:
        """The config as files and command line give it, references not followed."""
        return OmegaConf.to_container(self._own)  # type: ignore[return-value]

    @cached_property
    def values(self) -> dict[str, Any]:
        try:
            return OmegaConf.to_container(  # type: ignore[return-value]
                self._own, resolve=True, throw_on_missing=True
            )
        except OmegaConfBaseException as error:
            raise KbrError(f"{error.full_key} cannot be read: {first_line(error)}.") from None

    @cached_property
    def _references(self) -> set[str]:
        texts = [*_texts(self.written), *_texts(OmegaConf.to_container(self.hydra))]
        return {name for text in texts for name in REFERENCE.findall(text)}

    def _walk(self, path: str, written_: dict[str, Any], values: dict[str, Any]) -> None:
        kinds = self._kinds(path, written_)
        self._check_present(path, written_)
        for name, text in written_.items():
            key = f"{path}.{name}" if path else str(name)
            kind = kinds.get(str(name)) or self._kind(key, written_)
            copied = COPY.fullmatch(text) if isinstance(text, str) else None
            check_value(copied.group(1) if copied else key, values[name], kind)
            if isinstance(text, dict) and not _has_free_keys(kind):
                self._walk(key, text, values[name])

    def _kinds(self, path: str, node: Mapping[str, Any]) -> dict[str, Kind]:
        """What is declared for the keys of a part of the config."""
        declared = self._option(path)
        found = {} if declared is None else hints(declared)
        if "_target_" in node:
            found |= hints(Target) | hints(TARGETS.get(str(node["_target_"]), Target))
        return found

    def _option(self, path: str) -> type | None:
        """The class of the config file that gives this part."""
        name = f"{path}/{self.choices[path]}" if path in self.choices else f"{self.script}/{path}"
        return OPTIONS.get(name.rstrip("/"))

    def _check_present(self, path: str, node: Mapping[str, Any]) -> None:
        declared = self._option(path)
        for one in fields(declared) if declared else ():
            if one.name not in node and one.default is MISSING:
                key, kind = f"{path}.{one.name}".lstrip("."), hints(declared)[one.name]
                wanted = f"choose one, {key}=<name>" if kind is Node else f"set {expected(kind)}"
                raise KbrError(f"{key} is missing: {wanted}.")

    def _kind(self, key: str, node: Mapping[str, Any]) -> Kind:
        """Of a key that is not declared: by what it stands for, by its class, or anything."""
        path, _, name = key.rpartition(".")
        if (source := self._copied_by_default(key)) is not None:
            parent, _, last = source.rpartition(".")
            return self._kinds(parent, {})[last]
        arguments = self._arguments(path, node) if "_target_" in node else {}
        if arguments is None or name in arguments:
            return (arguments or {}).get(name, Any)
        if self._is_read(key):
            return Any
        beside = [*arguments, *self._kinds(path, node), *(str(n) for n in node if n != name)]
        siblings = [f"{path}.{one}".lstrip(".") for one in beside if not one.startswith("_")]
        raise KbrError(unknown_key(key, {*siblings, *_keys(self.written)} - {key}, self.choices))

    def _copied_by_default(self, key: str) -> str | None:
        """The key whose value the config file of kbr gives to this one: `${data.n_train}`."""
        group, _, rest = key.partition(".")
        file = Path(CONFIGS) / group / f"{self.choices.get(group)}.yaml"
        if not rest or not file.is_file():
            return None
        default: Any = _loaded(file)
        for name in rest.split("."):
            default = default.get(name) if isinstance(default, dict) else None
        found = COPY.fullmatch(default) if isinstance(default, str) else None
        return found.group(1) if found and self._option(group) else None

    def _arguments(self, path: str, node: Mapping[str, Any]) -> dict[str, Kind] | None:
        """Arguments of the class that a part names; None where it takes any."""
        target = node["_target_"]
        check_value(f"{path}._target_", target, hints(Target)["_target_"])
        try:
            found = pydoc.locate(target)
        except pydoc.ErrorDuringImport as error:
            raise KbrError(f"{path}._target_={target}: {first_line(error)}.") from error
        if found is None:
            raise KbrError(f"{path}._target_={target} is not there: Python finds no such class.")
        return arguments(found)

    def _is_read(self, key: str) -> bool:
        """Whether a value of the config refers to this key, to its part, or to one above it."""
        return any(
            f"{name}.".startswith(f"{key}.")
            or f"{key}.".startswith(f"{name}.")
            or (name.startswith(".") and f".{key}".endswith(f".{name.lstrip('.')}"))
            for name in self._references
        )


def check_value(key: str, value: Any, kind: Kind) -> None:
    """An error that names key, expected and got."""
    if not suits(value, kind):
        raise KbrError(f"{key} must be {expected(kind, value)}; got {written(value)}.")


@cache
def hints(declared: type) -> dict[str, Kind]:
    """The keys of a class of the schema and what each may hold."""
    return get_type_hints(declared, include_extras=True)


def arguments(made: Any) -> dict[str, Kind] | None:
    """Names and annotations of what a class or function takes; None where it takes any."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):  # written in C
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    plain = {one.name: one.annotation for one in parameters}
    return {name: Any if _is_unread(kind) else kind for name, kind in plain.items()}


def first_line(error: BaseException) -> str:
    """What an exception says, on one line and without a full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _is_unread(annotation: Any) -> bool:
    """Nothing is said, or in a text that only the module itself can read."""
    return annotation is inspect.Parameter.empty or isinstance(annotation, str)


def _has_free_keys(kind: Kind) -> bool:
    """A mapping whose keys are the user's, like column names."""
    return any(get_origin(one) in (dict, Mapping) for one in (kind, *get_args(kind)))


@cache
def _loaded(file: Path) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(file))  # type: ignore[return-value]


def _keys(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """All keys of nested mappings, with their path, those of Hydra left out."""
    for name, value in node.items():
        if not str(name).startswith("_"):
            key = f"{path}.{name}".lstrip(".")
            yield key
            if isinstance(value, Mapping):
                yield from _keys(value, key)


def _texts(node: Any) -> Iterator[str]:
    """All texts in nested mappings and lists."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping | list):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from _texts(value)
