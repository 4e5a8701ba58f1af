"""Every key of every config file: what it may hold, and one line for what it may not."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from kbr.app.cli import CONFIGS
from kbr.app.config.check import Check, arguments, check_config, hints
from kbr.app.config.errors import composition_error, instantiation_error
from kbr.app.config.schema import OPTIONS, TARGETS
from kbr.app.job import construct
from kbr.core.errors import KbrError

GROUPS = ("data", "model", "encoder", "trainer", "logger", "debug", "experiment")
FILES = sorted(
    f"{path.parent.name}={path.stem}"
    for group in GROUPS
    for path in (Path(CONFIGS) / group).glob("*.yaml")
)
PARTS = ("data", "model", "encoder", "trainer", "logger")  # parts of the config
FREE = ("trials", "quick_trials", "cost")  # mappings whose keys are names of models
SIGNED = {"omega", "beta", "frequency"}  # the numbers that may be negative
NOT_PARTS = {"figure", *(f"figure.{name}" for name in FREE)}  # mappings, or null
MAY_BE_EMPTY = {"label", "version"}  # texts
MAY_BE_NULL = {"data.path", "data.problem.task.source.path", "model.ridge", "model.filter.dropout"}


ALL = [*FILES, "train", "evaluate"]


@pytest.fixture(autouse=True, scope="module")
def _hydra():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBR_RUN_ID", "test")
        GlobalHydra.instance().clear()
        with initialize_config_dir(CONFIGS, version_base="1.3"):
            yield


def composed(*overrides: str, script: str = "train") -> DictConfig:
    """As the command line composes it; errors in our words."""
    named = [*overrides, "hydra.job.name=test"]
    try:
        return compose(script, overrides=named, return_hydra_config=True)
    except Exception as error:
        raise composition_error(error, overrides) or error from error


def check(*overrides: str, script: str = "train") -> None:
    config = composed(*overrides, script=script)
    check_config(config, config.hydra, script=script)


class File:
    """A config file, and the config composed with it."""

    def __init__(self, option: str) -> None:
        group, _, name = option.partition("=")
        self.overrides = [option] if name else []
        self.script = "train" if name else option
        whole = composed(*self.overrides, script=self.script)
        self.hydra = whole.hydra
        self.config = OmegaConf.masked_copy(whole, [str(k) for k in whole if k != "hydra"])
        self.top = group if group in PARTS else ""
        path = Path(CONFIGS) / group / f"{name}.yaml" if name else Path(CONFIGS) / f"{option}.yaml"
        self.content = OmegaConf.to_container(OmegaConf.load(path))

    def keys(self) -> Iterator[tuple[str, Any]]:
        """All keys that the file sets, and what each comes to."""
        return self._keys(self.content, self.top)

    def _keys(self, node: dict, path: str) -> Iterator[tuple[str, Any]]:
        for name, text in node.items():
            key = f"{path}.{name}".lstrip(".")
            if name == "defaults" or key == "hydra":
                continue
            yield key, OmegaConf.select(self.config, key)
            if isinstance(text, dict) and name not in FREE:
                yield from self._keys(text, key)

    def says(self, key: str, value: Any) -> str:
        """What the check says once a key holds this; nothing if it passes."""
        path, _, name = key.rpartition(".")
        node = OmegaConf.select(self.config, path) if path else self.config
        before = copy.deepcopy(node._get_node(name))
        try:
            with open_dict(node):
                node[name] = value
            Check(self.script, self.config, self.hydra).run()
        except KbrError as error:
            return str(error)
        finally:  # composing anew takes too long
            node._content.pop(name)
            if before is not None:
                node._content[name] = before
        return ""


@pytest.fixture(scope="module", params=ALL)
def file(request) -> File:
    return File(request.param)


@pytest.mark.parametrize("option", FILES)
def test_the_config_files_pass_themselves(option):
    check(option)


def test_every_key_of_every_file_is_declared(file):
    """A key that is new in a yaml needs a line in the schema."""
    looked = Check(file.script, file.config, file.hydra)
    for key, value in file.keys():
        built = key.startswith("data.problem.") and OmegaConf.is_dict(value)
        assert built or looked.declared(key) is not None, f"{key} is not in the schema"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_schema_has_no_key_that_its_class_does_not_take(target):
    taken = arguments(looked_up(target))
    assert taken is None or set(hints(TARGETS[target])) <= set(taken)


def looked_up(target: str) -> Any:
    from hydra.utils import get_object

    return get_object(target)


def test_the_schema_has_no_file_that_is_not_there():
    names = {name for name in OPTIONS if name not in ("train/figure", "evaluate/data")}
    assert all((Path(CONFIGS) / f"{name}.yaml").is_file() for name in names)


def wrong_values(key: str, value: Any) -> list[Any]:
    """What no key may hold that has this default: wrong type, empty, negative, huge, null."""
    name = key.rpartition(".")[2]
    never: list[Any] = [{"a": {"b": 1}}, [[1]], math.nan]
    if OmegaConf.is_dict(value) or key in NOT_PARTS:
        return [[[1]], "abc", "", 5, 10**30, *([] if key in NOT_PARTS else [None])]
    if isinstance(value, bool):
        return [*never, "maybe", "", 5, None, 10**30]
    if isinstance(value, int | float):
        wrong = [*never, "abc", "", True, None, 10**30, 1e300, math.inf, [1]]
        wrong += [1.5] if isinstance(value, int) else []
        return wrong if name in SIGNED else [*wrong, -1]
    if isinstance(value, str):
        return [*never, None, ["a"], *([] if name in MAY_BE_EMPTY else [""])]
    if value is None:
        return [*never, "", -1.5]
    return [*never, -1, None, [None], 10**30]


def test_any_wrong_value_of_any_key_is_one_line_with_key_expected_and_got(file):
    for key, value in file.keys():
        for wrong in wrong_values(key, value):
            if wrong is None and key in MAY_BE_NULL:
                continue
            line = file.says(key, wrong)
            assert line.startswith(f"{key} must be "), f"{key}={wrong!r}: {line!r}"
            assert "; got " in line
            assert "\n" not in line
            assert len(line) < 320


def test_a_misspelt_key_is_one_line_that_names_the_right_one(file):
    """With a + before it, as Hydra used to advise, for all keys; as it is typed, for one a file."""
    typed = False
    for key, value in file.keys():
        path, _, name = key.rpartition(".")
        wrong = f"{path}.{name[0]}{name[2:3]}{name[1:2]}{name[3:]}".lstrip(".")
        if name.startswith("_") or wrong == key or OmegaConf.select(file.config, wrong) is not None:
            continue
        lines = [file.says(wrong, 3)]
        if not typed and not OmegaConf.is_dict(value):
            with pytest.raises(KbrError) as error:
                composed(*file.overrides, f"{wrong}=3", script=file.script)
            lines.append(str(error.value))
            typed = True
        for line in lines:
            assert line.startswith(f"{wrong} is no key"), line
            assert len(name) < 3 or f"Did you mean {key}?" in line, line
            assert "\n" not in line
            assert "+" not in line
