"""Every key of every config file: what it may hold, and one line for what it may not."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kbr._torchvision  # noqa: F401  (before lightning, whose classes are looked up)

# isort: split
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from kbr.app.building.trusted import construct
from kbr.app.config.check import Check, arguments, check_config, hints
from kbr.app.config.errors import composition_error
from kbr.app.config.resolvers import CONFIGS
from kbr.app.config.schema import OPTIONS, TARGETS
from kbr.app.sweep.check import cells
from kbr.core.errors import KbrError

GROUPS = ("data", "model", "encoder", "trainer", "logger", "debug", "experiment")
FILES = sorted(
    f"{path.parent.name}={path.stem}"
    for group in GROUPS
    for path in (Path(CONFIGS) / group).glob("*.yaml")
)
PARTS = ("data", "model", "encoder", "trainer", "logger")  # parts of the config
FREE = ("trials", "quick", "cost", "grid")  # mappings whose keys are names of models or settings
SIGNED = {"omega", "beta", "frequency"}  # the numbers that may be negative
NOT_PARTS = {
    "figure",
    *(f"figure.{name}" for name in FREE),
    "model.grid",
    "model.frames.grid",
}  # mappings, or null
MAY_BE_EMPTY = {"label", "version"}  # texts
MAY_BE_NULL = {"data.path", "data.step", "data.max_gap", "model.ridge", "model.filter.dropout"}
MAY_BE_NULL |= {"logger.tracking_uri", "figure.x", "model.most", "model.frames.most", "data.trend"}
MAY_BE_NULL |= {"model.filter.batch", "model.correction"}


ALL = [*FILES, "train", "evaluate"]


@pytest.fixture(autouse=True, scope="module")
def _hydra():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBR_RUN_ID", "test")
        GlobalHydra.instance().clear()
        with initialize_config_dir(CONFIGS, version_base="1.3"):
            yield


def composed(*overrides: str, script: str = "train") -> DictConfig:
    """The config as the command line composes it; errors are kbr's own messages."""
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

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """All keys that the file sets, with their values in the composed config."""
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
        """What the check says when a key has this value; nothing if it passes."""
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
    for key, _ in file:
        path = key.rpartition(".")[0]
        node = OmegaConf.select(file.config, path) if path else file.config
        part = OmegaConf.to_container(node, resolve=False)
        assert looked.kind(key, part) not in (None, Any), f"{key} is not in the schema"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_schema_has_no_key_that_its_class_does_not_take(target):
    taken = arguments(looked_up(target))
    assert taken is None or set(hints(TARGETS[target])) <= set(taken)


def looked_up(target: str) -> Any:
    from hydra.utils import get_object

    return get_object(target)


def test_the_schema_has_no_file_that_is_not_there():
    parts = ("train/figure", "evaluate/data", "data/*", "model/*", "trainer/*")
    names = {name for name in OPTIONS if name not in parts}
    assert all((Path(CONFIGS) / f"{name}.yaml").is_file() for name in names)


def wrong_values(key: str, value: Any) -> list[Any]:
    """Values that a key with this default must refuse: wrong type, empty, negative, huge, null."""
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
    for key, value in file:
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
    for key, value in file:
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


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            "data.n_trian=300",
            r"data.n_trian is no key of data=dsprites. Did you mean data.n_train\?",
        ),
        ("model=iw model.scals=[1]", r"no key of model=iw. Did you mean model.scales\?"),
        ("n_train=300", r"n_train is no key. Did you mean data.n_train\?"),
        ("model.lr=1", r"Did you mean model.filter.lr\?"),
        ("expriment=low_dim", r"expriment is no key. Did you mean experiment\?"),
        ("data=rotatoin", r"data must be battery, .* or uwb_plaza2; got 'rotatoin'. .* rotation\?"),
        ("model=iw_n", r"got 'iw_n'. Did you mean iw_nn\?"),
        ("hydra/launcher=bsic", r"hydra/launcher must be .*; got 'bsic'. Did you mean basic\?"),
        ("data=null", r"data must be .*; got null"),
        ("data.n_train=1,2", r"data.n_train=1,2 has several values: -m runs them all"),
        ("+data.n_train=3", r"data.n_train is there already: leave out the \+"),
        ("data.path=[a", r"data.path=\[a cannot be read: the bracket \[ has no partner"),
        ("data.path='a", r"the quote ' has no partner"),
        ("data.path=a=b", r"""Put quotes around the value: 'data.path="a=b"'"""),
        ("b", r"'b' is no key=value"),
        ("=3", r"'=3' is no key=value"),
        ("+tag=3", r"tag is no key. --help lists the keys"),
        ("+data.foo=3", r"data.foo is no key of data=dsprites"),
        ("~data.n_train", r"data.n_train is missing: set a whole number of at least 1"),
        ("~logger", r"logger is missing: choose one, logger=<name>"),
        ("hydra.job.chdir=abc", r"hydra.job.chdir: Value 'abc' is not a valid bool"),
        ("model=iw model.engine=fast", r"model.engine must be auto, .* or local; got 'fast'"),
        ("model=iw model.scales=1", r"model.scales must be a list .* above 0 each or null; got 1"),
        ("data=gaussian model=iw model.lam=0", r"model.lam must be .* above 0 or null; got 0"),
        (
            "data=recording data.path=[1,2]",
            r"data.path must be a file, a folder, a pattern \(\*\), or a list of them",
        ),
        ("data.n_train=-3", r"data.n_train must be .* at least 1; got -3"),
        ("+data.extent=a", r"data.extent must be a number; got 'a'"),
        ("seed=4294967296", r"seed must be a whole number of at most 4294967295"),
        ("model=iw +model.rule.kernal_x._target_=kbr.Laplace", r"Did you mean model.rule.kernel_x"),
        ("+model.filter.a._target_=kbr.Nope +model.filter.a.b=1", r"model.filter.a is no key"),
        ("model.filter._target_=kbr.Nope +model.filter.b=1", r"is not there: .*no attribute"),
    ],
)
def test_a_wrong_setting_is_one_line(overrides, says):
    with pytest.raises(KbrError, match=says) as error:
        check(*overrides.split())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=iw", "+model.rule.kernel_x._target_=kbr.Laplace"],
        ["model=iw", "+model.rule.kernel_z={_target_: kbr.PerCoordinate, bandwidth: [0.5, 0.7]}"],
        ["model=iw", "+model.etas=[1e-3]", "data=rotation"],
        ["+model.filter.lams=[1e-3,1e-2]", "+model.filter.weight_decay=1"],
        ["+tag=a", "hydra.run.dir=outputs/${tag}"],
        ["+data.extent=1.2"],
        ["trainer=cpu", "trainer.devices=auto"],
        [
            "data=recording",
            "data.path=my file.csv",
            "data.x=[a,b]",
            "data.z=c",
            "data.units={c: m}",
        ],
        ["experiment=low_dim", "quick=true"],
    ],
)
def test_what_something_reads_may_be_added(overrides):
    check(*overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("data=rotation model=iw model.tune=true", r"model.tune is not used here.*data=gaussian"),
        ("data=gaussian model=iw model.engine=low_rank", r"model.engine .* no dynamics"),
        ("data=gaussian model=iw model.tune=true model.lam=1", r"model.lam .*model.tune=true"),
        ("data=rotation model=iw model.lam=1 model.lams=[1]", r"model.lams .*model.lam is given"),
        ("data=rotation model=iw +model.rule.lam=1", r"model.rule.lam is not used.*set model.lam"),
        ("data=rotation model=iw_true_ratio model.eta=1", r"model.eta .*true ratio"),
        ("data=dsprites data.path=a.npz", r"data.path .*Set data.source=file"),
        ("data=dmlab data.frames=a.npz data.maze_seed=2", r"data.maze_seed .*data.frames"),
        ("model=lstm encoder.dropout=.2", r"encoder.dropout .*model.filter.dropout"),
        ("data=rotation model=iw model.fusion=product", r"model.fusion .*Set data.sensors"),
        (
            "data=rotation model=iw model.sensor_kernels={a:{_target_:kbr.Laplace}}",
            r"model.sensor_kernels .*Set data.sensors",
        ),
        ("quick=true", r"quick is not used here: it shortens experiments"),
    ],
)
def test_a_setting_without_effect_is_refused(overrides, says):
    with pytest.raises(KbrError, match=says):
        check(*overrides.split())


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("report=a data.seed=3", "data.seed is not used here: report= runs no model"),
        ("run=a out=b", "out is not used here"),
        ("rnu=a", r"rnu is no key. Did you mean run\?"),
        ("run=a device=gpu", "device must be cpu or cuda; got 'gpu'"),
    ],
)
def test_evaluate_has_the_same_check(overrides, says):
    with pytest.raises(KbrError, match=says):
        check(*overrides.split(), script="evaluate")


def single(*overrides: str) -> None:
    config = composed(*overrides, "hydra.mode=RUN")
    check_config(config, config.hydra)


def test_an_experiment_needs_a_sweep_and_an_idle_part_is_said(capsys):
    with pytest.raises(KbrError, match=r"experiment=low_dim is a sweep: .*-m experiment=low_dim"):
        single("experiment=low_dim")
    single("data=rotation", "model=iw", "encoder=mlp")
    assert "note: encoder is not used: model=iw trains no network" in capsys.readouterr().out
    single("data=rotation", "model=iw", "trainer=cpu")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"_target_": "kbr.Nope"}, r"model cannot be built: .*kbr.Nope"),
        ({"_target_": "kbr.Laplace", "scale": "wide"}, r"^scale must be|model cannot be built"),
        ({"_target_": "kbr.ParticleFilter", "n_particles": 3}, r"model cannot be built: TypeError"),
        ({"_target_": "kbr.KuLSIF", "eta": -1.0}, "^eta must be"),
    ],
)
def test_what_cannot_be_built_is_one_line(node, says):
    with pytest.raises(KbrError, match=says) as error:
        construct(OmegaConf.create({"model": node}).model)
    assert "\n" not in str(error.value)


def test_values_of_a_sweep_are_checked_before_it_starts():
    grid = {"data": ["rotation", "oscillatory"], "model": ["iw"], "data.n_train": ["40", "-3"]}
    found = list(cells(grid))
    assert len(found) == 3
    said = [_said(cell) for cell in found]
    assert said[:2] == ["", ""]
    assert said[2].startswith("data.n_train must be")


def _said(config: DictConfig) -> str:
    try:
        check_config(config, config.hydra)
    except KbrError as error:
        return str(error)
    return ""


OWN_DATA = """
_target_: kbr.app.tasks.task.Filtering
name: ring
n_train: 50
n_test: 20
task: {_target_: kbr.core.datasets.dynamics.Rotation, omega: 0.3}
"""
OWN_DATA_BEFORE = """
name: ring
n_train: 50
speed: 0.3
problem:
  _target_: kbr.app.tasks.task.Filtering
  name: ${data.name}
  n_train: ${data.n_train}
  n_test: 20
  task: {_target_: kbr.core.datasets.dynamics.Rotation, omega: "${data.speed}"}
"""


@pytest.mark.parametrize(
    ("text", "good", "wrong"),
    [
        (
            OWN_DATA,
            ["data.task.omega=0.1", "+data.task.sigma_x=0.1"],
            {
                "data.n_train=1.5": "data.n_train must be a whole number; got 1.5",
                "data.task.omega=fast": "data.task.omega must be a number; got 'fast'",
                "+data.task.sigm_x=1": r"Did you mean data.task.sigma_x\?",
                "+data.omega=1": r"data.omega is no key of data=ring. Did you mean data.task.omega",
            },
        ),
        (
            OWN_DATA_BEFORE,
            ["data.speed=0.1", "+data.problem.task.sigma_x=0.1"],
            {
                "data.speed=fast": "data.speed must be a number; got 'fast'",
                "data.n_train=1.5": "data.n_train must be a whole number; got 1.5",
                "+data.sped=1": r"data.sped is no key of data=ring. Did you mean data.speed\?",
                "+data.problem.task.sigm_x=1": r"Did you mean data.problem.task.sigma_x\?",
                "data.problem=3": "data.problem must be a mapping",
            },
        ),
    ],
    ids=["target", "as kbr 0.2 had it"],
)
def test_a_data_set_of_the_users_own(tmp_path, text, good, wrong):
    """Types of its keys are those of its class."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ring.yaml").write_text(text)
    own = ["data=ring", "model=iw", f"hydra.searchpath=[file://{tmp_path}]"]
    check(*own, *good)
    for override, says in wrong.items():
        with pytest.raises(KbrError, match=says):
            check(*own, override)
