"""The whole composed config is checked before any work: its keys, their values, who reads them."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args, get_origin, get_type_hints

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kbr.app.config.resolvers import CONFIGS
from kbr.app.config.schema import OPTIONS, TARGETS, Target
from kbr.app.config.unknown import unknown_key
from kbr.app.config.unused import check_use, idle_note
from kbr.app.config.values import Node, expected, strings, suits, walked, written
from kbr.core.errors import KbrError

COPY = re.compile(r"\$\{([\w.]+)\}")  # a value that is another key's
REFERENCE = re.compile(r"(?:\$\{|oc\.select:)\s*([\w.]+)")

Kind = Any  # what a key may hold: an annotation of the schema, or of a signature


def typed_words(hydra: Any) -> list[str]:
    """The command line's words as they were typed: hparams=${data}_${model} stays a name."""
    words: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return list(words)


def check_config(config: DictConfig, hydra: Any, *, script: str = "train") -> None:
    """An error for the first key that is unknown or missing, that holds what it may not, or that
    the command line sets in vain.

    `hydra` is Hydra's own part of the config: options of the groups, overrides, who refers to keys.
    """
    check = Check(script, config, hydra)
    tuned, model = check.choices.get("hparams"), check.choices.get("model")
    if tuned and not tuned.endswith(f"_{model}"):
        raise KbrError(
            f"hparams={tuned} holds settings of another model than model={model}. Use a file of "
            f"configs/hparams that ends in _{model}, or leave hparams out."
        )
    check.run()
    overrides = typed_words(hydra)
    check_use(script, check.values, check.choices, overrides)
    single = script == "train" and hydra.mode == RunMode.RUN
    if single and (experiment := check.choices.get("experiment")):
        raise KbrError(
            f"experiment={experiment} is a sweep: put -m before it, as in "
            f"`python train.py -m experiment={experiment}`."
        )
    if single and (space := check.choices.get("hparams_search")):
        raise KbrError(
            f"hparams_search={space} is a search: `kbr-tune hparams_search={space} ...`."
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
        self._walk("", self.written, None)  # first, so that nothing is computed from wrong values
        self._walk("", self.written, self.values)

    @cached_property
    def choices(self) -> Mapping[str, str | None]:
        return dict(self.hydra.runtime.choices)

    @cached_property
    def written(self) -> dict[str, Any]:
        """The config as files and command line give it, references not followed."""
        return {str(k): v for k, v in _plain(self.config, follow=False).items() if k != "hydra"}

    @cached_property
    def values(self) -> dict[str, Any]:
        try:
            values = {name: self.config[name] for name in self.written}
            return {n: _plain(v) if OmegaConf.is_config(v) else v for n, v in values.items()}
        except OmegaConfBaseException as error:
            raise KbrError(f"{error.full_key} cannot be read: {first_line(error)}.") from None

    @cached_property
    def _references(self) -> set[str]:
        texts = strings([self.written, _plain(self.hydra, follow=False)])
        return {name for text in texts for name in REFERENCE.findall(text)}

    def _walk(self, path: str, texts: dict[str, Any], values: dict[str, Any] | None) -> None:
        """Check the keys of a part; without values, those that refer to no other key."""
        kinds = self._kinds(path, texts)
        self._check_present(path, texts)
        for name in sorted(texts, key=lambda one: one not in kinds):  # what is declared first
            key, text = f"{path}.{name}" if path else str(name), texts[name]
            kind = self.kind(key, texts)
            refers = isinstance(text, str) and "${" in text
            copied = COPY.fullmatch(text) if refers else None
            if values is not None or not refers:
                value = text if values is None else values[name]
                check_value(copied.group(1) if copied else key, value, kind)
            if isinstance(text, dict) and not _has_own_names(kind):
                self._walk(key, text, None if values is None else values[name])

    def _kinds(self, path: str, node: Mapping[str, Any]) -> dict[str, Kind]:
        """What is declared for the keys of a part of the config."""
        declared = self._option(path)
        kinds = {} if declared is None else dict(hints(declared))
        if "_target_" in node:
            kinds |= hints(Target) | hints(TARGETS.get(str(node["_target_"]), Target))
        return kinds

    def _option(self, path: str) -> type | None:
        """The class of the config file that gives this part."""
        if path in self.choices:
            return OPTIONS.get(f"{path}/{self.choices[path]}") or OPTIONS.get(f"{path}/*")
        return OPTIONS.get(f"{self.script}/{path}".rstrip("/"))

    def _check_present(self, path: str, node: Mapping[str, Any]) -> None:
        declared = self._option(path)
        for one in fields(declared) if declared else ():
            if one.name not in node and one.default is MISSING:
                key, kind = f"{path}.{one.name}".lstrip("."), hints(declared)[one.name]
                wanted = f"choose one, {key}=<name>" if kind is Node else f"set {expected(kind)}"
                raise KbrError(f"{key} is missing: {wanted}.")

    def kind(self, key: str, part: Mapping[str, Any]) -> Kind:
        """What a key of a part may hold: by the schema, by kbr's config file, by its class."""
        path, _, name = key.rpartition(".")
        declared = self._kinds(path, part).get(name) or self._by_default(key)
        return declared or self._of_class(key, part)

    def _by_default(self, key: str) -> Kind | None:
        """By what kbr's config file gives a key: a part, or the value of another, `${data.dim}`."""
        group, _, rest = key.partition(".")
        file = Path(CONFIGS) / group / f"{self.choices.get(group)}.yaml"
        if self._option(group) is None or not file.is_file():
            return None
        default: Any = _written_in(file)
        for name in rest.split("."):
            default = default.get(name) if isinstance(default, dict) else None
        if isinstance(default, dict):
            return Node
        copied = COPY.fullmatch(default) if isinstance(default, str) else None
        return copied and self._kinds(group, {}).get(copied.group(1).rpartition(".")[2])

    def _of_class(self, key: str, node: Mapping[str, Any]) -> Kind:
        """Of a key that is not declared: by the class of its part, or anything if it is read."""
        path, _, name = key.rpartition(".")
        taken: dict[str, Kind] | None = {}
        if "_target_" in node:
            taken = self._arguments(path, node)
            if taken is None or name in taken:
                return (taken or {}).get(name, Any)
        elif self._is_read(key):
            return Any
        beside = [*(taken or ()), *self._kinds(path, node), *(str(n) for n in node if n != name)]
        siblings = [f"{path}.{one}".lstrip(".") for one in beside]
        known = {*siblings, *(one for one, _ in walked(self.written))} - {key}
        raise KbrError(unknown_key(key, known, self.choices))

    def _arguments(self, path: str, node: Mapping[str, Any]) -> dict[str, Kind] | None:
        """Arguments of the class that a part names; None where it takes any."""
        target = node["_target_"]
        check_value(f"{path}._target_", target, hints(Target)["_target_"])
        if target.startswith("lightning."):
            import kbr._torchvision  # noqa: F401  (before lightning; slow to import)
        try:
            named = resolve_name(target)
        except (ImportError, AttributeError, ValueError) as error:
            raise KbrError(
                f"{path}._target_={target} is not there: {first_line(error)}."
            ) from error
        return arguments(named, any_too=target not in TARGETS)

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


def _has_own_names(kind: Any) -> bool:
    """Whether keys may be names of the user's, like those of columns."""
    return get_origin(kind) in (dict, Mapping) or any(map(_has_own_names, get_args(kind)))


@cache
def hints(declared: type) -> dict[str, Kind]:
    """The keys of a class of the schema and what each may hold."""
    return get_type_hints(declared, include_extras=True)


def arguments(callee: Any, *, any_too: bool = True) -> dict[str, Kind] | None:
    """Names and annotations of what a class or function takes.

    None where it takes any, unless only those with a name of their own count (`any_too`).
    """
    try:
        parameters = inspect.signature(callee).parameters.values()
    except (TypeError, ValueError):  # written in C
        return None
    if any_too and any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    plain = {one.name: one.annotation for one in parameters if one.kind is not one.VAR_KEYWORD}
    return {name: Any if _says_nothing(kind) else kind for name, kind in plain.items()}


def first_line(error: BaseException) -> str:
    """What an exception says, on one line and without a full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _says_nothing(annotation: Any) -> bool:
    """There is none, or it is a text that only its module can read."""
    return annotation is inspect.Parameter.empty or isinstance(annotation, str)


@cache
def _written_in(file: Path) -> Any:
    return _plain(OmegaConf.load(file), follow=False)


def _plain(node: Any, *, follow: bool = True) -> Any:
    """Dictionaries, lists and values; references are followed, or stand as they are written."""
    return OmegaConf.to_container(node, resolve=follow, throw_on_missing=follow)
