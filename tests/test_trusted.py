"""Settings and files from elsewhere: nothing they name is run, read or unpacked unless trusted."""

import ast
import threading
import time
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import kbr.app.cli  # noqa: F401  (registers the resolvers)
from kbr.app.building.moved import MOVED
from kbr.app.building.trusted import _found, build, names_of, outside, part, saved_config
from kbr.app.evaluate.run import apply_model
from kbr.core.errors import KbrError
from kbr.core.io import checkpoint

ROOT = Path(__file__).resolve().parent.parent


def composed(*overrides: str):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "configs" / group).glob("*.yaml"))


@pytest.mark.parametrize("group", ["data", "model", "encoder", "logger"])
def test_whatever_our_own_configs_name_is_built_from_a_folder(group):
    for option in options(group):
        config = composed(f"{group}={option}")
        for key in ("data", "model", "logger"):
            assert "_target_" in part(config, key)
        assert outside(config) == []


def hostile(mark: Path) -> dict[str, object]:
    """Configs that try to have something called; each would leave the file `mark`."""
    path = {"_target_": "pathlib.Path", "_args_": [str(mark)]}
    touch = {"_target_": "pathlib.Path.touch", "_args_": [path]}
    filtering = {"_target_": "kbr.app.tasks.task.Filtering"}
    system = f"touch {mark}"
    return {
        "module": {"_target_": "os.system", "command": system},
        "evaluated": {"_target_": "sympy.sympify", "a": f"__import__('os').system('{system}')"},
        "nested": {**filtering, "name": touch},
        "in a list": {**filtering, "_args_": [[touch]]},
        "through kbr": {"_target_": "kbr.app.sweep.callback.os.system", "command": system},
        "through two": {"_target_": "kbr.app.run.train.shutil.os.system", "command": system},
        "a class through kbr": {"_target_": "kbr.app.run.train.Path", "_args_": [str(mark)]},
        "a function of kbr": {"_target_": "kbr.app.building.trusted.construct", "config": {}},
        "a config elsewhere": {
            "_target_": "kbr.app.building.trusted.construct",
            "config": {"_target_": "kbr.app.building.trusted.saved_config", "folder": str(mark)},
        },
        "a method": {"_target_": "kbr.KernelBayesFilter.load", "path": str(mark)},
        "a module": {"_target_": "kbr.app.sweep.callback"},
        "nothing": {"_target_": "kbr.app.nothing.Nothing"},
        "no name": {"_target_": 5},
        "partial": {"_target_": "os.system", "_partial_": True},
        "environment": {**filtering, "name": "${oc.env:HOME}"},
        "made later": {**filtering, "name": r"\${oc.env:HOME}"},
        "decoded": {
            "_target_": "kbr.app.tasks.task.Filtering",
            "name": "${oc.create:'{_target_: os.getcwd}'}",
        },
        "named later": {**filtering, "name": "${${seed}:HOME}"},
        "no problem": {"_target_": "kbr.Gaussian", "bandwidth": 1.0},
    }


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("way", hostile(Path()))
def test_a_received_folder_runs_nothing(tmp_path, way, direct):
    mark, folder = tmp_path / "ran", tmp_path / "run"
    config = composed("data=rotation", "model=iw")
    plain = OmegaConf.to_container(config, resolve=False)
    plain["data"] = (
        {**hostile(mark)[way], "name": "x"} if direct else {"problem": hostile(mark)[way]}
    )
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(plain))
    (folder / "run.json").write_text("{}")
    with pytest.raises(KbrError) as caught:
        apply_model(folder)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_what_the_user_names_is_built():
    config = composed("data=rotation", "model=iw")
    OmegaConf.set_struct(config, False)
    config.data.name = {"_target_": "pathlib.PurePath", "_args_": ["a"]}
    assert outside(config) == ["pathlib"]
    with pytest.raises(KbrError, match=r"pathlib.PurePath.*trust=\[pathlib\]"):
        build(config)
    assert build(config, trusted=["pathlib"])[0].name.name == "a"
    assert build(config, trusted=["pathlib.PurePath"])[0].name.name == "a"
    assert build(config, trusted=None)[0].name.name == "a"
    with pytest.raises(KbrError, match="pathlib"):
        build(config, trusted=["path"])  # a name, not the beginning of one
    assert names_of("pathlib") == ("pathlib",)
    assert names_of(OmegaConf.create(["a", "b"])) == ("a", "b")
    assert names_of(None) == ()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "a: [", "a: &x [1]\nb: *x", "data: {}", "\x00", "[" * 5000, "#" * 1_100_000],
)
def test_damaged_settings_are_one_line(tmp_path, text):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(text)
    with pytest.raises(KbrError, match=r"config\.yaml") as caught:
        saved_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_sources_never_unpickle():
    """torch.load has weights_only=True, numpy.load allow_pickle=False, and pickle is not used."""
    wanted = {"torch": ("weights_only", True), "np": ("allow_pickle", False)}
    found = 0
    for path in [*(ROOT / "kbr").rglob("*.py"), ROOT / "train.py", ROOT / "evaluate.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)):
                continue
            owner, name = called.value.id, called.attr
            where = f"{path.name}:{node.lineno}"
            assert (owner, name) not in {("pickle", "load"), ("pickle", "loads")}, where
            assert (owner, name) not in {("yaml", "unsafe_load"), ("yaml", "full_load")}, where
            assert owner not in ("dill", "cloudpickle", "joblib", "shelve", "marshal"), where
            if name == "load" and owner in (*wanted, "numpy"):
                key, value = wanted.get(owner, wanted["np"])
                given = {k.arg: k.value for k in node.keywords}
                assert getattr(given.get(key), "value", None) is value, where
                found += 1
    assert found >= 3


def test_checkpoints_that_unpack_to_more_than_they_are_cost_nothing(tmp_path, monkeypatch):
    good, packed = tmp_path / "good.ckpt", tmp_path / "packed.ckpt"
    checkpoint.save(good, {"kind": "kbr.x", "zeros": torch.zeros(25_000_000)})
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(packed, "w", 8) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    assert packed.stat().st_size < 1e6
    with pytest.raises(KbrError, match="is compressed"):
        checkpoint.read(packed)
    repeated, lists = tmp_path / "repeated.ckpt", tmp_path / "lists.ckpt"
    checkpoint.save(repeated, {"kind": "kbr.x", "zeros": torch.zeros(1).expand(5_000_000)})
    with pytest.raises(KbrError, match=r"tensors of 20 MB.*KBR_MAX_CHECKPOINT_MB=21"):
        checkpoint.read(repeated)
    monkeypatch.setenv("KBR_MAX_CHECKPOINT_MB", "21")
    assert len(checkpoint.read(repeated)["zeros"]) == 5_000_000
    monkeypatch.setenv("KBR_MAX_CHECKPOINT_MB", "much")
    with pytest.raises(KbrError, match="KBR_MAX_CHECKPOINT_MB must be a number"):
        checkpoint.read(repeated)
    monkeypatch.delenv("KBR_MAX_CHECKPOINT_MB")
    checkpoint.save(lists, {"kind": "kbr.x", "values": [[] for _ in range(1_000_000)]})
    began = time.monotonic()
    with pytest.raises(KbrError, match="plain values of"):
        checkpoint.read(lists)
    assert time.monotonic() - began < 1


def test_a_flipped_bit_in_a_compressed_part_is_one_line(tmp_path):
    path = tmp_path / "packed.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"abc" * 1000)
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(KbrError, match=r"packed\.ckpt"):
        checkpoint.read(path)


def test_links_stay_links_and_devices_are_not_replaced(tmp_path):
    real, link = tmp_path / "elsewhere" / "real.ckpt", tmp_path / "link.ckpt"
    link.symlink_to(real)
    for kind in ("first", "second"):  # to a file that is not there yet, and to one that is
        checkpoint.save(link, {"kind": kind})
        assert link.is_symlink()
        assert checkpoint.read(real)["kind"] == kind
    for place in (Path("/dev/null"), tmp_path):
        with pytest.raises(KbrError, match="folder or a device"):
            checkpoint.save(place, {"kind": "x"})
    assert Path("/dev/null").is_char_device()


def test_threads_may_save_to_one_path(tmp_path):
    path, failed = tmp_path / "one.ckpt", []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                checkpoint.save(path, {"kind": f"kbr.{number}", "x": torch.zeros(1000)})
        except KbrError as error:
            failed.append(error)

    threads = [threading.Thread(target=partial(work, k)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert checkpoint.read(path)["kind"].startswith("kbr.")
    assert [each.name for each in tmp_path.iterdir()] == ["one.ckpt"]


def test_targets_that_have_moved_are_found_and_said(capsys):
    """A config written for kbr 0.1 or 0.2.0; the one in docs/extending.md was of that kind."""
    config = composed("data=rotation", "model=iw")
    OmegaConf.set_struct(config, False)
    task = {"_target_": "kbr.core.datasets.dynamics.Rotation"}
    numbers = {"name": "ring", "n_train": 30, "n_test": 10}
    problem = {"_target_": "kbr.app.problems.Filtering", **numbers, "task": task}
    config.data = {"name": "ring", "problem": problem}
    config.model["_target_"] = "kbr.app.methods.KernelMethod"
    problem, model = build(config, None)
    assert (type(problem).__name__, type(model).__name__) == ("Filtering", "KernelMethod")
    said = capsys.readouterr().out
    assert "kbr.app.problems.Filtering is now kbr.app.tasks.task.Filtering" in said
    assert all(_found(new.removesuffix(".")) is not None for new in MOVED.values())
