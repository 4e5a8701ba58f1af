"""The posterior-mean task against a numerical Bayes rule."""

import math

import numpy as np
import pytest
import torch

from kbr.core.datasets.gaussian import GaussianTask
from kbr.core.errors import KbrError


def generate(seed=0, **options):
    return GaussianTask(**options).generate(torch.Generator().manual_seed(seed))


def test_the_exact_posterior_is_that_of_bayes_rule_on_a_grid():
    """The likelihood comes from regressing x on z over many samples, the rest from quadrature."""
    data = generate(dim=1, n_train=400_000, n_prior=2, n_test=20)
    x, z = data.x_train[:, 0].numpy(), data.z_train[:, 0].numpy()
    slope, intercept = np.polyfit(z, x, 1)
    noise = np.var(x - slope * z - intercept)
    grid = np.linspace(-8, 8, 4001)
    prior = np.exp(-(grid**2) / float(data.latent_cov))  # N(0, V_ZZ / 2)
    for query, mean in zip(data.x_test[:, 0].numpy(), data.mean[:, 0].numpy(), strict=True):
        density = prior * np.exp(-((query - slope * grid - intercept) ** 2) / (2 * noise))
        density /= density.sum()
        exact = (density * grid).sum()
        assert abs(exact - mean) < 0.02
        assert abs((density * (grid - exact) ** 2).sum() - float(data.cov)) < 0.02


def test_the_posterior_of_many_coordinates_is_the_information_form():
    """Precisions add: Sigma^-1 = S^-1 + H' R^-1 H, Sigma^-1 mu = H' R^-1 (x - 1)."""
    data = generate(dim=3, n_train=400_000, n_prior=2, n_test=5)
    x, z = data.x_train.numpy(), data.z_train.numpy()
    design = np.column_stack([z, np.ones(len(z))])
    solution, *_ = np.linalg.lstsq(design, x, rcond=None)
    h, noise = solution[:3].T, np.cov((x - design @ solution).T)
    s = data.latent_cov.numpy() / 2
    cov = np.linalg.inv(np.linalg.inv(s) + h.T @ np.linalg.inv(noise) @ h)
    mean = (data.x_test.numpy() - 1) @ (cov @ h.T @ np.linalg.inv(noise)).T
    np.testing.assert_allclose(data.cov, cov, atol=0.02)
    np.testing.assert_allclose(data.mean, mean, atol=0.03)


def test_samples_have_the_moments_of_the_paper():
    data = generate(dim=2, n_train=200_000, n_prior=200_000, n_test=200_000)
    assert (data.x_train.mean(0) - 1).abs().max() < 0.02
    assert data.z_train.mean(0).abs().max() < 0.02
    assert data.x_test.mean(0).abs().max() < 0.02
    torch.testing.assert_close(data.z_train.mT.cov(), data.latent_cov, atol=0.05, rtol=0)
    torch.testing.assert_close(data.z_prior.mT.cov(), data.latent_cov / 2, atol=0.05, rtol=0)
    torch.testing.assert_close(data.x_test.mT.cov(), data.x_train.mT.cov(), atol=0.05, rtol=0)


def test_the_ratio_is_that_of_the_two_densities():
    data = generate(dim=2, n_train=5)
    v = data.latent_cov.numpy()

    def density(z, cov):
        norm = math.sqrt((2 * math.pi) ** 2 * np.linalg.det(cov))
        return math.exp(-0.5 * z @ np.linalg.inv(cov) @ z) / norm

    expected = [density(z, v / 2) / density(z, v) for z in data.z_train.numpy()]
    np.testing.assert_allclose(data.ratio(data.z_train), expected, rtol=1e-12)


def test_the_ratio_averages_one_under_the_training_law():
    data = generate(dim=2, n_train=200_000)
    assert abs(float(data.ratio(data.z_train).mean()) - 1) < 0.02


def test_trials_are_the_data_sets_of_their_seeds():
    task = GaussianTask(dim=3, n_train=6, n_prior=5, n_test=4)
    stacked = task.trials([4, 0])
    assert stacked.x_train.shape == (2, 6, 3)
    assert stacked.cov.shape == (2, 3, 3)
    for row, seed in enumerate([4, 0]):
        alone = task.generate(torch.Generator().manual_seed(seed))
        assert torch.equal(stacked.x_train[row], alone.x_train)
        assert torch.equal(stacked.mean[row], alone.mean)
        torch.testing.assert_close(stacked.ratio(stacked.z_train)[row], alone.ratio(alone.z_train))


@pytest.mark.parametrize("name", ["dim", "n_train", "n_prior", "n_test"])
def test_sizes_below_one_are_named(name):
    with pytest.raises(KbrError, match=f"{name} must be at least 1; got 0"):
        GaussianTask(**{name: 0})
