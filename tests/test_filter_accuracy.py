"""How close the kernel Bayes filter comes to filters that know the model."""

import time

import pytest
import torch

from kbr import (
    ImportanceWeightedRule,
    KalmanFilter,
    KernelBayesFilter,
    ParticleFilter,
    StateSpaceModel,
)
from kbr.core.datasets.dynamics import Oscillatory, Rotation

TURN = 0.95 * torch.tensor([[0.9, 0.3], [-0.3, 0.9]], dtype=torch.float64)
NOISE = 0.3


def linear_sequences(length, seed, batch=()):
    """A damped, noisy rotation of which the first coordinate is observed."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    z, path = torch.zeros(*batch, 2, dtype=torch.float64), []
    for _ in range(100 + length):
        z = z @ TURN.mT + NOISE * torch.randn(*batch, 2, **options)
        path.append(z)
    latents = torch.stack(path[100:], -2)
    return latents[..., :1] + NOISE * torch.randn(*batch, length, 1, **options), latents


def linear_model():
    eye = torch.eye(2, dtype=torch.float64)
    stationary = eye
    for _ in range(500):
        stationary = TURN @ stationary @ TURN.mT + NOISE**2 * eye
    return StateSpaceModel(
        transition=lambda z: z @ TURN.to(z).mT,
        observation=lambda z: z[..., :1],
        transition_cov=NOISE**2 * eye,
        observation_cov=NOISE**2 * eye[:1, :1],
        initial_mean=torch.zeros(2, dtype=torch.float64),
        initial_cov=stationary,
    )


def error(mean, z):
    return float((mean - z).square().sum(-1).mean())


def test_error_approaches_the_kalman_filter():
    """Half the latent is hidden; the excess over the exact filter shrinks with n."""
    x, z = linear_sequences(100, 9, (30,))
    exact = error(KalmanFilter(model=linear_model()).filter(x).mean, z)
    excess = []
    for n in (75, 300, 1200):
        errors = []
        for seed in range(3):
            filt = KernelBayesFilter(scales=(1.0, 2.0), lams=(1e-4, 1e-3, 1e-2))
            errors.append(error(filt.fit(*linear_sequences(n, seed)).filter(x).mean, z))
        excess.append(sum(errors) / 3 / exact - 1)
    assert excess[0] > excess[1] > excess[2] > 0
    assert excess[2] < 0.1


@pytest.mark.parametrize("dynamics", [Rotation(), Oscillatory()], ids=["rotation", "oscillatory"])
def test_smoothing_beats_filtering(dynamics):
    """Four data sets, fitted together."""
    made = [dynamics.generate(n_train=500, n_test=200, seed=seed) for seed in range(4)]
    x, z, x_test, z_test = (
        torch.stack([getattr(data, name) for data in made])
        for name in ("x_train", "z_train", "x_test", "z_test")
    )
    filt = KernelBayesFilter(rule=ImportanceWeightedRule(lam=1e-2), scales=(1.0,)).fit(x, z)
    filtered, smoothed = (
        (run(x_test).mean - z_test).square().sum(-1).mean(-1) for run in (filt.filter, filt.smooth)
    )
    assert smoothed.sum() < 0.97 * filtered.sum()
    assert smoothed.max() < filtered.max()


def test_whole_grid_takes_seconds():
    """Fit, tuning over the default grid and 200 filter steps at n = 900."""
    data = Rotation().generate(n_train=900, n_test=200, seed=0)
    start = time.process_time()
    filt = KernelBayesFilter().fit(data.x_train, data.z_train)
    filt.filter(data.x_test)
    assert time.process_time() - start < 20


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 500, 900])
@pytest.mark.parametrize(
    ("dynamics", "bounds"),
    [
        (Rotation(), {300: 1.10, 500: 1.08, 900: 1.06}),
        (Oscillatory(), {300: 1.14, 500: 1.14, 900: 1.09}),
    ],
    ids=["rotation", "oscillatory"],
)
def test_error_over_the_particle_filter(dynamics, bounds, n):
    """Mean test error over 20 seeds, against a particle filter that knows the model."""
    learned, known = 0.0, 0.0
    for seed in range(20):
        data = dynamics.generate(n_train=n, n_test=200, seed=seed)
        filt = KernelBayesFilter().fit(data.x_train, data.z_train)
        learned += error(filt.filter(data.x_test).mean, data.z_test)
        particle = ParticleFilter(model=dynamics.state_space())
        known += error(particle.filter(data.x_test).mean, data.z_test)
    assert learned / known <= bounds[n], learned / known


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", [Rotation(), Oscillatory()], ids=["rotation", "oscillatory"])
def test_normalised_filter_is_no_worse_than_the_papers(dynamics):
    """Over 20 seeds at n = 300: normalising the ratio and the weights does not cost accuracy."""
    total = {"ours": 0.0, "paper": 0.0}
    for seed in range(20):
        data = dynamics.generate(n_train=300, n_test=200, seed=seed)
        plain = KernelBayesFilter(rule=ImportanceWeightedRule(normalize=False), widths=(1.0,))
        for name, filt in (("ours", KernelBayesFilter()), ("paper", plain)):
            mean = filt.fit(data.x_train, data.z_train).filter(data.x_test).mean
            total[name] += error(mean, data.z_test)
    assert total["ours"] <= total["paper"]
