"""Compressed and exported filters: moments kept, accuracy kept, nothing of size n left."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from kbr import Identity, ImportanceWeightedRule, KbrError, KernelBayesFilter, OriginalRule
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.filters.kernel.engines.recombination import recombine
from kbr.core.filters.result import mean_squared_error

DATA = Rotation().generate(n_train=600, n_test=200, seed=0)
RULES = {
    "iw": ImportanceWeightedRule(lam=1e-2),
    "paper": ImportanceWeightedRule(lam=1e-2, normalize=False),
    "original": OriginalRule(lam=1e-7),
}


@cache
def fitted(rule="iw", engine="auto"):
    made = KernelBayesFilter(rule=RULES[rule], eta=1e-5, scales=(0.7,), engine=engine)
    return made.fit(DATA.x_train, DATA.z_train)


@cache
def compressed():
    return fitted().compress(100)


def test_recombination_keeps_moments_with_few_positive_masses():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(700, 12, dtype=torch.float64, generator=generator)
    moments = torch.cat([torch.ones(700, 1, dtype=torch.float64), points], 1)
    mass = torch.rand(700, dtype=torch.float64, generator=generator)
    kept, masses = recombine(moments, mass)
    assert len(kept) == len(set(kept.tolist())) <= 13
    assert (masses > 0).all()
    torch.testing.assert_close(masses @ moments[kept], mass @ moments, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("rule", "landmarks", "loss"), [("iw", 150, 0.02), ("paper", 150, 0.02), ("original", 300, 0.1)]
)
def test_few_of_the_pairs_filter_as_well(rule, landmarks, loss):
    """The original rule has ratios of either sign: its error goes some per cent up or down."""
    small = fitted(rule).compress(landmarks, x=DATA.x_test, z=DATA.z_test)
    cost = small.compression
    assert cost.n_train == 600
    assert cost.n_landmarks == small.operators.n <= landmarks
    assert cost.loss < loss
    direct = mean_squared_error(small.filter(DATA.x_test).mean, DATA.z_test.double())
    assert cost.mse_after == pytest.approx(float(direct))


def test_it_beats_a_filter_of_the_same_number_of_pairs():
    data = Oscillatory().generate(n_train=900, n_test=300, seed=1)
    settings = {"rule": RULES["iw"], "eta": 1e-5, "scales": (0.7,)}
    full = KernelBayesFilter(**settings).fit(data.x_train, data.z_train)
    small = full.compress(120, x=data.x_test, z=data.z_test)
    few = KernelBayesFilter(**settings).fit(data.x_train[:120], data.z_train[:120])
    naive = mean_squared_error(few.filter(data.x_test).mean, data.z_test.double())
    assert small.compression.mse_after < 0.97 * float(naive)


def test_nothing_of_the_size_of_the_training_set_is_left():
    small = compressed()
    held = [value for value in vars(small.operators).values() if isinstance(value, torch.Tensor)]
    assert max(max(value.shape) for value in held) <= 100
    assert small.state()["x"].shape[0] <= 100


def test_it_saves_smaller_and_loads_the_same(tmp_path):
    filt, small = fitted(), compressed()
    filt.save(tmp_path / "full.ckpt")
    small.save(tmp_path / "small.ckpt")
    loaded = KernelBayesFilter.load(tmp_path / "small.ckpt")
    assert (tmp_path / "small.ckpt").stat().st_size < (tmp_path / "full.ckpt").stat().st_size
    assert torch.equal(loaded.filter(DATA.x_test).mean, small.filter(DATA.x_test).mean)
    assert vars(loaded.compression) == vars(small.compression)
    assert torch.equal(loaded.calibration.scores, filt.calibration.scores)


def test_it_predicts_smooths_and_forecasts():
    filt = fitted()
    small = filt.compress(150)
    x = DATA.x_test.clone()
    x[5:8] = torch.nan
    x[20] = 1e6
    then, now = filt.filter(x), small.filter(x)
    assert torch.equal(then.evidence, now.evidence)
    torch.testing.assert_close(now.mean, then.mean, rtol=0, atol=0.15)
    truth = DATA.z_test.double()
    smooth = [float(mean_squared_error(f.smooth(x).mean, truth)) for f in (filt, small)]
    assert smooth[1] < 1.05 * smooth[0]
    belief = small.step(small.init(), x[0])
    assert small.forecast(belief, steps=3).mean.isfinite().all()


def test_images_and_learned_features_compress():
    generator = torch.Generator().manual_seed(0)
    z = DATA.z_train[:200].double()
    mix = torch.randn(2, 12, dtype=torch.float64, generator=generator)
    x = torch.tanh(z @ mix).reshape(200, 3, 4)
    for kernel in (Identity(), None):
        more = {} if kernel is None else {"kernel_x": kernel}
        rule = ImportanceWeightedRule(lam=1e-3, **more)
        filt = KernelBayesFilter(rule=rule, eta=1e-4, scales=(1.0,)).fit(x, z)
        assert filt.compress(80).compression.loss < 0.1


@pytest.mark.parametrize("bad", [0, 1, -3])
def test_too_few_landmarks_are_refused(bad):
    with pytest.raises(KbrError, match="n_landmarks"):
        fitted().compress(bad)


def test_more_landmarks_than_pairs_keep_all_that_matter():
    made = KernelBayesFilter(rule=RULES["iw"], eta=1e-4, scales=(1.0,))
    filt = made.fit(DATA.x_train[:30], DATA.z_train[:30])
    small = filt.compress(500)
    assert small.operators.n <= 30
    torch.testing.assert_close(
        small.filter(DATA.x_test[:50]).mean, filt.filter(DATA.x_test[:50]).mean, rtol=0, atol=0.2
    )


@pytest.mark.parametrize("share", [0.01, 1.0, 100.0])
def test_all_pairs_kept_are_the_filter_itself_whatever_the_ridges(share, tmp_path):
    """Forwards and backwards, for a transition's ridge below, at and above the ratio's."""
    data = Rotation().generate(n_train=150, n_test=40, seed=1001)
    settings = {"eta": 1e-3, "lam_transition": 1e-3 * share, "scales": (1.0,)}
    filt = KernelBayesFilter(rule=RULES["iw"], **settings).fit(data.x_train, data.z_train)
    small = filt.compress(2000)
    small.save(tmp_path / "small.ckpt")
    assert small.operators.n == 150
    for made in (small, KernelBayesFilter.load(tmp_path / "small.ckpt")):
        for run in ("filter", "smooth"):
            off = getattr(made, run)(data.x_test).mean - getattr(filt, run)(data.x_test).mean
            assert off.norm(dim=-1).mean() < 3e-3  # 0.02 and more with one ridge for both


def test_batches_and_compressed_filters_are_refused():
    with pytest.raises(KbrError, match="one data set"):
        compressed().compress(20)


@pytest.mark.parametrize(
    ("filt", "rounding"),
    [
        (lambda: fitted("iw", "low_rank"), 1e-10),
        (lambda: fitted("iw", "compressed"), 1e-10),
        (lambda: fitted("original", "low_rank"), 1e-7),  # its system is squared
        (compressed, 1e-10),
    ],
    ids=["low_rank", "compressed", "original", "landmarks"],
)
def test_the_exported_step_is_the_filter(filt, rounding, tmp_path):
    """Missing and hopeless observations too, from a state of zeros, without kbr."""
    made = filt()
    x = DATA.x_test[:15].double().clone()
    x[[0, 3]] = torch.nan
    x[10] = 1e6
    made.export(tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    batch = made.filter(x)
    state = torch.zeros(made.operators.phi.shape[-1] + 9, dtype=torch.float64)
    for t in range(15):
        state, mean, cov, evidence = step(state, x[t])
        torch.testing.assert_close(mean, batch.mean[t], rtol=0, atol=rounding)
        torch.testing.assert_close(cov, batch.cov[t], rtol=0, atol=rounding)
        assert bool(evidence) == bool(batch.evidence[t])


def test_a_filter_of_tables_is_compressed_and_exported_in_silence(tmp_path):
    """Some of its constants are views, which the writer of programs would warn of."""
    x, z = (
        pd.DataFrame(part[:60].numpy(), columns=["a", "b"]) for part in (DATA.x_train, DATA.z_train)
    )
    filt = KernelBayesFilter(scales=(0.5,), lams=(0.1,)).fit(x, z)
    small = filt.compress(20, x=x, z=z)
    turned = filt.compress(20, x=x[["b", "a"]], z=z[["b", "a"]])  # found by name
    assert turned.compression.loss == pytest.approx(small.compression.loss)
    small.export(tmp_path / "step.pt2")
    assert (tmp_path / "step.pt2").is_file()


def test_what_cannot_be_exported_says_so(tmp_path):
    with pytest.raises(KbrError, match="active_set engine"):
        fitted("iw", "active_set").export(tmp_path / "step.pt2")
    x, z = np.random.default_rng(0).normal(size=(2, 2, 20, 1))
    batch = KernelBayesFilter(rule=RULES["iw"], eta=1e-3, scales=(1.0,), engine="low_rank")
    with pytest.raises(KbrError, match="one data set"):
        batch.fit(x, z).export(tmp_path / "step.pt2")
    assert not (tmp_path / "step.pt2").exists()
