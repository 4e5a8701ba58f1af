"""The circular Kalman filter against Bayes' rule on a fine grid of headings."""

import math

import numpy as np
import pytest
import torch

from kbr.core.errors import KbrError
from kbr.core.filters.classical.circular import CircularKalmanFilter, circular_moments, wrap


def grid_filter(y, *, omega, sigma_z, sigma_x, size=1440):
    """E (cos, sin) and covariance at every step, by plain loops over a grid of headings."""
    grid = np.arange(size) * 2 * np.pi / size
    gap = (grid[:, None] - grid[None, :] - omega + np.pi) % (2 * np.pi) - np.pi
    move = np.exp(-0.5 * (gap / sigma_z) ** 2)
    move /= move.sum(0)
    circle = np.stack([np.cos(grid), np.sin(grid)], axis=1)
    belief, means, covs = np.full(size, 1 / size), [], []
    for t, seen in enumerate(y):
        if t > 0:
            belief = move @ belief
        if np.isfinite(seen):
            off = (grid - seen + np.pi) % (2 * np.pi) - np.pi
            belief = belief * np.exp(-0.5 * (off / sigma_x) ** 2)
            belief /= belief.sum()
        mean = belief @ circle
        means.append(mean)
        covs.append((circle * belief[:, None]).T @ circle - np.outer(mean, mean))
    return torch.tensor(np.array(means)), torch.tensor(np.array(covs))


def simulate(steps, seed, *, omega=0.4, sigma_z=0.2, sigma_x=0.2):
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0, 2 * np.pi) + np.cumsum(omega + sigma_z * rng.standard_normal(steps))
    return theta, theta + sigma_x * rng.standard_normal(steps)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_agrees_with_a_grid_filter(seed):
    settings = {"omega": 0.4, "sigma_z": 0.2, "sigma_x": 0.2}
    _, y = simulate(60, seed)
    y[[7, 8, 30]] = np.nan
    result = CircularKalmanFilter(**settings).filter(y)
    mean, cov = grid_filter(y, **settings)
    torch.testing.assert_close(result.mean, mean, rtol=0, atol=2e-3)
    torch.testing.assert_close(result.cov, cov, rtol=0, atol=2e-3)
    assert result.evidence.tolist() == np.isfinite(y).tolist()


def test_headings_are_known_up_to_whole_turns():
    """y and y + 2 pi k are the same observation, for any k at each step."""
    _, y = simulate(40, 0)
    turns = 2 * math.pi * np.random.default_rng(1).integers(-3, 4, size=40)
    model = CircularKalmanFilter(omega=0.4, sigma_z=0.2, sigma_x=0.2)
    torch.testing.assert_close(model.filter(y).mean, model.filter(y + turns).mean)


def test_the_floor_of_the_heading_task():
    """Math: P^2 + q P - q r = 0 with q = r = .04, error 1 - exp(-P) = .0244."""
    runs = [simulate(400, seed) for seed in range(40)]
    theta, y = (torch.tensor(np.array(part)) for part in zip(*runs, strict=True))
    result = CircularKalmanFilter(omega=0.4, sigma_z=0.2, sigma_x=0.2).filter(y)
    truth = torch.stack([theta.cos(), theta.sin()], dim=-1)
    error = (result.mean - truth).square().sum(-1).mean()
    assert float(error) == pytest.approx(0.0244, abs=0.0012)
    spread = result.cov.diagonal(dim1=-2, dim2=-1).sum(-1)[:, 10:]
    assert float(spread.mean()) == pytest.approx(0.0244, abs=1e-4)


def test_a_first_missing_heading_leaves_the_circle_uniform():
    model = CircularKalmanFilter(omega=0.4, sigma_z=0.2, sigma_x=0.2)
    result = model.filter([math.nan, 1.0])
    torch.testing.assert_close(result.mean[0], torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(result.cov[0], 0.5 * torch.eye(2, dtype=torch.float64))
    assert float(torch.atan2(result.mean[1, 1], result.mean[1, 0])) == pytest.approx(1.0)


@pytest.mark.parametrize(("sigma_z", "sigma_x"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.2)])
def test_noise_of_zero(sigma_z, sigma_x):
    """Exact headings are followed exactly; an exact turn is averaged over all steps."""
    theta, y = simulate(50, 0, sigma_z=sigma_z, sigma_x=sigma_x)
    result = CircularKalmanFilter(omega=0.4, sigma_z=sigma_z, sigma_x=sigma_x).filter(y)
    truth = torch.tensor([math.cos(theta[-1]), math.sin(theta[-1])], dtype=torch.float64)
    assert result.mean.isfinite().all()
    assert (result.mean[-1] - truth).norm() < (0.1 if sigma_x else 1e-9)


def test_batches_and_types():
    y = torch.rand(2, 3, 5, dtype=torch.float32)
    model = CircularKalmanFilter(omega=0.4, sigma_z=0.2, sigma_x=0.2)
    result = model.filter(y)
    assert result.mean.shape == (2, 3, 5, 2)
    assert result.cov.shape == (2, 3, 5, 2, 2)
    assert result.mean.dtype == torch.float32
    torch.testing.assert_close(result.mean[1, 2], model.filter(y[1, 2]).mean)


def test_moments_of_a_wrapped_normal():
    theta = 1.2 + 0.7 * torch.randn(
        400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    z = torch.stack([theta.cos(), theta.sin()], dim=-1)
    mean, cov = circular_moments(
        torch.tensor(1.2, dtype=torch.float64), torch.tensor(0.49, dtype=torch.float64)
    )
    torch.testing.assert_close(mean, z.mean(0), rtol=0, atol=4e-3)
    torch.testing.assert_close(cov, z.mT.cov(), rtol=0, atol=4e-3)


def test_wrapping():
    angles = torch.tensor([0.0, 3.0, 4.0, -4.0, 7 * math.pi + 0.1])
    expected = torch.tensor([0.0, 3.0, 4 - 2 * math.pi, 2 * math.pi - 4, 0.1 - math.pi])
    torch.testing.assert_close(wrap(angles), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"sigma_x": -1.0}, "sigma_x"),
        ({"sigma_z": math.nan}, "sigma_z"),
        ({"omega": math.inf}, "omega"),
    ],
)
def test_bad_settings_are_named(settings, name):
    with pytest.raises(KbrError, match=name):
        CircularKalmanFilter(**{"omega": 0.4, "sigma_z": 0.2, "sigma_x": 0.2, **settings})


def test_a_sequence_needs_a_step():
    with pytest.raises(KbrError, match="T > 0"):
        CircularKalmanFilter(omega=0.4, sigma_z=0.2, sigma_x=0.2).filter(torch.zeros(3, 0))
