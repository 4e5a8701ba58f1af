"""Moments of a prior and the tuned rule, against plain loops and known Gaussians."""

import numpy as np
import pytest
import torch

from kbr import Embedding, ImportanceWeightedRule, KbrError, KuLSIF, ShrunkenMean, tune_rule
from kbr.core.datasets.gaussian import GaussianTask
from kbr.core.features import PivotedCholesky
from kbr.core.moments import MOMENT_ETA, mean_share, moment_ratio
from kbr.core.rule_tuning import leave_one_out_means, typical_eigenvalue


def points(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(seed=0, n=30, m=20, d=3):
    """Latents with units and an offset, a weighted prior, and a ratio between them."""
    units = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)[:d]
    z, there = points(seed, n, d) * units, (0.5 * points(seed + 1, m, d) + 0.3) * units
    weights = torch.rand(m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return z, Embedding(there, weights / weights.sum())


def test_the_share_of_a_mean_is_that_of_plain_loops():
    _, prior = problem()
    a, there = prior.weights.numpy(), prior.points.numpy()
    mean = sum(w * row for w, row in zip(a, there, strict=True))
    spread = sum(w * float((row - mean) @ (row - mean)) for w, row in zip(a, there, strict=True))
    noise = sum(w * w for w in a) * spread
    expected = max(0.0, 1 - noise / float(mean @ mean))
    assert 0 < expected < 1
    np.testing.assert_allclose(mean_share(prior.points, prior.weights), expected, rtol=1e-10)


def test_a_mean_within_its_noise_has_no_share_and_a_far_one_all():
    even = torch.full((40,), 1 / 40, dtype=torch.float64)
    sample = points(0, 40, 3)
    sample = sample - sample.mean(-2)
    assert float(mean_share(sample + 1e-3, even)) == 0
    assert float(mean_share(sample + 100, even)) > 0.999


def tilted_by_loops(r, z, prior):
    """The tilt from sums over points, in raw units but for the share; and its mean."""
    r = np.maximum(r, 0)
    w = r / r.sum()
    unit = np.sqrt(((z - z.mean(0)) ** 2).mean(0))
    share = float(mean_share(torch.as_tensor(prior.points.numpy() / unit), prior.weights))
    mean = sum(wi * row for wi, row in zip(w, z, strict=True))
    cov = sum(wi * np.outer(row - mean, row - mean) for wi, row in zip(w, z, strict=True))
    b = np.linalg.solve(cov, (share - 1) * mean)
    return len(z) * w * (1 + (z - mean) @ b), share * mean


def test_a_ratio_is_tilted_to_a_share_of_its_mean():
    z, prior = problem()
    features, base = PivotedCholesky().fit(z), KuLSIF(eta=0.1)
    made = ShrunkenMean(ratio=base)(features, z, prior)
    expected, target = tilted_by_loops(base(features, z, prior).numpy(), z.numpy(), prior)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(made.mean(), 1, rtol=1e-9)
    unit = z.std(-2)
    torch.testing.assert_close(
        (made @ z / len(z)) / unit, torch.as_tensor(target) / unit, rtol=0, atol=1e-4
    )


def uniform(features, points, prior):
    return torch.ones_like(points[..., 0])


def test_the_tilt_is_bounded_and_absent_where_the_mean_is_far_from_the_origin():
    z = points(0, 50, 2)
    features = PivotedCholesky().fit(z)
    sample = points(1, 9, 2)
    around = Embedding.from_samples(sample - sample.mean(-2))
    made = ShrunkenMean(ratio=uniform)(features, z + 1000, around)
    torch.testing.assert_close(made.var(correction=0), torch.ones(()).double(), rtol=1e-3, atol=0)
    far = Embedding.from_samples(sample + 1000)
    made = ShrunkenMean(ratio=uniform)(features, z + 1000, far)
    torch.testing.assert_close(made, torch.ones(50).double(), rtol=0, atol=1e-2)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_tilted_ratios_of_fewer_points_than_coordinates_are_finite(n):
    z, prior = points(0, n, 5), Embedding.from_samples(points(1, 3, 5))
    assert ShrunkenMean(ratio=KuLSIF(eta=0.1))(PivotedCholesky().fit(z), z, prior).isfinite().all()
    assert moment_ratio(z, prior).isfinite().all()
    same = z[:1].expand(4, 5)
    assert moment_ratio(same, prior).isfinite().all()
    features = PivotedCholesky().fit(same)
    assert ShrunkenMean(ratio=KuLSIF(eta=0.1))(features, same, prior).isfinite().all()


def moments_by_loops(z, prior):
    unit, centre = np.sqrt(((z - z.mean(0)) ** 2).mean(0)), z.mean(0)
    squares = np.array([sum(((row - centre) / unit) ** 2) for row in z])
    level, width = squares.mean(), squares.std()

    def phi(row):
        u = (row - centre) / unit
        return np.array([1.0, *u, (sum(u**2) - level) / width])

    second = sum(np.outer(phi(row), phi(row)) for row in z) / len(z)
    a = prior.weights.numpy()
    m = sum(w * phi(row) for w, row in zip(a, prior.points.numpy(), strict=True))
    beta = np.linalg.solve(second + MOMENT_ETA * np.eye(len(m)), m)
    return np.array([phi(row) @ beta for row in z])


def test_the_moment_ratio_is_that_of_plain_loops():
    z, prior = problem()
    made = moment_ratio(z, prior)
    np.testing.assert_allclose(made, moments_by_loops(z.numpy(), prior), rtol=0, atol=1e-9)
    np.testing.assert_allclose(made.mean(), 1 / (1 + MOMENT_ETA), rtol=1e-9)


def test_the_moment_ratio_carries_squares_to_a_narrower_prior():
    """Half the variance: half the mean of |z|^2, which a positive ratio cannot show here."""
    d, n = 16, 2000
    z, prior = points(0, n, d), Embedding.from_samples(points(1, n, d) * 0.5**0.5)
    carried = (moment_ratio(z, prior) * z.square().sum(-1)).mean()
    assert abs(float(carried) / d - 0.5) < 0.05


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_leave_one_out_means_are_those_of_fitting_again(scale):
    n = 12
    x, t = points(0, n, 2), points(1, n, 3)
    r = points(2, n).clamp_min(0) + torch.tensor([1.0] * 9 + [0.0] * 3, dtype=torch.float64)
    r = r / r.mean()
    lams = torch.tensor([1e-2, 1.0], dtype=torch.float64)
    psi = points(3, n, 4) * scale + 1 if scale > 1 else x
    made = leave_one_out_means(psi, t, r, lams)
    for lam, means in zip(lams, made, strict=True):
        for i in range(n):
            rest = [j for j in range(n) if j != i]
            p, d = psi[rest].numpy(), np.diag(r[rest].numpy())
            ridge = n * float(lam) * np.eye(p.shape[1])
            w = d @ p @ np.linalg.solve(p.T @ d @ p + ridge, psi[i].numpy())
            others = r[rest].numpy() / r[rest].sum().item()
            w = w / w.sum() if w.sum() > 0.1 else others
            np.testing.assert_allclose(means[i], w @ t[rest].numpy(), rtol=0, atol=1e-8)


def test_the_typical_eigenvalue_weighs_each_by_its_size():
    psi = points(0, 40, 3) * torch.tensor([3.0, 1.0, 0.1], dtype=torch.float64) + 5
    values = np.linalg.eigvalsh(np.cov(psi.numpy().T, bias=True))
    expected = sum(v * v for v in values) / sum(values)
    np.testing.assert_allclose(typical_eigenvalue(psi), expected, rtol=1e-9)
    assert float(typical_eigenvalue(torch.ones(5, 2, dtype=torch.float64))) == 1


def test_every_batch_member_is_tuned_by_itself():
    data = GaussianTask(dim=3, n_train=40, n_prior=30, n_test=5).trials([1000, 1001])
    whole = tune_rule(
        ImportanceWeightedRule(), data.x_train, data.z_train, Embedding.from_samples(data.z_prior)
    )
    for i in range(2):
        prior = Embedding.from_samples(data.z_prior[i])
        alone = tune_rule(ImportanceWeightedRule(), data.x_train[i], data.z_train[i], prior)
        for name in ("scale_x", "eta", "lam"):
            torch.testing.assert_close(
                getattr(whole, name)[i], getattr(alone, name), rtol=1e-5, atol=0
            )


def test_units_of_the_latents_do_not_change_the_choice():
    data = GaussianTask(dim=1, n_train=60, n_prior=30, n_test=5).trials([1000])
    first, second = (
        tune_rule(
            ImportanceWeightedRule(),
            data.x_train,
            factor * data.z_train,
            Embedding.from_samples(factor * data.z_prior),
        )
        for factor in (1.0, 1000.0)
    )
    torch.testing.assert_close(first.lam, second.lam, rtol=1e-6, atol=0)
    torch.testing.assert_close(first.scale_x, second.scale_x, rtol=1e-6, atol=0)


def error(data, rule):
    prior = Embedding.from_samples(data.z_prior)
    mean = rule.fit(data.x_train, data.z_train).posterior(data.x_test, prior).mean
    return float((mean - data.mean).square().sum(-1).mean())


@pytest.mark.parametrize("normalize", [True, False])
def test_the_tuned_rule_is_far_below_the_paper_s_settings_in_many_dimensions(normalize):
    data = GaussianTask(dim=16).trials(list(range(1000, 1006)))
    rule = ImportanceWeightedRule(normalize=normalize, ratio=KuLSIF(eta=0.2), lam=0.2)
    tuned = tune_rule(rule, data.x_train, data.z_train, Embedding.from_samples(data.z_prior))
    assert tuned.rule.normalize == normalize
    assert error(data, tuned.rule) < 0.85 * error(data, rule)
    assert error(data, tuned.rule) < 0.75 * float(data.mean.square().sum(-1).mean())


def test_tuning_asks_for_kernels_and_a_prior_on_z():
    z, prior = problem()
    with pytest.raises(KbrError, match="kernels"):
        tune_rule(ImportanceWeightedRule(kernel_x=PivotedCholesky()), z, z, prior)
    with pytest.raises(KbrError, match="prior"):
        tune_rule(ImportanceWeightedRule(), z, z[:, :2], prior)
