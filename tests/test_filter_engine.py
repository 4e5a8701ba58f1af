"""Every engine of the kernel Bayes filter against the dense algorithm in `filter_reference`."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from filter_reference import dense_filter, median_bandwidth, original

from kbr import Gaussian, Identity, ImportanceWeightedRule, KernelBayesFilter, OriginalRule
from kbr.core import linalg
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.features import PivotedCholesky
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.engine import ActiveSet, LowRank, compress, is_shared
from kbr.core.filters.kernel.settings import Settings

ENGINES = ["auto", "low_rank", "compressed", "active_set"]
DYNAMICS = {"rotation": Rotation(), "oscillatory": Oscillatory()}
RIDGES = [(5e-4, 1e-7), (5e-4, 1e-4), (1e-2, 1e-7)]  # (lam, eta)


@lru_cache
def data(dynamics, n, steps=200):
    made = DYNAMICS[dynamics].generate(n_train=n, n_test=steps, seed=3)
    return tuple(part.numpy() for part in (made.x_train, made.z_train, made.x_test))


@lru_cache
def dense_means(dynamics, n, scale, lam, eta, rule=None, steps=200):
    x, z, x_test = data(dynamics, n, steps)
    widths = {"width_x": median_bandwidth(x, scale), "width_z": median_bandwidth(z, scale)}
    return dense_filter(x, z, x_test, **widths, eta=eta, lam=lam, rule=rule)[0]


def paper_filter(dynamics, n, scale, eta, rule, engine):
    x, z, _ = data(dynamics, n)
    made = KernelBayesFilter(
        rule=rule, eta=eta, scales=(scale,), widths=(1.0,), engine=engine, standardize=False
    )
    return made.fit(x, z)


def difference(means, exact):
    """Largest over time, relative to the largest exact mean."""
    means = means.numpy() if isinstance(means, torch.Tensor) else means
    return np.linalg.norm(means - exact, axis=-1).max() / np.linalg.norm(exact, axis=-1).max()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_means_equal_the_dense_algorithm(dynamics, scale, engine):
    """Algorithm 2 to the letter, 200 steps, from the smallest ridges of the grids upwards."""
    for lam, eta in RIDGES:
        rule = ImportanceWeightedRule(lam=lam, normalize=False)
        filt = paper_filter(dynamics, 130, scale, eta, rule, engine)
        exact = dense_means(dynamics, 130, scale, lam, eta)
        assert difference(filt.filter(data(dynamics, 130)[2]).mean, exact) <= 1e-6, (lam, eta)


@pytest.mark.parametrize(("scale", "name"), [(0.5, "low_rank"), (2.0, "compressed")])
def test_automatic_engine_equals_the_dense_algorithm(scale, name):
    """At a size where features are faster, `auto` uses them and gives the same answer."""
    rule = ImportanceWeightedRule(lam=1e-2, normalize=False)
    filt = paper_filter("oscillatory", 360, scale, 1e-6, rule, "auto")
    assert filt.operators.update.name == name
    exact = dense_means("oscillatory", 360, scale, 1e-2, 1e-6)
    assert difference(filt.filter(data("oscillatory", 360)[2]).mean, exact) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_means_equal_the_dense_algorithm_at_size(dynamics, engine):
    """The same with n = 500, where ranks have settled."""
    for scale in (0.5, 2.0):
        for lam, eta in (RIDGES[0], RIDGES[2]):
            rule = ImportanceWeightedRule(lam=lam, normalize=False)
            filt = paper_filter(dynamics, 500, scale, eta, rule, engine)
            exact = dense_means(dynamics, 500, scale, lam, eta)
            assert difference(filt.filter(data(dynamics, 500)[2]).mean, exact) <= 1e-6


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_original_rule_equals_its_dense_form(dynamics, engine):
    """At this lam the squared operator is well conditioned; below it, dense forms disagree too."""
    for lam, eta in ((1e-3, 1e-4), (1e-5, 1e-4)):
        filt = paper_filter(dynamics, 130, 1.0, eta, OriginalRule(lam=lam), engine)
        exact = dense_means(dynamics, 130, 1.0, lam, eta, rule=original)
        assert difference(filt.filter(data(dynamics, 130)[2]).mean, exact) <= 1e-6, lam


def test_missing_rows_equal_the_dense_algorithm():
    """A missing observation leaves the predicted weights, also in the paper's form."""
    x, z, x_test = data("rotation", 130)
    x_test = x_test.copy()
    x_test[[0, 7, 8, 9, 40]] = np.nan
    rule = ImportanceWeightedRule(lam=1e-2, normalize=False)
    filt = paper_filter("rotation", 130, 1.0, 1e-4, rule, "low_rank")
    widths = {"width_x": median_bandwidth(x), "width_z": median_bandwidth(z)}
    exact, weights = dense_filter(x, z, x_test, **widths, eta=1e-4, lam=1e-2)
    out = filt.filter(x_test)
    assert difference(out.mean, exact) <= 1e-6
    np.testing.assert_array_equal(out.evidence.numpy(), ~np.isnan(x_test).any(-1))
    size = weights.sum(-1) ** 2 / (weights**2).sum(-1)
    np.testing.assert_allclose(out.effective_sample_size, size, rtol=1e-5)


def test_covariance_is_that_of_the_scaled_weights():
    """Weights of the paper's form are scaled to sum to one; negative variances become zero."""
    x, z, x_test = data("rotation", 130)
    rule = ImportanceWeightedRule(lam=1e-2, normalize=False)
    out = paper_filter("rotation", 130, 1.0, 1e-4, rule, "auto").filter(x_test[:20])
    widths = {"width_x": median_bandwidth(x), "width_z": median_bandwidth(z)}
    _, weights = dense_filter(x, z, x_test[:20], **widths, eta=1e-4, lam=1e-2)
    for cov, w in zip(out.raw_cov.numpy(), weights / weights.sum(-1, keepdims=True), strict=True):
        gap = z - w @ z
        values, vectors = np.linalg.eigh((w[:, None] * gap).T @ gap)
        exact = vectors * np.maximum(values, 0) @ vectors.T
        np.testing.assert_allclose(cov, exact, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engine_is_forced_by_name_and_shown(engine):
    rule = ImportanceWeightedRule(lam=1e-2)
    filt = paper_filter("rotation", 130, 1.0, 1e-4, rule, engine)
    assert filt.operators.update.name == engine
    assert f"engine={engine}" in repr(filt)


def test_automatic_engine_follows_the_rank():
    """Tiny bandwidths have full rank; wide ones compress; tiny ridges are kept from compression."""
    rule = ImportanceWeightedRule(lam=1e-2)
    names = [
        paper_filter("rotation", 300, scale, 1e-4, rule, "auto").operators.update.name
        for scale in (0.05, 1.0)
    ]
    assert names == ["active_set", "compressed"]
    careful = ImportanceWeightedRule(lam=1e-5)
    filt = paper_filter("rotation", 300, 1.0, 1e-4, careful, "auto")
    assert filt.operators.update.name == "low_rank"


def test_learned_features_run_on_every_engine():
    """With given features (here the identity) every way to compute the posterior agrees."""
    x, z, x_test = data("rotation", 130)
    rule = ImportanceWeightedRule(kernel_x=Identity(), lam=1e-2)
    means = [
        KernelBayesFilter(rule=rule, eta=1e-4, scales=(1.0,), engine=engine)
        .fit(x, z)
        .filter(x_test[:40])
        .mean
        for engine in ENGINES
    ]
    for mean in means[1:]:
        torch.testing.assert_close(mean, means[0], rtol=1e-6, atol=1e-8)


def test_compression_is_exact_for_any_ratio():
    """Psi' diag(r) Psi is linear in r, so few pivots give it for every r, negative ones too."""
    points = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = PivotedCholesky(kernel=Gaussian(scale=2.0), tolerance=1e-10).fit(points)
    made = compress(features, tolerance=1e-14)
    assert made.pivots.shape[-2] < 100
    ratio = torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    psi, few = features.train, made.pivots
    exact = psi.mT @ (ratio.unsqueeze(-1) * psi)
    close = few.mT @ ((ratio @ made.mixing).unsqueeze(-1) * few)
    torch.testing.assert_close(close, exact, rtol=0, atol=1e-6)


def test_active_set_of_unequal_sequences():
    """Sequences with fewer positive ratios are padded with points that weigh nothing."""
    points = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = Gaussian().fit(points)
    features = PivotedCholesky(kernel=kernel).fit(points)
    ratio = torch.rand(3, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ratio[0, 3:], ratio[1, ::2], ratio[2] = 0, 0, 0
    lam, rule = torch.full((3,), 1e-2, dtype=torch.float64), ImportanceWeightedRule(lam=1e-2)
    query = points[:3] + 0.1
    low = LowRank(features)
    sparse = ActiveSet(kernel, points, kernel(points, points))
    torch.testing.assert_close(
        sparse.weights(rule, ratio, sparse.observe(query), lam),
        low.weights(rule, ratio, low.observe(query), lam),
        rtol=1e-7,
        atol=1e-9,
    )


@pytest.mark.parametrize("rule", [ImportanceWeightedRule(), OriginalRule()])
def test_the_active_set_in_groups_is_the_active_set_at_once(monkeypatch, rule):
    """Two data sets of three sequences each: with many, few and no points that have a ratio."""
    x = torch.as_tensor(data("rotation", 130)[0])
    kernel = Gaussian().fit(x)
    points = torch.stack([x, x.flip(0)])
    update = ActiveSet(kernel, points, kernel(points, points))
    ratio = torch.rand(2, 3, 130, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    ratio = (ratio - x.new_tensor([0.1, 0.9, 1.0])[:, None]).clamp_min(0)
    query, lam = update.observe(points[:, :3]), x.new_tensor([1e-2, 1e-3, 1e-2]).expand(2, 3)
    at_once = update.weights(rule, ratio, query, lam)
    monkeypatch.setattr("kbr.core.filters.kernel.engine.GROUP", 1)
    torch.testing.assert_close(update.weights(rule, ratio, query, lam), at_once)
    alone = ActiveSet(kernel, points[1], kernel(points[1], points[1]))
    single = alone.weights(rule, ratio[1], query[1], lam[1])
    torch.testing.assert_close(single, at_once[1])


@pytest.mark.parametrize("rule", [ImportanceWeightedRule(), OriginalRule()])
@pytest.mark.parametrize("engine", ["low_rank", "compressed", "active_set"])
def test_sequences_that_share_a_ratio_share_a_factor(monkeypatch, rule, engine):
    """One expanded ratio gives the weights that a copy of it for each sequence gives."""
    x = torch.as_tensor(data("rotation", 60)[0])
    points = torch.stack([x, x.flip(0)])
    builder = Builder(Settings(rule=rule, engine=engine))
    update = builder.update(points, 1.0, 1e-12, lam=1e-2)
    ratio = torch.rand(2, 1, 60, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    ratio, lam = ratio.expand(2, 5, 60), x.new_tensor([1e-2, 1e-3])[:, None].expand(2, 5)
    query, systems = update.observe(points[:, :5]), []
    add = linalg.add_ridge

    def counted(a, ridge):
        made = add(a, ridge)
        systems.append(made.shape[:-2].numel())
        return made

    monkeypatch.setattr(linalg, "add_ridge", counted)
    together = update.weights(rule, ratio, query, lam)
    assert sum(systems) == 2
    each = update.weights(rule, ratio.clone(), query, lam)
    assert sum(systems) == 2 + 10
    torch.testing.assert_close(together, each, rtol=1e-7, atol=1e-10)


def test_unequal_ridges_share_no_factor():
    ratio = torch.rand(1, 60).expand(3, 60)
    assert not is_shared(ratio, torch.tensor([1e-2, 1e-3, 1e-4]))
    assert not is_shared(ratio[:1], torch.tensor([1e-2]))


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_compression_leaves_out_less_than_the_ridge_whatever_the_size_of_features(size, rough):
    """Features of a network are larger than those of a kernel, which are of length one."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    x = size * x * torch.logspace(0, -3, 4, dtype=torch.float64)
    settings = Settings(rule=ImportanceWeightedRule(kernel_x=Identity()))
    lam = 1e-2
    update = Builder(settings).update(x, 1.0, 1e-10, lam=lam, rough=rough)
    ratio = torch.rand(1, 300, generator=generator, dtype=torch.float64)
    exact = (x * ratio.mT).mT @ x
    off = torch.linalg.eigvalsh(update.second(ratio)[0] - exact).abs().max()
    assert off < 0.1 * 300 * lam
