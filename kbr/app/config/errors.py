"""Errors of Hydra and of what it builds, each as one line of kbr."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from kbr.app.config.check import first_line
from kbr.app.config.resolvers import CONFIGS
from kbr.app.config.unknown import did_you_mean, unknown_key
from kbr.app.config.values import either, walked
from kbr.core.errors import KbrError

PAIRS = {"[": "]", "{": "}", "(": ")"}


@contextmanager
def in_our_words(arguments: Sequence[str]) -> Iterator[None]:
    """What Hydra finds wrong with the arguments is one line of ours."""
    try:
        yield
    except KbrError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if (found := composition_error(error, arguments)) is None:
            raise
        raise found from error


def composition_error(error: Exception, arguments: Sequence[str]) -> KbrError | None:
    """What is wrong with the arguments, if that is what the exception is about."""
    if isinstance(error, OverrideParseException):
        return KbrError(_unreadable(error.override))
    words = [word for word in arguments if "=" in word and not word.startswith("-")]
    for key, _, value in (word.partition("=") for word in words):
        if not key:
            return KbrError(_unreadable(f"={value}"))
        if value == "null" and key in _groups():
            return KbrError(f"{key} must be {either(_options(key))}; got null. Leave it out.")
    if isinstance(error, MissingConfigException):
        return KbrError(_no_option(error))
    if isinstance(error, ConfigCompositionException):
        return KbrError(_not_composed(error, words))
    if isinstance(error, InstantiationException):
        return instantiation_error(error)
    if isinstance(error, HydraException | OmegaConfBaseException):
        return KbrError(f"{first_line(error)}.")
    return None


def instantiation_error(error: InstantiationException) -> KbrError:
    """The part of the config that could not be built, and why; our own errors as they are."""
    cause = error.__cause__
    while isinstance(cause, InstantiationException):
        cause = cause.__cause__
    if isinstance(cause, KbrError):
        return cause
    lines = [line.strip() for line in str(error).splitlines()]
    key = next((line[10:] for line in lines if line.startswith("full_key: ")), "the config")
    why = first_line(cause or error)
    kind = f"{type(cause).__name__}: " if cause else ""
    return KbrError(f"{key} cannot be built: {kind}{why}.")


def _unreadable(word: str) -> str:
    key, equals, value = word.partition("=")
    if not (key and equals):
        return (
            f"'{word}' is no key=value. A value with spaces needs two pairs of quotes: "
            "'key=\"a b\"'."
        )
    quotes = [mark for mark in "'\"" if value.count(mark) % 2]
    ends = [pair for pair in PAIRS.items() if value.count(pair[0]) != value.count(pair[1])]
    if quotes or ends:
        what = f"the quote {quotes[0]}" if quotes else f"the bracket {ends[0][0]}"
        return f"{word} cannot be read: {what} has no partner."
    return f"{word} cannot be read. Put quotes around the value: '{key}=\"{value}\"'."


def _no_option(error: MissingConfigException) -> str:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    options = list(error.options or _options(group))
    if not (group and options):
        return f"{first_line(error)}."
    meant = did_you_mean(option, options)
    return f"{group} must be {either(options)}; got '{option}'. {meant}".rstrip()


def _not_composed(error: ConfigCompositionException, words: Sequence[str]) -> str:
    cause = error.__cause__
    overrides = OverridesParser.create().parse_overrides(list(words))
    for one in overrides:
        if one.is_sweep_override():
            return (
                f"{one.input_line} has several values: -m runs them all, brackets make a list of "
                f"them, and a text with a comma needs quotes: '{one.key_or_group}=\"a,b\"'."
            )
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        key = str(cause.full_key)
        root: Any = cause.parent_node._get_root() if cause.parent_node is not None else None
        there: Any = {} if root is None else OmegaConf.to_container(root, resolve=False)
        return unknown_key(key, {*(one for one, _ in walked(there)), *_groups()}, _choices(words))
    if isinstance(cause, OmegaConfBaseException):
        return f"{cause.full_key}: {first_line(cause)}."
    added = [one.key_or_group for one in overrides if one.is_add()]
    twice = [key for key in added if f"'{key}'" in str(error)]
    if twice:
        return f"{twice[0]} is there already: leave out the +."
    return f"{first_line(error)}."


def _choices(words: Sequence[str]) -> dict[str, str]:
    """The options of the groups: those of the command line, else the defaults."""
    defaults = OmegaConf.load(Path(CONFIGS) / "train.yaml").defaults
    plain = {str(k): v for one in defaults if isinstance(one, DictConfig) for k, v in one.items()}
    given = {key: value for key, _, value in (word.partition("=") for word in words)}
    return given if "experiment" in given else {**plain, **given}


def _groups() -> list[str]:
    return [path.name for path in Path(CONFIGS).iterdir() if path.is_dir()]


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (Path(CONFIGS) / group).glob("*.yaml"))
