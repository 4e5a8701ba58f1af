"""The kernel Bayes filter as users meet it: streams, batches, missing rows, tuning, saving."""

import numpy as np
import pytest
import torch

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter, OriginalRule
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.filters.kernel import building
from kbr.core.filters.kernel.choosing.validation import validation_start

SMALL_GRID = {"scales": (0.7, 1.0, 1.4), "lams": (1e-3, 1e-2)}
FIXED = {"scales": (1.0,), "eta": 1e-5}


@pytest.fixture(scope="module")
def data():
    return Rotation().generate(n_train=200, n_test=60, seed=0)


@pytest.fixture(scope="module")
def filt(data):
    """Tuned on a small grid."""
    return KernelBayesFilter(**SMALL_GRID).fit(data.x_train, data.z_train)


def fixed(rule=None, **options):
    rule = ImportanceWeightedRule(lam=1e-2) if rule is None else rule
    return KernelBayesFilter(rule=rule, **FIXED, **options)


def test_beats_the_raw_observation(filt, data):
    out = filt.filter(data.x_test)
    error = (out.mean - data.z_test).square().sum(-1).mean()
    assert error < 0.9 * (data.x_test - data.z_test).square().sum(-1).mean()
    assert out.mean.shape == (60, 2)
    assert out.cov.shape == (60, 2, 2)
    assert out.evidence.all()
    assert ((out.effective_sample_size > 1) & (out.effective_sample_size < 200)).all()


@pytest.mark.parametrize(
    "rule",
    [
        ImportanceWeightedRule(lam=1e-2),
        ImportanceWeightedRule(lam=1e-2, normalize=False),
        OriginalRule(lam=1e-4),
    ],
    ids=["iw", "iw_paper", "original"],
)
def test_streaming_equals_filtering(data, rule):
    """One observation at a time, missing ones included, gives the same beliefs."""
    filt = fixed(rule).fit(data.x_train, data.z_train)
    x = data.x_test[:25].clone()
    x[[0, 9, 10]] = torch.nan
    out, belief = filt.filter(x), filt.init()
    for t, x_t in enumerate(x):
        belief = filt.step(belief, x_t)
        torch.testing.assert_close(belief.mean, out.mean[t], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(belief.cov, out.cov[t], rtol=1e-8, atol=1e-8)
        assert bool(belief.evidence) == bool(out.evidence[t])
        size = belief.effective_sample_size
        torch.testing.assert_close(size, out.effective_sample_size[t], rtol=1e-8, atol=0)
    assert belief.steps == 25


def test_belief_is_an_embedding(filt, data):
    belief = filt.step(filt.init(), data.x_test[0])
    torch.testing.assert_close(belief.weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(belief.embedding.expect(lambda z: z), belief.mean)
    assert belief.embedding.sample(5).shape == (5, 2)


def test_missing_row_is_the_forecast(filt, data):
    """A NaN anywhere in a row makes it missing; the belief is then the prediction."""
    x = data.x_test.clone()
    x[20, 1] = torch.nan
    x[21:23] = torch.nan
    out, belief = filt.filter(x), filt.init()
    for x_t in x[:20]:
        belief = filt.step(belief, x_t)
    for steps in (1, 2, 3):
        ahead = filt.forecast(belief, steps)
        torch.testing.assert_close(ahead.mean, out.mean[19 + steps], rtol=1e-10, atol=1e-10)
        assert not out.evidence[19 + steps]
        assert not ahead.evidence
    assert out.evidence.sum() == 57
    gap = (out.mean - filt.filter(data.x_test).mean).norm(dim=-1)
    assert gap[21] > 0.05
    assert gap[30:].max() < 0.02


def test_forecast_loses_the_phase_slowly(filt, data):
    """Forecasts stay near the truth for a few steps; far ahead they are the stationary mean."""
    belief = filt.init()
    for x_t in data.x_test[:30]:
        belief = filt.step(belief, x_t)
    near = (filt.forecast(belief, 2).mean - data.z_test[31]).norm()
    far = filt.forecast(belief, 200).mean
    assert near < 0.8
    assert far.norm() < 0.3
    with pytest.raises(KbrError, match="at least 1"):
        filt.forecast(belief, 0)


def test_forecast_before_any_observation_is_the_start(filt):
    torch.testing.assert_close(filt.forecast(filt.init()).mean, filt.init().mean)


def test_sequences_together_equal_a_loop(filt):
    x, _ = Rotation().sample(30, torch.Generator().manual_seed(5), (2, 3))
    x[0, 1, 4:7] = torch.nan
    out = filt.filter(x)
    assert out.mean.shape == (2, 3, 30, 2)
    assert out.cov.shape == (2, 3, 30, 2, 2)
    assert out.evidence.shape == (2, 3, 30)
    for i in range(2):
        for j in range(3):
            one = filt.filter(x[i, j])
            torch.testing.assert_close(out.mean[i, j], one.mean, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(out.evidence[i, j], one.evidence)


@pytest.mark.parametrize("engine", ["auto", "low_rank", "compressed", "active_set"])
def test_data_sets_together_equal_a_loop(engine):
    """Data sets in one batch keep their own bandwidths, ridges and answers."""
    data = Oscillatory().generate(n_train=90, n_test=30, seed=1, batch=(3,))
    together = KernelBayesFilter(**SMALL_GRID, engine=engine).fit(data.x_train, data.z_train)
    mean, smooth = together.filter(data.x_test).mean, together.smooth(data.x_test).mean
    assert together.choice.lam.shape == (3,)
    belief = together.step(together.init(), data.x_test[:, 0])
    torch.testing.assert_close(belief.mean, mean[:, 0], rtol=1e-10, atol=1e-10)
    for b in range(3):
        alone = KernelBayesFilter(**SMALL_GRID, engine=engine)
        alone.fit(data.x_train[b], data.z_train[b])
        for name in ("scale_x", "scale_z", "lam", "eta", "lam_transition"):
            torch.testing.assert_close(
                getattr(together.choice, name)[b], getattr(alone.choice, name)
            )
        torch.testing.assert_close(alone.filter(data.x_test[b]).mean, mean[b], rtol=0, atol=1e-5)
        torch.testing.assert_close(alone.smooth(data.x_test[b]).mean, smooth[b], rtol=0, atol=1e-5)


def test_restore_is_the_same_filter(filt, data):
    again = KernelBayesFilter(**SMALL_GRID).restore(filt.state())
    torch.testing.assert_close(again.filter(data.x_test).mean, filt.filter(data.x_test).mean)
    assert repr(again) == repr(filt)
    assert again.choice.edges == filt.choice.edges


def test_state_is_plain(filt, tmp_path):
    """It survives a checkpoint that loads nothing but tensors and plain containers."""
    torch.save(filt.state(), tmp_path / "filter.pt")
    loaded = torch.load(tmp_path / "filter.pt", weights_only=True)
    assert repr(KernelBayesFilter(**SMALL_GRID).restore(loaded)) == repr(filt)


def test_numpy_and_float32_are_welcome(filt, data):
    again = KernelBayesFilter(**SMALL_GRID).fit(data.x_train.numpy(), data.z_train.numpy())
    torch.testing.assert_close(
        again.filter(data.x_test.numpy()).mean, filt.filter(data.x_test).mean
    )
    single = fixed().fit(data.x_train.float(), data.z_train.float())
    double = fixed().fit(data.x_train, data.z_train)
    gap = single.filter(data.x_test.float()).mean - double.filter(data.x_test).mean
    assert gap.abs().max() < 1e-3


def test_observations_of_any_shape(data):
    """Images are flattened; a one-dimensional latent needs no extra axis."""
    x, z = data.x_train.reshape(200, 1, 2), data.z_train[:, 0]
    out = fixed().fit(x, z).filter(data.x_test.reshape(60, 1, 2))
    assert out.mean.shape == (60, 1)


def test_tuning_chooses_the_lowest_validation_error(data):
    """The best cell of the grid is chosen; its own fit finds the same eta by leave-one-out."""
    units, x, z = {"standardize": False, "correction": None}, data.x_train, data.z_train
    filt = KernelBayesFilter(**SMALL_GRID, **units).fit(x, z)
    cut = validation_start(200)
    starts = (0, round(cut / 2), cut)  # three blocks of a length, each filtered by the others
    errors, last = {}, {}
    for scale in SMALL_GRID["scales"]:
        for lam in SMALL_GRID["lams"]:
            rule = ImportanceWeightedRule(lam=lam)
            product = 1.0
            for start in starts:
                stop = start + 200 - cut
                pieces = [part for part in (slice(0, start), slice(stop, 200)) if len(x[part])]
                one = KernelBayesFilter(rule=rule, scales=(scale,), **units)
                one.fit([x[part] for part in pieces], [z[part] for part in pieces])
                missed = one.filter(x[start:stop]).mean - z[start:stop]
                last[scale, lam] = float(missed.square().sum(-1).mean())
                product *= last[scale, lam]
            errors[scale, lam] = product
    best = min(errors, key=errors.get)
    choice = filt.choice
    assert (float(choice.scale_z), float(choice.lam)) == best
    assert float(choice.val_mse) == pytest.approx(last[best], rel=1e-3)
    assert float(choice.scale_x) == pytest.approx(2 * best[0])
    assert float(choice.lam_transition) == float(choice.eta)


def test_covariances_are_measured_on_steps_that_the_filter_did_not_see():
    """A filter that fits its training steps perfectly is as unsure as its errors elsewhere."""
    data = Rotation().generate(n_train=200, n_test=200, seed=1000)
    rule = ImportanceWeightedRule(lam=1e-6)
    filt = KernelBayesFilter(rule=rule, scales=(0.1,), eta=1e-3).fit(data.x_train, data.z_train)
    out, seen = filt.filter(data.x_test), filt.filter(data.x_train)
    error = float((out.mean - data.z_test).square().sum(-1).mean())
    by_heart = float((seen.mean - data.z_train).square().sum(-1).mean())
    assert by_heart < 0.2 * error
    assert float(out.cov.diagonal(dim1=-2, dim2=-1).sum(-1).mean()) > 0.5 * error


def test_tuning_sees_training_data_only(filt, data):
    """Filtering changes nothing in the fitted filter."""
    before = filt.state()
    filt.filter(100 + data.x_test)
    filt.smooth(data.x_test)
    after = filt.state()
    assert before["choice"] == after["choice"]


def test_progress_sees_every_bandwidth(data):
    seen = []
    grid = KernelBayesFilter(**SMALL_GRID)
    grid.fit(
        data.x_train, data.z_train, progress=lambda rows: (seen.append(r.scale) or r for r in rows)
    )
    assert seen == list(SMALL_GRID["scales"])


@pytest.mark.parametrize(("n", "start"), [(6, 4), (300, 200), (599, 400), (600, 400), (900, 700)])
def test_validation_block(n, start):
    """The last 200 steps; the last third where there are fewer than 600."""
    assert validation_start(n) == start


def test_several_sequences_of_different_lengths(data):
    """Lists of sequences are tuned and filtered, also where validation starts inside one."""
    parts = [slice(0, 70), slice(70, 75), slice(75, 160), slice(160, 200)]
    x, z = ([whole[part] for part in parts] for whole in (data.x_train, data.z_train))
    out = KernelBayesFilter(**SMALL_GRID).fit(x, z).filter(data.x_test)
    assert (out.mean - data.z_test).square().sum(-1).mean() < 0.09


def test_smoothing_keeps_shapes_and_flags(filt, data):
    x = data.x_test.clone()
    x[3] = torch.nan
    out = filt.smooth(torch.stack([x, data.x_test]))
    assert out.mean.shape == (2, 60, 2)
    assert out.cov.shape == (2, 60, 2, 2)
    assert out.evidence.sum() == 119
    assert out.mean.isfinite().all()
    torch.testing.assert_close(filt.smooth(x).mean, out.mean[0], rtol=1e-7, atol=1e-8)


def test_repr_says_what_is_fitted(filt):
    assert repr(KernelBayesFilter()).endswith("not fitted)")
    assert "n=200" in repr(filt)
    assert filt.operators.update.name in repr(filt)


def test_two_fits_are_one(filt, data):
    """Nothing random: a second fit gives the same numbers to the last digit."""
    again = KernelBayesFilter(**SMALL_GRID).fit(data.x_train, data.z_train)
    assert np.array_equal(again.filter(data.x_test).mean, filt.filter(data.x_test).mean)


@pytest.mark.parametrize("rule", [ImportanceWeightedRule(), OriginalRule()])
def test_leading_features_choose_as_well_as_the_whole_kernel(rule, monkeypatch):
    """Noise in many coordinates gives the kernel full rank; tuning then works on its best part."""
    generator = torch.Generator().manual_seed(0)
    data = Oscillatory().generate(n_train=240, n_test=1, seed=0)
    x = torch.cat([data.x_train, 0.3 * torch.randn(240, 40, generator=generator)], -1)
    chosen = []
    for rank in (64, 1000):
        monkeypatch.setattr(building, "ROUGH_RANK", rank)
        made = KernelBayesFilter(rule=rule, standardize=False)  # else the noise is all there is
        chosen.append(made.fit(x, data.z_train).choice)
    torch.testing.assert_close(chosen[0].val_mse, chosen[1].val_mse, rtol=0.05, atol=0)
