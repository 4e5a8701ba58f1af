"""Error bars by the time since the last evidence: gaps, forecasts, smoothing, adapting, files."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter, OriginalRule, load_filter
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.io import checkpoint
from kbr.core.uncertainty.adaptive import stretches
from kbr.core.uncertainty.calibration import NEVER, WAKING, bridges_of, horizons_of, next_horizon
from kbr.training.encoders import MLP
from kbr.training.filters.gru import GRUFilter
from kbr.training.filters.learned import LearnedFilter
from kbr.training.filters.lstm import LSTMFilter

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:.*does not have many workers",
)
SETTINGS = {"rule": ImportanceWeightedRule(lam=1e-2), "eta": 1e-4, "scales": (1.0,)}
GAP = slice(30, 50)


@pytest.fixture(scope="module")
def data():
    return Rotation().generate(n_train=300, n_test=90, seed=0)


@pytest.fixture(scope="module")
def filt(data):
    return KernelBayesFilter(**SETTINGS).fit(data.x_train, data.z_train)


def with_gap(x):
    x = x.clone()
    x[..., GAP, :] = torch.nan
    return x


def trace(cov):
    return cov.diagonal(dim1=-2, dim2=-1).sum(-1)


def test_regions_grow_in_a_gap_and_shrink_after_it(data, filt):
    out = filt.filter(with_gap(data.x_test))
    size = trace(out.cov)
    assert out.since[GAP].tolist() == list(range(1, 21))
    assert out.since[50:54].tolist() == [-3, -2, -1, 0]
    assert size[35] > 2 * size[20:30].mean()
    assert size[49] > 5 * size[20:30].mean()
    assert size[55:].mean() < 1.5 * size[20:30].mean()
    assert not torch.equal(out.cov, out.raw_cov)


@pytest.mark.parametrize("run", ["filter", "smooth"])
def test_regions_hold_their_share_in_gaps(run):
    """Two data sets with many gaps. Limits are wide; the benchmark measures it over many seeds."""
    inside = []
    for seed in (1000, 1001):
        made = Oscillatory().generate(n_train=300, n_test=30 * 80, seed=seed)
        filt = KernelBayesFilter(**SETTINGS).fit(made.x_train, made.z_train)
        x, z = (t.reshape(30, 80, 2).double() for t in (made.x_test, made.z_test))
        inside.append(filt.credible_region(getattr(filt, run)(with_gap(x))).contains(z).double())
    share = torch.stack(inside)
    assert 0.84 <= float(share[..., 10:30].mean()) <= 0.96
    assert 0.8 <= float(share[..., GAP].mean()) <= 0.97
    assert float(share[..., GAP].mean((0, 1)).min()) >= 0.65


def test_a_block_in_new_places_does_not_widen_regions_elsewhere(data):
    """The first hundred steps are far from all others: held out, they are lost."""
    x, z = data.x_train.clone(), data.z_train.clone()
    x[:100], z[:100] = x[:100] + 6, z[:100] + 6
    filt = KernelBayesFilter(**{**SETTINGS, "scales": (0.2,)}).fit(x, z)
    made, out = filt.calibration, filt.filter(data.x_test)
    assert trace(out.cov).mean() < 0.3 * made.rms[WAKING].square().sum()
    assert filt.credible_region(out).contains(data.z_test.double()).double().mean() > 0.85
    nowhere = filt.units.z.apply(out.mean - 6)  # where nothing was seen, they are wider
    assert trace(made.cov(out.raw_cov, out.since, nowhere)).mean() > 5 * trace(out.cov).mean()


def test_a_forecast_is_a_gap(data, filt):
    """A stream, a batch and a forecast have the same moments and the same regions."""
    out, belief = filt.filter(with_gap(data.x_test)), filt.init()
    for row in data.x_test[:30]:
        belief = filt.step(belief, row)
    for steps in (1, 7, 20):
        ahead = filt.forecast(belief, steps)
        assert int(ahead.since) == steps
        torch.testing.assert_close(ahead.cov, out.cov[29 + steps], rtol=1e-7, atol=1e-9)
        region, other = filt.credible_region(ahead), filt.credible_region(out)
        torch.testing.assert_close(region.radius2, other.radius2[29 + steps])
        torch.testing.assert_close(ahead.raw_cov, out.raw_cov[29 + steps], rtol=1e-7, atol=1e-9)


def test_horizons_of_a_stream_are_those_of_a_sequence():
    seen = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1], dtype=torch.bool)
    whole, now = horizons_of(seen), torch.tensor(NEVER)
    for t, there in enumerate(seen):
        now = next_horizon(now, there)
        assert int(now) == int(whole[t])
    assert torch.equal(horizons_of(torch.stack([seen, ~seen]))[0], whole)
    assert whole[2:9].tolist() == [-WAKING, -2, -1, 0, 1, 2, 0]
    assert whole[14:].tolist() == [-WAKING, 1, 0, 0, 0]
    assert bridges_of(torch.tensor([True, False, False, False, True])).tolist() == [
        0.0,
        0.75,
        1.0,
        0.75,
        0.0,
    ]


def test_covariances_do_not_depend_on_where_the_origin_is(data):
    """Latents moved five million away have the covariances of the same latents near 0."""
    far = KernelBayesFilter(**SETTINGS).fit(data.x_train, data.z_train.double() + 5e6)
    near = KernelBayesFilter(**SETTINGS).fit(data.x_train, data.z_train.double())
    out, belief = far.filter(data.x_test), far.init()
    for row in data.x_test[:20]:
        belief = far.step(belief, row)
    for name in ("cov", "raw_cov"):
        # The shifted numbers themselves are rounded to 1e-9: no method gives more digits.
        there, here = getattr(out, name), getattr(near.filter(data.x_test), name)
        torch.testing.assert_close(there, here, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(getattr(belief, name), there[19], rtol=1e-9, atol=1e-9)


def test_far_observations_are_no_evidence_and_usual_ones_are():
    """In sixteen directions at 4, 6 and 10 data radii, but not at steps like those of training."""
    far, usual = [], []
    for seed in (1000, 1001):
        made = Rotation().generate(n_train=300, n_test=300, seed=seed)
        filt = KernelBayesFilter(**SETTINGS).fit(made.x_train, made.z_train)
        usual.append(filt.filter(made.x_test).evidence)
        centre = made.x_train.mean(0)
        radius = (made.x_train - centre).square().sum(-1).mean().sqrt()
        turn = torch.arange(16) * math.tau / 16
        for distance in (4, 6, 10):
            there = centre + distance * radius * torch.stack([turn.cos(), turn.sin()], -1)
            x = made.x_test[:20].expand(16, 20, 2).clone()
            x[:, 10] = there.to(x)
            far.append(filt.filter(x).evidence[:, 10])
            belief = filt.step(filt.step(filt.init(), made.x_test[0]), there[0].to(x))
            assert not bool(belief.evidence)
    assert float(torch.stack(far).double().mean()) <= 0.05
    assert float(torch.stack(usual).double().mean()) >= 0.99


@pytest.mark.parametrize(
    "rule", [OriginalRule(), ImportanceWeightedRule(), ImportanceWeightedRule(normalize=False)]
)
def test_after_an_outlier_a_filter_recovers_or_says_that_it_has_not(rule):
    made = Rotation().generate(n_train=200, n_test=60, seed=0)
    filt = KernelBayesFilter(rule=rule, scales=(1.0,)).fit(made.x_train, made.z_train)
    x = made.x_test.clone()
    x[10] += 10.0
    out = filt.filter(x)
    assert not out.evidence[10]
    error = (out.mean - made.z_test).norm(dim=-1)[11:]
    told = out.evidence[11:]
    assert float(error[told].mean() if told.any() else 0.0) < 0.5


def test_adapted_regions_follow_a_sensor_that_becomes_noisier(data, filt):
    generator = torch.Generator().manual_seed(3)
    task = Rotation()
    z = task.latents(800, generator)
    noise = task.sigma_x * torch.randn(800, 2, dtype=torch.float64, generator=generator)
    noise[400:] *= 2
    out = filt.filter(z + noise, truth=z, adapt=True)
    inside = filt.credible_region(out).contains(z).double()
    fixed = filt.credible_region(replace(out, stretch=None)).contains(z).double()
    assert fixed[400:].mean() < 0.75
    assert 0.86 <= inside.mean() <= 0.94
    assert 0.85 <= inside[400:].mean() <= 0.94
    torch.testing.assert_close(out.cov, filt.filter(z + noise).cov * out.stretch[:, None, None])


def test_a_stream_adapts_as_a_sequence_does(data, filt):
    out = filt.filter(data.x_test, truth=data.z_test, adapt=True, delay=2)
    beliefs, belief = [], filt.init()
    for t, row in enumerate(data.x_test[:30]):
        if t >= 2:
            belief = filt.adapt(belief, data.z_test[t - 2], of=beliefs[t - 2])
        belief = filt.step(belief, row)
        beliefs.append(belief)
    torch.testing.assert_close(beliefs[-1].stretch, out.stretch[29])
    torch.testing.assert_close(beliefs[-1].cov, out.cov[29], rtol=1e-7, atol=1e-10)
    with pytest.raises(KbrError, match="truth=z"):
        filt.filter(data.x_test, adapt=True)


def test_adaptive_coverage_is_that_promised_whatever_the_scores_do():
    """Scores that grow a thousandfold; truths that never arrive change nothing."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(4000, dtype=torch.float64, generator=generator)
    scores = scores * torch.linspace(0, math.log(1000), 4000, dtype=torch.float64).exp()
    inside = scores <= stretches(scores)
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.015)
    assert torch.equal(stretches(torch.full((5,), torch.nan)), torch.ones(5))


def test_calibration_is_kept_by_files_copies_and_compression(data, filt, tmp_path):
    x = with_gap(data.x_test)
    filt.save(tmp_path / "filter.ckpt")
    loaded, small = KernelBayesFilter.load(tmp_path / "filter.ckpt"), filt.compress(100)
    torch.testing.assert_close(loaded.filter(x).cov, filt.filter(x).cov, rtol=1e-9, atol=1e-12)
    for name in ("calibration", "smoothing_calibration"):
        kept, own = getattr(small, name), getattr(filt, name)
        assert kept.counts == own.counts
        assert torch.equal(kept.scores, own.scores)
        assert torch.equal(getattr(loaded, name).horizons, own.horizons)
    size = trace(small.filter(x).cov)
    assert size[49] > 3 * size[20:30].mean()


@pytest.mark.parametrize("made", [LearnedFilter, LSTMFilter, GRUFilter])
def test_trained_filters_calibrate_flag_and_keep_both(data, made, tmp_path):
    encoder = partial(MLP, hidden=(8,), n_features=4)
    filt = made(encoder=encoder, epochs=20, val_every=10)
    filt.fit(data.x_train, data.z_train, folder=tmp_path, trainer={"enable_progress_bar": False})
    x = with_gap(data.x_test)
    x[70] = -1e30
    out = filt.filter(x)
    assert not out.evidence[70]
    assert out.evidence[60:70].all()
    assert int(out.since[49]) == 20
    assert trace(out.cov)[49] > trace(out.cov)[20:30].mean()
    best = tmp_path / "checkpoints" / "best.ckpt"
    again = load_filter(tmp_path).filter(x)
    torch.testing.assert_close(again.cov, out.cov, rtol=1e-6, atol=1e-9)
    content = checkpoint.load(best, kind=made.kind)
    name = next(key for key, value in content["network"].items() if value.ndim == 2)
    content["network"][name][0, 0] = math.nan
    checkpoint.save(best, content)
    with pytest.raises(KbrError, match="finite"):
        made.load(best)


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", [Rotation(), Oscillatory()])
def test_ninety_per_cent_regions_hold_ninety_per_cent(dynamics):
    """Ten seeds as one batch; docs/uncertainty.md has the numbers of all cases."""
    made = [dynamics.generate(n_train=300, n_test=1000, seed=s) for s in range(2000, 2010)]
    x, z, x_test, z_test = (
        torch.stack([getattr(m, k) for m in made]).double()
        for k in ("x_train", "z_train", "x_test", "z_test")
    )
    filt = KernelBayesFilter().fit(x, z)
    inside = filt.credible_region(filt.filter(x_test)).contains(z_test)
    assert 0.87 <= float(inside.double().mean()) <= 0.93
    starts = range(20, 980, 40)
    for start in starts:
        x_test[:, start : start + 20] = torch.nan
    inside = filt.credible_region(filt.filter(x_test)).contains(z_test).double()
    gaps = torch.cat([inside[:, start : start + 20] for start in starts])
    assert 0.85 <= float(gaps.mean()) <= 0.95
