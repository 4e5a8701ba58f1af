"""Tensors are made where the data are: nothing lands on the CPU because nobody said where."""

import ast
import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

import kbr
from kbr import ImportanceWeightedRule, KernelBayesFilter, MovingFilter, OriginalRule
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.run import run_filter, run_smoother
from kbr.core.filters.refined.filter import RefinedFilter

PACKAGE = Path(kbr.__file__).resolve().parent
# Datasets make data and are given none; numpy's arrays are on the CPU.
WALKED = [
    path
    for folder in ("core", "training")
    for path in sorted((PACKAGE / folder).rglob("*.py"))
    if "datasets" not in path.parts
]
FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "normal"),
    *("ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor"),
    *("tril_indices", "triu_indices", "zeros", "Tensor", "FloatTensor", "DoubleTensor"),
}
EXPLICIT = ("device", "generator")  # a draw is on its generator's device, and moved from there
DATA = Rotation().generate(n_train=60, n_test=8, seed=1000)


def calls_without_a_device(source: str) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES
        and not any(keyword.arg in EXPLICIT for keyword in node.keywords)
    ]


def test_sources_say_where_a_tensor_is_made():
    assert calls_without_a_device("torch.zeros(3)\ntorch.ones(2, device=x.device)") == [
        "torch.zeros(3)"
    ]
    found = {
        str(path.relative_to(PACKAGE)): calls_without_a_device(path.read_text()) for path in WALKED
    }
    assert len(found) > 50
    assert {path: calls for path, calls in found.items() if calls} == {}


class NoDefaultDevice(TorchFunctionMode):
    """Refuses calls from kbr that make a tensor without saying on which device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in FACTORIES and not any(key in kwargs for key in EXPLICIT):
            caller = sys._getframe(1).f_code.co_filename
            assert str(PACKAGE) not in caller, f"torch.{name} without a device in {caller}"
        return func(*args, **kwargs)


def test_the_mode_sees_a_call_out_of_the_package():
    code = compile("torch.zeros(3)", str(PACKAGE / "somewhere.py"), "exec")
    with NoDefaultDevice(), pytest.raises(AssertionError, match="without a device in"):
        exec(code, {"torch": torch})


def test_a_run_says_where_its_tensors_are_made(tmp_path):
    settings = {"scales": (0.7, 1.4), "lams": (1e-3, 1e-2), "etas": (1e-4, 1e-3)}
    x = DATA.x_test.clone()
    x[2] = torch.nan
    with NoDefaultDevice():
        filt = KernelBayesFilter(engine="low_rank", **settings)
        filt.fit(DATA.x_train, DATA.z_train)
        filt.filter(x)
        filt.smooth(x)
        belief = filt.step(filt.step(filt.init(), x[0]), x[2])
        filt.forecast(belief, steps=2)
        filt.credible_region(belief, level=0.9)
        filt.compress(20).smooth(x)
        filt.export(tmp_path / "step.pt2")
        filt.save(tmp_path / "filter.ckpt")
        KernelBayesFilter.load(tmp_path / "filter.ckpt").filter(x)


def test_refining_says_where_its_tensors_are_made():
    with NoDefaultDevice():
        made = RefinedFilter(base=KernelBayesFilter(scales=(1.0,), lams=(1e-3, 1e-2)), steps=2)
        made.fit(DATA.x_train, DATA.z_train).filter(DATA.x_test)


def test_moving_filters_say_where_their_tensors_are_made(tmp_path):
    with NoDefaultDevice():
        filt = MovingFilter(n_particles=20, outliers=0.01, velocity=True)
        filt.fit(DATA.x_train, DATA.z_train).filter(DATA.x_test)
        filt.forecast(filt.step(filt.init(), DATA.x_test[0]), steps=2)
        filt.save(tmp_path / "filter.ckpt")
        MovingFilter.load(tmp_path / "filter.ckpt").to("cpu").filter(DATA.x_test)


def moved(value: object) -> object:
    """Nested dataclasses with their tensors on the meta device, which holds shapes only."""
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: moved(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


@pytest.mark.parametrize("kind", ["low_rank", "compressed", "landmarks", "original"])
def test_steps_on_another_device_stay_there(kind, monkeypatch):
    """Filter and smoother, of any device: torch refuses to mix two of them."""
    rule = OriginalRule(lam=1e-4) if kind == "original" else ImportanceWeightedRule(lam=1e-2)
    engine = "compressed" if kind == "compressed" else "low_rank"
    filt = KernelBayesFilter(rule=rule, eta=1e-3, scales=(1.0,), engine=engine)
    filt.fit(DATA.x_train, DATA.z_train)
    filt = filt.compress(20) if kind == "landmarks" else filt
    query = filt.operators.update.observe(DATA.x_test.double()).unsqueeze(0)
    seen, lam = query.isfinite().all(-1), query.new_full((1,), 1e-2)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # no value is looked at
    operators, query, seen, lam = (moved(part) for part in (filt.operators, query, seen, lam))
    for result in (
        run_filter(operators, query, lam, seen),
        *run_smoother(operators, query, lam, lam.squeeze(0), seen),
    ):
        assert {result.mean.device.type, result.cov.device.type} == {"meta"}
        assert result.mean.shape == (1, 8, 2)
