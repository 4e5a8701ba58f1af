"""Regions, scores and calibration against closed forms, Monte Carlo and the promise itself."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from kbr import Embedding, ImportanceWeightedRule, KbrError, KernelBayesFilter
from kbr.core.datasets.dynamics import Rotation
from kbr.core.uncertainty import growth
from kbr.core.uncertainty.calibration import calibrate
from kbr.core.uncertainty.growth import distances, places_of
from kbr.core.uncertainty.regions import (
    chi2_quantile,
    coverage,
    credible_region,
    crps,
    energy_score,
    gaussian_crps,
    gaussian_energy_score,
    gaussian_pit,
    marginal_density,
    modes,
    pit,
    squared_mahalanobis,
)
from kbr.core.units.scaling import Scaling


def normal(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def gaussian(seed, steps, dz):
    root = normal(seed, steps, dz, dz) / math.sqrt(dz)
    cov = root @ root.mT + 0.1 * torch.eye(dz, dtype=torch.float64)
    mean = normal(seed + 1, steps, dz)
    draw = torch.linalg.cholesky(cov) @ normal(seed + 2, steps, dz, 1)
    return mean, cov, mean + draw.squeeze(-1)


@pytest.mark.parametrize("dof", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("level", [0.01, 0.5, 0.9, 0.999])
def test_chi_square_quantiles(dof, level):
    assert chi2_quantile(level, dof) == pytest.approx(stats.chi2.ppf(level, dof), rel=1e-9)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_gaussian_regions_hold_their_share(level):
    mean, cov, z = gaussian(0, 20_000, 3)
    assert float(coverage(mean, cov, z, level=level)) == pytest.approx(level, abs=0.012)


def test_volume_of_a_disc():
    region = credible_region(torch.zeros(2).double(), 4 * torch.eye(2).double(), level=0.9)
    area = math.pi * 4 * chi2_quantile(0.9, 2)
    assert float(region.log_volume) == pytest.approx(math.log(area), rel=1e-6)


def test_flat_covariances_give_finite_distances():
    cov = torch.zeros(2, 2, 2, dtype=torch.float64)
    cov[1, 0, 0] = 1.0
    mean = torch.zeros(2, 2, dtype=torch.float64)
    assert squared_mahalanobis(mean, cov, mean).eq(0).all()
    assert coverage(mean, cov, mean + 1, level=0.9) == 0


def test_scores_of_weights_equal_double_loops():
    points, w = normal(0, 9, 2), torch.rand(9, dtype=torch.float64)
    z, p, w = normal(1, 2), normal(0, 9, 2).numpy(), (w / w.sum())
    belief, v = Embedding(points, w), w.numpy()
    expected = sum(
        sum(v[i] * abs(p[i, k] - float(z[k])) for i in range(9))
        - 0.5 * sum(v[i] * v[j] * abs(p[i, k] - p[j, k]) for i in range(9) for j in range(9))
        for k in range(2)
    )
    assert float(crps(belief, z)) == pytest.approx(expected)
    expected = sum(v[i] * np.linalg.norm(p[i] - z.numpy()) for i in range(9)) - 0.5 * sum(
        v[i] * v[j] * np.linalg.norm(p[i] - p[j]) for i in range(9) for j in range(9)
    )
    assert float(energy_score(belief, z)) == pytest.approx(expected)
    below = [sum(v[i] for i in range(9) if p[i, k] < float(z[k])) for k in range(2)]
    np.testing.assert_allclose(pit(belief, z), below)


def test_scores_of_gaussians_are_those_of_many_samples():
    mean, cov, z = gaussian(3, 1, 2)
    draws = mean + normal(9, 3000, 2) @ torch.linalg.cholesky(cov[0]).mT
    sample = Embedding.from_samples(draws)
    assert float(gaussian_crps(mean, cov, z)) == pytest.approx(float(crps(sample, z[0])), abs=0.05)
    by_draws = float(energy_score(sample, z[0]))
    assert float(gaussian_energy_score(mean, cov, z)) == pytest.approx(by_draws, abs=0.12)


def test_scores_prefer_the_truth():
    mean, cov, z = gaussian(5, 4000, 2)
    for score in (gaussian_crps, gaussian_energy_score):
        best = score(mean, cov, z).mean()
        for other in (score(mean, 4 * cov, z), score(mean, cov / 4, z), score(mean + 0.5, cov, z)):
            assert best < other.mean()


def test_pit_of_the_truth_is_uniform():
    mean, cov, z = gaussian(7, 4000, 1)
    assert stats.kstest(gaussian_pit(mean, cov, z).flatten().numpy(), "uniform").pvalue > 0.01


def test_marginal_density_has_area_one_and_its_modes():
    left, right = normal(0, 300, 2) * 0.2 - 2, normal(1, 600, 2) * 0.2 + 2
    grid = torch.linspace(-4, 4, 400, dtype=torch.float64)
    density = marginal_density(Embedding.from_samples(torch.cat([left, right])), grid, coordinate=0)
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1)
    found = modes(density, grid)
    assert found[0] == pytest.approx(2, abs=0.3)
    assert found[1] == pytest.approx(-2, abs=0.3)


@pytest.mark.parametrize("wrong", [0.05, 1.0, 30.0])
def test_calibration_mends_any_scale(wrong):
    mean, cov, z = gaussian(11, 4000, 2)
    made = calibrate([(mean[:2000], wrong * cov[:2000], z[:2000])])
    rest, since = slice(2000, None), torch.zeros(2000)
    for level in (0.5, 0.9, 0.95):
        inside = made.region(mean[rest], wrong * cov[rest], since, level=level).contains(z[rest])
        assert float(inside.double().mean()) == pytest.approx(level, abs=0.025)
    assert float(
        coverage(mean[rest], made.cov(wrong * cov[rest], since), z[rest], level=0.9)
    ) == pytest.approx(0.9, abs=0.02)
    if wrong == 1.0:
        assert float(made.factor) == pytest.approx(1, abs=0.1)
        assert float(made.blend) <= 0.03  # good covariances are kept


def test_calibration_gives_up_on_flat_covariances():
    mean, cov, z = gaussian(13, 400, 2)
    made, since = calibrate([(mean, torch.zeros_like(cov), z)]), torch.zeros(400)
    assert float(made.blend) > 0
    inside = made.region(mean, torch.zeros_like(cov), since).contains(z)
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.01)
    volume = made.region(mean, 0 * cov, since).log_volume
    assert float(volume.max()) < 6  # and the regions are of use


def test_errors_that_grow_with_the_distance_have_regions_that_do():
    """Held-out steps of which few are far away, then as many near as far."""
    places = normal(20, 50, 2)
    away = torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(21)) ** 4
    mean = places[0] + normal(22, 4000, 2)
    error = 0.1 * (1 + (away / 0.1).square()).sqrt().unsqueeze(-1) * normal(23, 4000, 2)
    parts = [(mean, 1e-6 * torch.eye(2, dtype=torch.float64).expand(4000, 2, 2), mean + error)]
    made = calibrate(parts, away=[away], places=places)
    assert 0.07 < float(made.growth.doubling) < 0.14
    torch.testing.assert_close(made.rms[0], error.square().mean(0).sqrt())
    known = places[:25].repeat(80, 1)  # distance nought
    far = 30 + torch.rand(2000, 2, dtype=torch.float64)
    reach = torch.cdist(far, places).amin(-1)
    grown = 0.1 * (1 + (reach / 0.1).square()).sqrt().unsqueeze(-1)
    since, flat = torch.zeros(2000), torch.zeros(2000, 2, 2, dtype=torch.float64)
    for at, wide in ((known, 0.1), (far, grown)):
        z = at + wide * normal(24, 2000, 2)
        inside = made.region(at, flat, since, inner=at).contains(z)
        assert 0.8 < float(inside.double().mean()) < 0.97
        inside = made.region(at, flat, since).contains(z).double().mean()  # as if all were known
        assert float(inside) > 0.8 if at is known else float(inside) < 0.1


def test_distances_are_those_from_the_nearest_place(monkeypatch):
    z, at = normal(30, 2, 1500, 3), normal(31, 2, 40, 3)
    places = places_of(z)
    assert places.shape == (2, growth.PLACES, 3)
    assert torch.equal(places_of(z[:, :7]), z[:, :7])
    monkeypatch.setattr(growth, "AT_ONCE", 7)
    found = distances(at, places)
    for b in range(2):
        for t in range(0, 40, 9):
            nearest = min(float((at[b, t] - place).norm()) for place in places[b])
            assert float(found[b, t]) == pytest.approx(nearest)
    turns = Scaling.fit(torch.tensor([[10.0], [90.0], [200.0], [359.0]]), [True])
    inner = turns.apply(torch.tensor([[1.0], [359.0], [90.0]]))
    assert float(distances(inner[:1], inner[1:2])) < 0.1 < float(distances(inner[:1], inner[2:]))


def test_levels_outside_zero_and_one_are_refused():
    mean, cov, z = gaussian(0, 20, 2)
    for level in (0.0, 1.0, -1.0, 90.0):
        with pytest.raises(KbrError, match="level"):
            credible_region(mean, cov, level=level)
        with pytest.raises(KbrError, match="level"):
            calibrate([(mean, cov, z)]).radius2(level)


def test_calibration_sees_training_data_only_and_batches_like_a_loop():
    made = [Rotation().generate(n_train=90, n_test=30, seed=s) for s in range(2)]
    x, z, x_test = (
        torch.stack([getattr(m, k) for m in made]) for k in ("x_train", "z_train", "x_test")
    )
    rule = ImportanceWeightedRule(lam=1e-2)
    filt = KernelBayesFilter(rule=rule, eta=1e-4, scales=(1.0,)).fit(x, z)
    cov = filt.filter(x_test).cov
    for i in range(2):
        one = KernelBayesFilter(rule=rule, eta=1e-4, scales=(1.0,)).fit(x[i], z[i])
        alone = one.filter(x_test[i]).cov
        torch.testing.assert_close(cov[i], alone, rtol=0, atol=1e-6)
        before = one.calibration.scores
        one.filter(x_test[i])
        assert torch.equal(one.calibration.scores, before)
    belief = one.step(one.init(), x_test[1, 0])
    assert one.credible_region(belief).contains(belief.mean)


def test_too_short_a_sequence_cannot_be_calibrated():
    rule = ImportanceWeightedRule(lam=1e-2)
    filt = KernelBayesFilter(rule=rule, eta=1e-3, scales=(1.0,))
    filt.fit(torch.rand(4, 1), torch.rand(4, 1))
    assert filt.calibration is None
    out = filt.filter(torch.rand(3, 1))
    assert torch.equal(out.cov, out.raw_cov)
