"""One of each part from a folder of the user's: a class and a yaml, trained, evaluated, loaded."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest
import torch
from command_line import call

import kbr
from kbr.core.datasets.dynamics import Rotation
from kbr.training.filters.learned import LearnedFilter

SMALL = ("data.n_train=60", "data.n_test=12")
MODULE = """
from dataclasses import dataclass

import torch
from torch import nn

from kbr import ImportanceWeightedRule, KuLSIF
from kbr.core.datasets.drawing import as_generator, normal
from kbr.core.datasets.dynamics import FilteringData
from kbr.core.features import Features
from kbr.core.filters.kernel.engine import Engine
from kbr.core.filters.kernel.operators import FilterRatio
from kbr.core.kernels import Kernel
from kbr.core.linalg import ridge_cholesky


@dataclass(frozen=True, kw_only=True, eq=False)
class Capped(ImportanceWeightedRule):
    cap: float = 10.0

    def effective_ratio(self, ratio):
        return super().effective_ratio(ratio).clamp_max(self.cap)


@dataclass(frozen=True, kw_only=True, eq=False)
class RationalQuadratic(Kernel):
    def profile(self, squared):
        return 1 / (1 + squared / 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tempered(FilterRatio):
    eta: float = 0.1
    power: float = 0.5

    def __call__(self, features, points, prior):
        return KuLSIF(eta=self.eta)(features, points, prior).clamp_min(0) ** self.power

    def for_filter(self, phi, eta):
        factor = ridge_cholesky(phi.mT @ phi / phi.shape[-2], ridge=eta)

        def ratio(m, weights):
            return (torch.cholesky_solve(m.mT, factor).mT @ phi.mT).clamp_min(0) ** self.power

        return ratio


@dataclass(frozen=True, eq=False)
class GramUpdate:
    features: Features
    name: str = "whole_gram"

    def observe(self, x):
        return self.features(x) @ self.features.train.mT

    def weights(self, rule, ratio, query, lam):
        psi = self.features.train
        gram, n = (psi @ psi.mT).unsqueeze(-3), psi.shape[-2]
        return rule.gram_weights(gram, query.unsqueeze(-1), ratio, n, lam).squeeze(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeGram(Engine):
    def build(self, features, x, *, lam):
        return GramUpdate(features.fit(x))


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
    "ratio": Part(
        "model/tempered",
        """
defaults: [iw, _self_]
name: tempered
rule: {ratio: {_target_: my_parts.Tempered, eta: 0.01, power: 0.75}}
""",
        ("data=rotation", "model=tempered"),
        "my_parts.Tempered",
    ),
    "engine": Part(
        "model/gram",
        """
defaults: [iw, _self_]
name: gram
engine: {_target_: my_parts.WholeGram}
""",
        ("data=rotation", "model=gram"),
        "my_parts.WholeGram",
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


FRESH = """
import kbr
for trust in ((), ("no.such.resolver",), ("my_broken",), ("my_parts",)):
    try:
        print(kbr.load_filter("whole.ckpt", trust=trust))
    except kbr.KbrError as error:
        print(error)
"""


def test_another_process_knows_the_parts_of_modules_that_it_trusts(home, monkeypatch):
    """A file names its parts; which modules are imported is the caller's word alone."""
    monkeypatch.syspath_prepend(home)
    mine = import_module("my_parts")
    data = Rotation().generate(n_train=60, n_test=5, seed=0)
    rule = mine.Capped(lam=1e-2, ratio=mine.Tempered(), kernel_x=mine.RationalQuadratic())
    filt = kbr.KernelBayesFilter(rule=rule, scales=(1.0,), engine=mine.WholeGram())
    filt.fit(data.x_train, data.z_train).save(home / "whole.ckpt")
    (home / "my_broken.py").write_text("import a_package_that_is_not_there")
    environ = {**os.environ, "PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=home, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    unknown, also_unknown, broken, known = done.stdout.splitlines()
    assert unknown == also_unknown
    assert "the file names 'Capped', which this kbr does not know" in unknown
    assert broken == (
        "trust=my_broken cannot be imported: No module named 'a_package_that_is_not_there'"
    )
    assert known == repr(filt)
