"""One of each part from a folder of the user's: a class and a yaml, trained, evaluated, loaded."""

import csv
import json
import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest
import torch
from command_line import call

import kbr
from kbr.training.filters.learned import LearnedFilter

SMALL = ("data.n_train=60", "data.n_test=12")
MODULE = """
from dataclasses import dataclass

import torch
from torch import nn

from kbr import ImportanceWeightedRule
from kbr.core.datasets.drawing import as_generator, normal
from kbr.core.datasets.dynamics import FilteringData
from kbr.core.kernels import Kernel


@dataclass(frozen=True, kw_only=True, eq=False)
class Capped(ImportanceWeightedRule):
    cap: float = 10.0

    def effective_ratio(self, ratio):
        return super().effective_ratio(ratio).clamp_max(self.cap)


@dataclass(frozen=True, kw_only=True, eq=False)
class RationalQuadratic(Kernel):
    def profile(self, squared):
        return 1 / (1 + squared / 2)


class Flat(nn.Module):
    def __init__(self, *, shape, n_features=8, dropout=0.0):
        super().__init__()
        width = torch.Size(shape).numel()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(width, n_features))

    def forward(self, x):
        return self.layers(x)


@dataclass(frozen=True, kw_only=True)
class Walk:
    sigma: float = 0.1

    def generate(self, *, n_train, n_test=200, seed=0):
        z = normal((n_train + n_test, 1), as_generator(seed)).cumsum(0) / 10
        x = z + self.sigma * normal(z.shape, as_generator(seed + 1))
        return FilteringData(
            x_train=x[:n_train], z_train=z[:n_train], x_test=x[n_train:], z_test=z[n_train:]
        )
"""


@dataclass(frozen=True)
class Part:
    """A yaml of the user's, the settings that choose it, and what tells that it was built."""

    yaml: str
    text: str
    words: tuple[str, ...]
    target: str
    x: tuple[int, ...] = (2,)  # shape of an observation


PARTS = {
    "rule": Part(
        "model/capped",
        """
defaults: [iw, _self_]
name: capped
rule: {_target_: my_parts.Capped, cap: 5}
""",
        ("data=rotation", "model=capped"),
        "my_parts.Capped",
    ),
    "kernel": Part(
        "model/quadratic",
        """
defaults: [iw, _self_]
name: quadratic
rule: {kernel_x: {_target_: my_parts.RationalQuadratic}}
""",
        ("data=rotation", "model=quadratic"),
        "my_parts.RationalQuadratic",
    ),
    "encoder": Part(
        "encoder/flat",
        """
_target_: my_parts.Flat
_partial_: true
n_features: 4
""",
        ("data=rotation", "model=iw_nn", "encoder=flat", "model.filter.epochs=2"),
        "my_parts.Flat",
    ),
    "dataset": Part(
        "data/walk",
        """
_target_: kbr.app.tasks.task.Filtering
name: walk
n_train: 50
n_test: 20
task: {_target_: my_parts.Walk, sigma: 0.2}
""",
        ("data=walk", "model=iw"),
        "my_parts.Walk",
        x=(1,),
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "my_parts.py").write_text(MODULE)
    for part in PARTS.values():
        path = folder / "conf" / f"{part.yaml}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part.text)
    yield folder
    sys.modules.pop("my_parts", None)


@pytest.mark.parametrize("kind", sorted(PARTS))
def test_one_class_and_one_yaml_make_a_part(home, monkeypatch, kind):
    """The run has it, is evaluated to the same numbers, and its filter is saved and loaded."""
    part, folder = PARTS[kind], home / kind
    given = ["--config-dir", "conf", *part.words, *SMALL, "trainer=cpu", "logger=csv"]
    done = call(*given, f"hydra.run.dir={folder}", folder=home)
    assert done.returncode == 0, done.stderr
    assert part.target in (folder / ".hydra" / "config.yaml").read_text()
    found = json.loads((folder / "metrics.json").read_text())
    assert 0 < found["test/mse"] < 10

    done = call(f"run={folder}", "trust=[my_parts]", script="evaluate.py", folder=home)
    assert done.returncode == 0, done.stderr
    again = json.loads((folder / "evaluation" / "metrics.json").read_text())
    assert again["test/mse"] == pytest.approx(found["test/mse"], rel=1e-6)
    with (folder / "evaluation" / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 1

    monkeypatch.syspath_prepend(home)
    filt = loaded(folder / "checkpoints" / "best.ckpt", kind)
    x = torch.randn(5, *part.x, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answer = filt.filter(x).mean
    assert answer.isfinite().all()
    filt.save(home / f"{kind}.ckpt")
    torch.testing.assert_close(loaded(home / f"{kind}.ckpt", kind).filter(x).mean, answer)


def loaded(path, kind):
    """A file alone does not choose which code is run: an encoder is passed with it."""
    if kind != "encoder":
        return kbr.load_filter(path)
    return LearnedFilter.load(path, encoder=partial(import_module("my_parts").Flat, n_features=4))
