"""Saved filters come back the same, from any kind of file, and no file runs anything."""

import contextlib
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import kbr
from kbr import (
    Gaussian,
    Identity,
    ImportanceWeightedRule,
    KbrError,
    KernelBayesFilter,
    KuLSIF,
    Laplace,
    Nystroem,
    OriginalRule,
    RandomFourier,
    TransitionRatio,
    load_filter,
)
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.storing.saving import build, describe
from kbr.core.io import checkpoint

DATA = Rotation().generate(n_train=60, n_test=12, seed=0)
FIXED = {"eta": 1e-4, "scales": (1.0,)}
RULES = {
    "iw": ImportanceWeightedRule(lam=1e-2),
    "paper": ImportanceWeightedRule(lam=1e-2, normalize=False),
    "original": OriginalRule(lam=1e-6),
    "laplace": ImportanceWeightedRule(lam=1e-2, kernel_x=Laplace(bandwidth=0.7)),
    "fourier": ImportanceWeightedRule(lam=1e-2, kernel_x=RandomFourier(n_features=16, seed=3)),
    "nystroem": ImportanceWeightedRule(lam=1e-2, kernel_z=Nystroem(n_landmarks=9)),
    "identity": ImportanceWeightedRule(lam=1e-2, kernel_x=Identity(), ratio=KuLSIF(eta=1e-3)),
}


def fitted(rule=RULES["iw"], **more):
    return KernelBayesFilter(rule=rule, **{**FIXED, **more}).fit(DATA.x_train, DATA.z_train)


@pytest.mark.parametrize("name", RULES)
def test_a_loaded_filter_is_the_saved_one(name, tmp_path):
    filt = fitted(RULES[name])
    filt.save(tmp_path / "filter.ckpt")
    for loaded in (
        KernelBayesFilter.load(tmp_path / "filter.ckpt"),
        load_filter(tmp_path / "filter.ckpt"),
    ):
        assert type(loaded.rule) is type(filt.rule)
        assert type(loaded.rule.kernel_x) is type(filt.rule.kernel_x)
        then, now = filt.filter(DATA.x_test), loaded.filter(DATA.x_test)
        assert torch.equal(then.mean, now.mean)
        assert torch.equal(then.cov, now.cov)


def test_tuned_values_and_calibration_come_along(tmp_path):
    filt = KernelBayesFilter(scales=(0.7, 1.0), lams=(1e-3, 1e-2), etas=(1e-5, 1e-4))
    filt.fit(DATA.x_train, DATA.z_train)
    calibration = filt.calibration
    filt.save(tmp_path / "filter.ckpt")
    loaded = KernelBayesFilter.load(tmp_path / "filter.ckpt")
    assert loaded.scales == (0.7, 1.0)
    assert torch.equal(loaded.choice.lam, filt.choice.lam)
    assert torch.equal(loaded.choice.val_mse, filt.choice.val_mse)
    assert torch.equal(loaded.calibration.scores, calibration.scores)


def test_the_file_records_versions_and_holds_no_more_than_the_data(tmp_path):
    big = torch.randn(20_000, 2)
    KernelBayesFilter(rule=RULES["iw"], **FIXED).fit(big[:50], big[50:100]).save(tmp_path / "f")
    assert (tmp_path / "f").stat().st_size < 20_000  # a view does not drag its storage along
    content = checkpoint.read(tmp_path / "f")
    assert content["kbr"] == kbr.__version__
    assert content["version"] == checkpoint.VERSION


def test_sequences_images_and_batches_come_back(tmp_path):
    x = torch.rand(2, 30, 3, 4)
    filt = KernelBayesFilter(rule=RULES["iw"], **FIXED).fit(x, torch.rand(2, 30, 1))
    filt.save(tmp_path / "batch.ckpt")
    loaded = KernelBayesFilter.load(tmp_path / "batch.ckpt")
    assert torch.equal(loaded.filter(x[:, :5]).mean, filt.filter(x[:, :5]).mean)
    parts = [x[0, :10], x[0, 10:]]
    filt = KernelBayesFilter(rule=RULES["iw"], **FIXED).fit(parts, [torch.rand(10), torch.rand(20)])
    filt.save(tmp_path / "parts.ckpt")
    loaded = KernelBayesFilter.load(tmp_path / "parts.ckpt")
    assert torch.equal(loaded.smooth(x[1, :5]).mean, filt.smooth(x[1, :5]).mean)


def test_one_trial_of_a_run_is_picked(tmp_path):
    made = [Rotation().generate(n_train=40, n_test=9, seed=s) for s in range(3)]
    x, z = (torch.stack([getattr(m, k) for m in made]) for k in ("x_train", "z_train"))
    filt = KernelBayesFilter(rule=RULES["iw"], **FIXED).fit(x, z)
    run = tmp_path / "run"
    checkpoint.save(
        run / "checkpoints" / "best.ckpt", {"kind": "kbr.kernel", "filter": filt.state()}
    )
    every = filt.filter(torch.stack([m.x_test for m in made])).mean
    for trial in range(3):
        one = load_filter(run, trial=trial)
        mean = one.filter(made[trial].x_test).mean
        torch.testing.assert_close(mean, every[trial], rtol=0, atol=1e-6)
    with pytest.raises(KbrError, match=r"trials 0 .. 2; got trial=3"):
        load_filter(run, trial=3)


def test_code_cannot_be_saved():
    rule = ImportanceWeightedRule(ratio=TransitionRatio(model=Rotation().state_space()), lam=1e-2)
    filt = KernelBayesFilter(rule=rule, **FIXED).fit(DATA.x_train, DATA.z_train)
    with pytest.raises(KbrError, match="TransitionRatio cannot be saved"):
        filt.save("never.ckpt")
    assert not os.path.exists("never.ckpt")
    assert filt.state()["settings"] is None
    with pytest.raises(KbrError, match="does not say how"):
        KernelBayesFilter.from_state(filt.state())


def test_descriptions_name_known_classes_only():
    assert build(describe(Gaussian(bandwidth=2.0))).bandwidth == 2.0
    for bad in (
        {"type": "os.system", "settings": {"command": "true"}},
        {"type": "Gaussian"},
        {"type": "Gaussian", "settings": {"bandwith": 1.0}},
        {"type": "Gaussian", "settings": {"bandwidth": -1.0}},
        {"type": ["Gaussian"], "settings": {}},
    ):
        with pytest.raises(KbrError):
            build(bad)


class Bomb:
    """Unpickled, it would write a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def test_a_pickle_that_would_run_does_not(tmp_path):
    target = tmp_path / "ran"
    bomb = {"kind": "kbr.kernel_filter", "version": 1, "filter": Bomb(target)}
    torch.save(bomb, tmp_path / "bomb.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(bomb))
    for name in ("bomb.ckpt", "plain.ckpt"):
        for load in (load_filter, KernelBayesFilter.load):
            with pytest.raises(KbrError):
                load(tmp_path / name)
    assert not target.exists()
    torch.load(tmp_path / "bomb.ckpt", weights_only=False)  # the bomb is a real one
    assert target.exists()


def test_truncated_foreign_and_missing_files_are_named(tmp_path):
    fitted().save(tmp_path / "good.ckpt")
    whole = (tmp_path / "good.ckpt").read_bytes()
    bad = tmp_path / "bad.ckpt"
    for content in (whole[: len(whole) // 2], b"", b"not a checkpoint", whole[100:]):
        bad.write_bytes(content)
        with pytest.raises(KbrError, match=r"bad\.ckpt"):
            load_filter(bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("data.pkl", b"nothing")
    with pytest.raises(KbrError):
        load_filter(bad)
    checkpoint.save(bad, {"kind": "kbr.belief"})
    with pytest.raises(KbrError, match=r"kbr\.belief, which is no filter"):
        load_filter(bad)
    with pytest.raises(KbrError, match=r"expected kbr\.kernel_filter"):
        KernelBayesFilter.load(bad)
    with pytest.raises(KbrError, match="no checkpoint at"):
        load_filter(tmp_path / "absent.ckpt")


CHANGES = [
    ("x", torch.full((60, 2), torch.nan)),
    ("x", torch.zeros(3, 2)),
    ("x", "text"),
    ("z", None),
    ("lengths", [59]),
    ("lengths", "sixty"),
    ("shape", [3]),
    ("shape", [-2]),
    ("choice", {}),
    ("edges", 4),
    ("settings", {"rule": 3}),
    ("settings", "none"),
    ("landmarks", {"mass": torch.ones(2)}),
    ("calibration", {"blend": torch.ones(())}),
    ("compression", {"n_train": 3}),
]


@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_a_file_whose_parts_do_not_fit_is_refused(key, value, tmp_path):
    state = {**fitted().state(), key: value}
    checkpoint.save(tmp_path / "f.ckpt", {"kind": "kbr.kernel_filter", "filter": state})
    with pytest.raises(KbrError):
        load_filter(tmp_path / "f.ckpt")


def test_a_file_without_its_filter_is_refused(tmp_path):
    checkpoint.save(tmp_path / "f.ckpt", {"kind": "kbr.kernel_filter", "fi1ter": {}})
    with pytest.raises(KbrError, match="holds no filter"):
        load_filter(tmp_path / "f.ckpt")


def test_a_changed_number_is_noticed(tmp_path):
    """One byte of a tensor: the file would load, with another number in it."""
    path = tmp_path / "f.ckpt"
    filt = fitted()
    filt.save(path)
    content = path.read_bytes()
    number = filt.state()["z"].flatten()[3].numpy().tobytes()
    at = content.index(number)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(KbrError, match=r"damaged.*check sum"):
        load_filter(path)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
@example(4615331)
def test_flipped_bytes_load_or_are_refused(tmp_path, seed):
    """Damage raises KbrError, or does no harm at all."""
    path = tmp_path / "good.ckpt"
    if not path.exists():
        fitted().save(path)
    rng = np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    for at in rng.integers(0, len(content), 5):
        content[at] = int(rng.integers(0, 256))
    (tmp_path / "bad.ckpt").write_bytes(bytes(content))
    with contextlib.suppress(KbrError):
        load_filter(tmp_path / "bad.ckpt")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    n=st.integers(2, 12),
    shape=st.sampled_from([(), (1,), (3,), (2, 2)]),
    dz=st.integers(1, 3),
    scale=st.sampled_from([1e-150, 1e-30, 1e-3, 1.0, 1e6, 1e30, 1e150]),
    odd=st.sampled_from([None, np.nan, np.inf, -np.inf]),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
def test_any_finite_data_fits_saves_loads_and_steps(
    tmp_path, n, shape, dz, scale, odd, dtype, seed
):
    """Only KbrErrors, and no NaN from finite training data whatever the observation."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        x = (scale * rng.normal(size=(n, *shape))).astype(dtype)
        z = (scale * rng.normal(size=(n, dz))).astype(dtype)
    try:
        filt = KernelBayesFilter(rule=RULES["iw"], **FIXED).fit(x, z)
        filt.save(tmp_path / "any.ckpt")
        loaded = load_filter(tmp_path / "any.ckpt")
    except KbrError:
        return
    query = np.array(x[0])
    if odd is not None:
        query = np.full_like(query, odd)
    belief = loaded.step(loaded.init(), query)
    assert belief.mean.isfinite().all()
    assert belief.cov.isfinite().all()
    assert torch.equal(belief.mean, filt.step(filt.init(), query).mean)
