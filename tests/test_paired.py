"""Two filters whose beliefs are averaged: mixtures, their share, steps, files."""

from functools import partial

import pytest
import torch
from bumps import turning

from kbr import KbrError, load_filter
from kbr.core.filters.averaging import best_share, error_of, mixed, mixture
from kbr.training import MLP, LearnedFilter, PairedFilter
from kbr.training.filters import paired

ENCODER = partial(MLP, n_features=8, hidden=(32,))
QUIET = {"enable_progress_bar": False, "logger": False}
SMALL = {"encoder": ENCODER, "epochs": 30, "val_every": 10, "n_fourier": 64}


@pytest.fixture(scope="module")
def data():
    return turning()


@pytest.fixture(scope="module")
def fitted(data):
    x, z = data
    return PairedFilter(**SMALL).fit(list(x[:5]), list(z[:5]), trainer=QUIET)


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_moments_of_a_mixture_are_those_of_its_samples():
    means = torch.tensor([[0.0, 1.0], [2.0, -1.0]]).double()
    roots = torch.tensor([[[1.0, 0.0], [0.5, 0.3]], [[0.2, 0.0], [-0.4, 1.0]]]).double()
    covs = roots @ roots.mT
    mean, cov = mixture(0.3, (means[0], covs[0]), (means[1], covs[1]))
    drawn = [
        m + normal(200_000, 2, seed=k) @ r.mT
        for k, (m, r) in enumerate(zip(means, roots, strict=True))
    ]
    count = int(0.3 * 200_000)
    samples = torch.cat([drawn[0][:count], drawn[1][count:]])
    torch.testing.assert_close(mean, samples.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(cov, samples.mT.cov(), rtol=0, atol=0.03)


def held_out(mean, z):
    """What `held_out_rows` gives, of one block."""
    rows = {0.0: [(mean, torch.eye(2).double().expand(len(z), 2, 2), z)]}
    return [(rows, None)]


def test_the_share_has_the_least_error():
    z = normal(100, 2, seed=1)
    one, other = z + 0.3 * normal(100, 2, seed=2), z + 0.6 * normal(100, 2, seed=3)
    rows = held_out(one, z), held_out(other, z)
    share = best_share(*rows)
    errors = [error_of(mixed(s, *rows)) for s in (share - 0.05, share, share + 0.05)]
    assert errors[1] == min(errors)
    assert 0.7 < share < 0.9  # variances .09 and .36 ask for .8
    worse = held_out(z + 3 * (one - z), z)  # the same errors, larger: of no use beside them
    assert best_share(rows[0], worse) == 1.0
    assert best_share(worse, rows[0]) == 0.0
    assert best_share(rows[0], rows[0]) == 0.5


def test_beliefs_are_the_mixture_of_both_filters(fitted, data):
    x = data[0][5]
    psi, told = fitted._seen_by_both(fitted.units.observations(x))
    first, second = fitted._both_filters()
    one, other = first._filtered(psi), second._filtered(told)
    mean, cov = mixture(fitted.share, (one.mean, one.cov), (other.mean, other.cov))
    found = fitted.filter(x)
    undone = fitted.units.z.undo(mean, cov)
    torch.testing.assert_close(found.mean, undone[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.raw_cov, undone[1], rtol=0, atol=1e-12)
    assert 0 < fitted.share < 1


def test_the_pair_is_not_worse_than_either_and_its_regions_hold(fitted, data):
    x, z = (rows[5:] for rows in data)
    alone = LearnedFilter(**SMALL).fit(list(data[0][:5]), list(data[1][:5]), trainer=QUIET)
    errors = [float((f.filter(x).mean - z).square().sum(-1).mean()) for f in (fitted, alone)]
    assert errors[0] < 1.05 * errors[1]
    found = fitted.filter(x)
    inside = fitted.credible_region(found).contains(z).double().mean()
    assert 0.8 < float(inside) < 0.99


def test_steps_forecasts_and_files_give_the_same_beliefs(fitted, data, tmp_path):
    x = data[0][5].clone()
    x[4] = torch.nan
    whole, belief = fitted.filter(x), fitted.init()
    for at, row in enumerate(x[:10]):
        belief = fitted.step(belief, row)
        torch.testing.assert_close(belief.mean, whole.mean[at], rtol=0, atol=1e-8)
        torch.testing.assert_close(belief.cov, whole.cov[at], rtol=0, atol=1e-8)
        assert bool(belief.evidence) == bool(whole.evidence[at])
    masked = x.clone()
    masked[10:12] = torch.nan
    ahead, gap = fitted.forecast(belief, 2), fitted.filter(masked)
    torch.testing.assert_close(ahead.mean, gap.mean[11], rtol=0, atol=1e-8)
    torch.testing.assert_close(ahead.cov, gap.cov[11], rtol=0, atol=1e-8)
    fitted.save(tmp_path / "filter.ckpt")
    again = load_filter(tmp_path / "filter.ckpt")
    assert type(again) is PairedFilter
    for name in ("filter", "smooth"):
        one, other = (getattr(f, name)(x) for f in (fitted, again))
        torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(one.cov, other.cov, rtol=0, atol=1e-8)


def test_smoothing_is_better_than_filtering(fitted, data):
    x, z = (rows[5:] for rows in data)
    errors = [
        float((answer.mean - z).square().sum(-1).mean())
        for answer in (fitted.filter(x), fitted.smooth(x))
    ]
    assert errors[1] < errors[0]


def test_a_prior_is_the_start_of_both(fitted):
    point = torch.tensor([[0.5, -0.5]]).double()
    belief = fitted.init(prior=point.expand(20, 2))
    assert float((belief.mean - point[0]).abs().max()) < 0.5
    assert float(belief.embedding.weights.sum()) == pytest.approx(1.0, abs=0.05)


def test_more_pairs_are_refused(fitted, data):
    with pytest.raises(KbrError, match=r"LearnedFilter \(model=iw_nn\) does"):
        fitted.partial_fit(data[0][6], data[1][6])


def test_absent_sensors_are_refused(data):
    with pytest.raises(KbrError, match="knows no absent sensors"):
        PairedFilter(**SMALL).fit(data[0][0], data[1][0], sensors="each", trainer=QUIET)


def test_the_summary_names_both(fitted):
    text = str(fitted.summary())
    assert "kernel regression of each observation" in text
    assert "share" in text


def test_few_rows_have_the_validation_error_of_the_network(data):
    """Too few steps are held out to choose a share by."""
    x, z = (rows[0, :7] for rows in data)
    filt = PairedFilter(**{**SMALL, "epochs": 2, "val_every": 2}).fit(x, z, trainer=QUIET)
    assert filt.val_mse > 0
    assert filt.share == 0.5
    assert filt.filter(x).mean.isfinite().all()


def test_an_observation_unlike_any_is_a_prediction_to_both(fitted, data):
    """To the regression alone it may look like any other: it tells the mean of z of it."""
    x, belief = data[0][5].clone(), fitted.init()
    for row in x[:8]:
        belief = fitted.step(belief, row)
    odd = torch.full_like(x[0], float(data[0].max()))
    after, ahead = fitted.step(belief, odd), fitted.forecast(belief, 1)
    assert not bool(after.evidence)
    torch.testing.assert_close(after.mean, ahead.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(after.cov, ahead.cov, rtol=0, atol=1e-8)
    x[8] = odd
    whole = fitted.filter(x)
    assert whole.evidence.tolist() == [True] * 8 + [False] + [True] * (len(x) - 9)
    for row in x[8:20]:
        belief = fitted.step(belief, row)
    torch.testing.assert_close(whole.mean[19], belief.mean, rtol=0, atol=1e-8)
    several = fitted.filter(x.expand(2, *x.shape))
    torch.testing.assert_close(several.mean[1], whole.mean, rtol=0, atol=1e-8)
    assert not bool(fitted.smooth(x).evidence[8])


def test_beliefs_of_other_filters_are_refused(fitted, data):
    x, z = data
    alone = LearnedFilter(**{**SMALL, "epochs": 2, "val_every": 2}).fit(x[0], z[0], trainer=QUIET)
    with pytest.raises(KbrError, match="of another kind of filter"):
        fitted.step(alone.init(), x[0, 0])
    with pytest.raises(KbrError, match="of another kind of filter"):
        fitted.forecast(alone.init(), 2)


def test_a_filter_that_is_not_fitted_says_so():
    for name in ("calibration", "smoothing_calibration"):
        with pytest.raises(KbrError, match="not fitted yet"):
            getattr(PairedFilter(**SMALL), name)


def test_a_choice_at_an_edge_names_a_setting_that_moves_it(data):
    """`lams` and the like are those of the filter on learned features alone."""
    z = data[1][0]
    exact = torch.cat([z, z.sin()], -1)  # without noise, the regression's filter wants no ridge
    filt = PairedFilter(**{**SMALL, "epochs": 2, "val_every": 2, "lams": [0.1], "scales": [1.0]})
    filt.fit(exact, z, trainer=QUIET)
    assert filt._second.choice.edges
    assert set(filt.edges).isdisjoint(filt._second.choice.edges)


def test_a_regression_without_a_share_is_not_asked(fitted, data, monkeypatch):
    """What is unlike any of training to it alone stays evidence."""
    first, _ = fitted._both_filters()

    def familiar(filt, rows):
        return torch.full(rows.shape[:-1], filt is first)

    monkeypatch.setattr(paired, "_familiar", familiar)
    assert not bool(fitted.filter(data[0][5]).evidence.any())
    monkeypatch.setattr(fitted, "share", 1.0)
    assert bool(fitted.filter(data[0][5]).evidence.all())


@pytest.mark.slow
def test_filters_of_two_engines_are_measured_at_the_same_steps():
    """Of over 2000 rows the regression's filter may look at near points alone."""
    generator = torch.Generator().manual_seed(1000)
    z = [torch.randn(3, generator=generator)]
    for _ in range(2099):
        z.append(0.9 * z[-1] + 0.4 * torch.randn(3, generator=generator))
    z = torch.stack(z)
    x = torch.cat([z + 0.05 * torch.randn(2100, 3, generator=generator), z.sin()], -1)
    small = {**SMALL, "epochs": 2, "val_every": 2}
    filt = PairedFilter(**small).fit(x, z, trainer=QUIET)
    names = [part.operators.update.name for part in filt._both_filters()]
    assert names[1] == "local" != names[0]
    assert filt.filter(x[:50]).cov.isfinite().all()
    assert filt.smooth(x[:50]).cov.isfinite().all()
