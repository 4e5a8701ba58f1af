"""Bad input and bad days: the filter answers, or says what to change."""

import pytest
import torch

from kbr import ExactRatio, Identity, ImportanceWeightedRule, KbrError, KernelBayesFilter
from kbr.core.datasets.dynamics import Rotation

ENGINES = ["auto", "low_rank", "compressed", "active_set"]
GRID = {"scales": (0.7, 1.4), "lams": (1e-3, 1e-2)}


@pytest.fixture(scope="module")
def data():
    return Rotation().generate(n_train=200, n_test=60, seed=0)


def finite(out):
    return all(bool(part.isfinite().all()) for part in (out.mean, out.cov, out.states))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("far", [50.0, 1e6, -1e150])
def test_outlier_is_flagged_and_forgotten(data, engine, far):
    """An observation 50 standard deviations away (or more) becomes a prediction step, no worse."""
    filt = KernelBayesFilter(**GRID, engine=engine).fit(data.x_train, data.z_train)
    x = data.x_test.clone()
    x[20] += far * data.x_train.std(0)
    out, clean = filt.filter(x), filt.filter(data.x_test)
    assert finite(out)
    assert not out.evidence[20]
    assert out.evidence.sum() == 59
    gap = (out.mean - clean.mean).norm(dim=-1)
    assert gap[:20].max() < 1e-8
    assert gap[25:].max() < 0.05
    assert finite(filt.smooth(x))


def test_outliers_first_and_in_a_row(data):
    filt = KernelBayesFilter(**GRID).fit(data.x_train, data.z_train)
    x = data.x_test.clone()
    x[[0, 10, 11, 12]] += 30
    out = filt.filter(x)
    assert out.evidence.logical_not().nonzero().flatten().tolist() == [0, 10, 11, 12]
    assert (out.mean - filt.filter(data.x_test).mean).norm(dim=-1)[20:].max() < 0.05


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), -float("inf")])
def test_missing_values(data, missing):
    filt = KernelBayesFilter(**GRID).fit(data.x_train, data.z_train)
    x = data.x_test.clone()
    x[5, 0] = missing
    out = filt.filter(x)
    assert finite(out)
    assert out.evidence.logical_not().nonzero().flatten().tolist() == [5]


def test_nothing_observed_at_all(data):
    filt = KernelBayesFilter(**GRID).fit(data.x_train, data.z_train)
    out = filt.filter(torch.full((10, 2), torch.nan))
    assert finite(out)
    assert not out.evidence.any()
    torch.testing.assert_close(out.mean[0], data.z_train.mean(0))


def test_sequence_of_length_one(data):
    filt = KernelBayesFilter(**GRID).fit(data.x_train, data.z_train)
    for out in (filt.filter(data.x_test[:1]), filt.smooth(data.x_test[:1])):
        assert out.mean.shape == (1, 2)
        assert finite(out)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("normalize", [True, False])
def test_constant_latents(data, engine, normalize):
    """A latent that never moves is found exactly (by weights that sum to one)."""
    z = torch.full((200, 2), 3.0)
    rule = ImportanceWeightedRule(normalize=normalize)
    filt = KernelBayesFilter(rule=rule, **GRID, engine=engine).fit(data.x_train, z)
    out = filt.filter(data.x_test)
    assert finite(out)
    if normalize:
        torch.testing.assert_close(out.mean, z[:60].double())
        assert out.cov.abs().max() < 1e-10


@pytest.mark.parametrize("engine", ENGINES)
def test_constant_observations(data, engine):
    """Observations without information leave the prediction, which tends to the marginal."""
    filt = KernelBayesFilter(**GRID, engine=engine).fit(torch.full((200, 2), 7.0), data.z_train)
    out = filt.filter(torch.full((40, 2), 7.0))
    assert finite(out)
    assert (out.mean[-1] - data.z_train.mean(0)).norm() < 0.3


@pytest.mark.parametrize("engine", ENGINES)
def test_duplicated_points(data, engine):
    """Few distinct points, each many times: the factors have the rank of the distinct ones."""
    x, z = (part[:40].repeat(5, 1) for part in (data.x_train, data.z_train))
    filt = KernelBayesFilter(**GRID, engine=engine).fit(x, z)
    assert filt.operators.phi.shape[-1] <= 40
    assert finite(filt.filter(data.x_test))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lam", [1e-8, 1e-6, 1e-4, 1.0, 1e3, 1e6])
def test_any_ridge(data, engine, lam):
    """No lam gives NaN; large ones give the prediction instead of zero."""
    rule = ImportanceWeightedRule(lam=lam)
    filt = KernelBayesFilter(rule=rule, scales=(1.0,), eta=1e-4, engine=engine)
    out = filt.fit(data.x_train, data.z_train).filter(data.x_test)
    assert finite(out)
    assert out.mean.norm(dim=-1).max() < 3
    if lam >= 1:
        assert out.mean.norm(dim=-1)[5:].mean() > 0.3


@pytest.mark.parametrize("eta", [1e-12, 1e-8, 1.0, 1e6])
def test_any_ratio_ridge(data, eta):
    rule = ImportanceWeightedRule(lam=1e-2)
    filt = KernelBayesFilter(rule=rule, scales=(1.0,), eta=eta).fit(data.x_train, data.z_train)
    assert finite(filt.filter(data.x_test))


def test_ridge_too_small_to_factorise_is_named(data):
    """Factors drop what is too small to factorise; given features and Gram matrices cannot."""
    twice = data.z_train[:, :1].expand(-1, 2)
    rule = ImportanceWeightedRule(kernel_z=Identity(), lam=1e-2)
    filt = KernelBayesFilter(rule=rule, eta=1e-30, lam_transition=1e-3)
    with pytest.raises(KbrError, match=r"not positive definite.*eta = 1e-30; raise eta"):
        filt.fit(data.x_train, twice)
    rule = ImportanceWeightedRule(lam=1e-20)
    filt = KernelBayesFilter(rule=rule, scales=(2.0,), eta=1e-3, engine="active_set")
    with pytest.raises(KbrError, match=r"not positive definite.*n lam = .*raise n lam"):
        filt.fit(data.x_train, data.z_train).filter(data.x_test)


@pytest.mark.parametrize("name", ["eta", "lam_transition"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_ridges_are_positive(name, value):
    with pytest.raises(KbrError, match=name):
        KernelBayesFilter(**{name: value})


@pytest.mark.parametrize("name", ["scales", "widths", "etas", "lams"])
def test_grids_hold_positive_numbers(name):
    for grid, words in (((), "at least one"), ((1.0, 0.0), "greater than zero")):
        with pytest.raises(KbrError, match=words):
            KernelBayesFilter(**{name: grid})


@pytest.mark.parametrize("n", [1, 2, 5])
def test_too_few_training_steps(data, n):
    with pytest.raises(KbrError, match="n_train"):
        KernelBayesFilter(**GRID).fit(data.x_train[:n], data.z_train[:n])


def test_two_steps_suffice_where_nothing_is_tuned(data):
    filt = KernelBayesFilter(rule=ImportanceWeightedRule(lam=0.1), scales=(1.0,), eta=0.1)
    assert finite(filt.fit(data.x_train[:2], data.z_train[:2]).filter(data.x_test))


@pytest.mark.parametrize("n", [6, 7, 12])
def test_smallest_tuned_fit(data, n):
    filt = KernelBayesFilter(**GRID).fit(data.x_train[:n], data.z_train[:n])
    assert finite(filt.filter(data.x_test))


def test_wrong_shapes_are_named(data):
    filt = KernelBayesFilter(rule=ImportanceWeightedRule(lam=0.1), scales=(1.0,), eta=0.1)
    with pytest.raises(KbrError, match="not fitted yet"):
        filt.filter(data.x_test)
    with pytest.raises(KbrError, match="same number of rows"):
        filt.fit(data.x_train[:50], data.z_train)
    with pytest.raises(KbrError, match="as many sequences"):
        filt.fit([data.x_train], [data.z_train, data.z_train])
    filt.fit(data.x_train, data.z_train)
    for x in (data.x_test[:, :1], data.x_test[0], data.x_test[:0]):
        with pytest.raises(KbrError, match="observations"):
            filt.filter(x)
    for x in (data.x_test[:3], data.x_test[0, :1]):
        with pytest.raises(KbrError, match="observation"):
            filt.step(filt.init(), x)


def test_training_rows_with_missing_values_cut_the_sequence(data):
    """The same as passing the pieces between them; nothing is learned across the cut."""
    settings = {"rule": ImportanceWeightedRule(lam=0.1), "scales": (1.0,), "eta": 0.1}
    x, z = data.x_train.clone(), data.z_train.clone()
    x[50, 0], z[120, 1] = torch.nan, torch.inf
    with pytest.warns(UserWarning, match=r"2 of 200 training rows .* left out.* 3 piece"):
        filt = KernelBayesFilter(**settings).fit(x, z)
    pieces = [slice(50), slice(51, 120), slice(121, None)]
    same = KernelBayesFilter(**settings).fit([x[p] for p in pieces], [z[p] for p in pieces])
    torch.testing.assert_close(filt.filter(data.x_test).mean, same.filter(data.x_test).mean)
    with pytest.raises(KbrError, match="every one of the 200 training rows"):
        KernelBayesFilter(**settings).fit(x * torch.nan, z)


def test_ratio_that_the_filter_cannot_use_is_an_error():
    """The filter's priors change at every step, so a fixed ratio would be ignored silently."""
    rule = ImportanceWeightedRule(ratio=ExactRatio(function=lambda z: z[..., 0]))
    with pytest.raises(KbrError, match="KuLSIF"):
        KernelBayesFilter(rule=rule)
