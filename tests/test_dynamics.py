"""The ring dynamics against the paper's equation, written as a plain loop."""

import math

import pytest
import torch

from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.errors import KbrError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def paper_step(u, v, *, omega, beta, m):
    """Equation (dynamics) of section 5.2, with theta from its cosine and sine, in [0, 2 pi]."""
    norm = math.sqrt(u**2 + v**2)
    theta = math.acos(max(-1.0, min(1.0, u / norm)))
    if v < 0:
        theta = 2 * math.pi - theta
    radius = 1 + beta * math.sin(m * theta)
    return radius * math.cos(theta + omega), radius * math.sin(theta + omega)


@pytest.mark.parametrize(
    ("task", "omega", "beta", "m"),
    [
        (Oscillatory(), 0.4, 0.4, 8),
        (Rotation(), 0.3, 0.0, 8),
        (Oscillatory(omega=-1.0, beta=0.9, frequency=3), -1.0, 0.9, 3),
    ],
)
def test_step_is_the_equation_of_the_paper(task, omega, beta, m):
    z = torch.randn(50, 4, 2, generator=generator(), dtype=torch.float64)
    want = [[paper_step(u, v, omega=omega, beta=beta, m=m) for u, v in row] for row in z.tolist()]
    torch.testing.assert_close(task.step_mean(z), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("task", [Oscillatory(), Rotation()])
def test_sequences_follow_the_equation_with_the_stated_noise(task):
    """What is left of z_t+1 and of x_t is white noise of 0.2 in each coordinate."""
    x, z = task.sample(400, generator(), (50,))
    assert x.shape == z.shape == (50, 400, 2)
    assert x.dtype == z.dtype == torch.float64
    for noise in (z[:, 1:] - task.step_mean(z[:, :-1]), x - z):
        assert abs(float(noise.std()) - 0.2) < 0.003
        assert float(noise.mean().abs()) < 0.005
        neighbours = (noise[:, 1:] * noise[:, :-1]).mean() / 0.04
        assert float(neighbours.abs()) < 0.03


def test_without_noise_the_sequence_is_exact():
    task = Oscillatory(sigma_x=0.0, sigma_z=0.0)
    x, z = task.sample(30, generator())
    torch.testing.assert_close(x, z, atol=0, rtol=0)
    for now, then in zip(z[:-1].tolist(), z[1:].tolist(), strict=True):
        assert then == pytest.approx(paper_step(*now, omega=0.4, beta=0.4, m=8))


@pytest.mark.parametrize("task", [Oscillatory(), Rotation()])
def test_sequences_are_stationary_and_the_model_knows_their_moments(task):
    model = task.state_space()
    z = task.latents(60, generator(1), (4000,))
    for step in (0, 59):
        torch.testing.assert_close(z[:, step].mean(0), model.initial_mean, atol=0.05, rtol=0)
        torch.testing.assert_close(z[:, step].mT.cov(), model.initial_cov, atol=0.04, rtol=0)
    if task.beta == 0:
        eye = torch.eye(2, dtype=torch.float64)
        torch.testing.assert_close(model.initial_cov, 0.54 * eye, atol=0.02, rtol=0)


@pytest.mark.parametrize("task", [Oscillatory(), Rotation()])
def test_particles_start_on_the_ring(task):
    draws = task.state_space().draw_initial((3, 4000), generator())
    assert draws.shape == (3, 4000, 2)
    radius = draws.norm(dim=-1)
    wanted = task.latents(1, generator(1), (12_000,)).norm(dim=-1)
    quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    got, want = radius.flatten().quantile(quantiles), wanted.flatten().quantile(quantiles)
    torch.testing.assert_close(got, want, atol=0.06, rtol=0)
    torch.testing.assert_close(draws.mean((0, 1)), torch.zeros(2).double(), atol=0.05, rtol=0)


def test_rotation_is_oscillatory_without_the_oscillation():
    assert Rotation() == Rotation(omega=0.3, beta=0.0)
    same = Oscillatory(omega=0.3, beta=0.0)
    torch.testing.assert_close(Rotation().sample(9, generator())[0], same.sample(9, generator())[0])


def test_latents_are_those_of_sample():
    task = Oscillatory()
    want = task.sample(20, generator(), (2,))[1]
    torch.testing.assert_close(task.latents(20, generator(), (2,)), want)


def test_generate_gives_independent_repeatable_sequences():
    task = Oscillatory()
    data = task.generate(n_train=30, n_test=20, seed=3, batch=(2, 2))
    assert data.x_train.shape == data.z_train.shape == (2, 2, 30, 2)
    assert data.x_test.shape == data.z_test.shape == (2, 2, 20, 2)
    again = task.generate(n_train=30, n_test=20, seed=generator(3), batch=(2, 2))
    torch.testing.assert_close(again.x_test, data.x_test, atol=0, rtol=0)
    assert (task.generate(n_train=30, seed=4).x_train != data.x_train[0, 0]).all()
    long = task.generate(n_train=2000, n_test=2000, seed=0, batch=(4,))
    train, test = long.z_train.flatten(0, 1), long.z_test.flatten(0, 1)
    assert float((train.mT @ test / len(train)).abs().max()) < 0.1
    assert task.generate(n_train=1).x_test.shape == (200, 2)


def test_the_origin_has_a_value_and_a_derivative():
    task = Oscillatory()
    z = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    task.step_mean(z).sum().backward()
    assert torch.isfinite(z.grad).all()
    want = torch.tensor([math.cos(0.4), math.sin(0.4)], dtype=torch.float64)
    torch.testing.assert_close(task.step_mean(z.detach()), want)


@pytest.mark.parametrize("name", ["sigma_x", "sigma_z"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_noise_levels_are_checked_by_name(name, value):
    with pytest.raises(KbrError, match=f"{name} must be finite and at least zero.*Set {name}"):
        Oscillatory(**{name: value})


def test_other_settings_are_checked_by_name():
    with pytest.raises(KbrError, match="omega"):
        Rotation(omega=math.nan)
    with pytest.raises(KbrError, match="beta"):
        Oscillatory(beta=math.inf)
    with pytest.raises(KbrError, match="frequency must be a whole number"):
        Oscillatory(frequency=2.5)
    task = Oscillatory()
    with pytest.raises(KbrError, match="length must be a whole number, at least 1; got 0"):
        task.sample(0, generator())
    with pytest.raises(KbrError, match="length"):
        task.latents(-3, generator())
    with pytest.raises(KbrError, match="batch"):
        task.latents(3, generator(), (-1,))
    with pytest.raises(KbrError, match="n_train"):
        task.generate(n_train=0)
    with pytest.raises(KbrError, match="n_test"):
        task.generate(n_train=5, n_test=-1)


def test_settings_are_frozen_and_keyword_only():
    with pytest.raises(AttributeError):
        Oscillatory().omega = 1.0
    with pytest.raises(TypeError):
        Oscillatory(0.4)


@pytest.mark.parametrize("task", [Oscillatory(), Rotation()])
def test_trials_are_those_of_their_seeds(task):
    together = task.trials(n_train=12, n_test=5, seeds=[3, 0, 7])
    for k, seed in enumerate([3, 0, 7]):
        alone = task.generate(n_train=12, n_test=5, seed=seed)
        for name, rows in vars(alone).items():
            torch.testing.assert_close(getattr(together, name)[k], rows)


def test_a_task_that_draws_otherwise_has_its_own_trials():
    class Shifted(Rotation):
        def sample(self, length, generator, batch=()):
            x, z = super().sample(length, generator, batch)
            return x + 10, z

    together = Shifted().trials(n_train=4, n_test=3, seeds=[1])
    assert float(together.x_train.mean()) > 5
