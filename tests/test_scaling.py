"""Scaling: mean 0 and variance 1 inside, angles as (cos, sin), undone with moments."""

import numpy as np
import pytest
import torch

from kbr.core.errors import KbrError
from kbr.core.units.scaling import Scaling


@pytest.mark.parametrize("size", [1e-200, 1e-3, 1e200])
def test_numbers_of_any_size_are_scaled(size):
    values = torch.from_numpy(size * (1 + np.random.default_rng(0).random((50, 2))))
    scaling = Scaling.fit(values)
    inner = scaling.apply(values)
    assert inner.mean(0).abs().max() < 1e-9
    torch.testing.assert_close(inner.std(0, correction=0), torch.ones(2).double())


def test_undoing_gives_moments_of_the_recorded_values():
    """Moments of scaled samples, scaled back, equal the moments of the samples themselves."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) * [1, 50, 1e-3] + [0, 7, 1]
    scaling = Scaling.fit(torch.from_numpy(values[:200]))
    mean, cov = scaling.undo(*moments(scaling.apply(torch.from_numpy(values))))
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-9)
    np.testing.assert_allclose(cov, np.cov(values.T), rtol=1e-8)


@pytest.mark.parametrize(("turn", "unit"), [(360.0, 180 / np.pi), (2 * np.pi, 1.0)])
@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_an_angle_comes_back_with_its_mean_and_variance(turn, unit, spread):
    """A normal angle around the jump: wrapped, its mean and sd return (exact in the limit)."""
    rng = np.random.default_rng(1)
    angle = unit * (np.pi - 0.1 + spread * rng.normal(size=100_000))
    wrapped = (angle + turn / 2) % turn - turn / 2
    values = np.stack([rng.normal(size=len(angle)) + angle / unit, wrapped], 1)
    scaling = Scaling.fit(torch.from_numpy(values), (False, True), turn)
    mean, cov = scaling.undo(*moments(scaling.apply(torch.from_numpy(values))))
    assert float(mean[1]) / unit == pytest.approx(np.pi - 0.1, abs=0.02)
    assert float(cov[1, 1]) ** 0.5 / unit == pytest.approx(spread, rel=0.02)
    if spread < 0.5:
        assert float(cov[0, 1]) / unit == pytest.approx(spread**2, rel=0.1)
    assert torch.linalg.eigvalsh(cov).min() > 0


def test_an_angle_nothing_is_known_about_has_the_variance_of_a_uniform_one():
    circle = torch.linspace(-180, 179, 360, dtype=torch.float64)[:, None]
    scaling = Scaling.fit(circle, (True,))
    _, cov = scaling.undo(*moments(scaling.apply(circle)))
    assert float(cov[0, 0]) == pytest.approx(180**2 / 3, rel=1e-6)


def test_errors_of_angles_are_wrapped_and_ranges_kept():
    scaling = Scaling.fit(torch.tensor([[10.0], [350.0], [200.0]]).double(), (True,))
    mean = torch.tensor([[359.0], [1.0]]).double()
    truth = scaling.nearest(torch.tensor([[2.0], [358.0]]).double(), mean)
    assert (truth - mean).flatten().tolist() == [3.0, -3.0]
    inner = scaling.apply(torch.tensor([[350.0]]).double())
    back, _ = scaling.undo(*moments(inner.expand(3, -1)))
    assert float(back) == pytest.approx(350.0)


def test_a_column_too_few_is_not_repeated():
    scaling = Scaling.fit(torch.randn(20, 3, dtype=torch.float64), (False, True, False))
    for shape in [(), (1,), (5, 2), (5, 4)]:
        with pytest.raises(KbrError, match=r"x has 3 column\(s\)"):
            scaling.apply(torch.zeros(shape), "x")
    frames = Scaling.fit(torch.randn(20, 3, 4, dtype=torch.float64))  # one scale for all pixels
    assert frames.apply(torch.zeros(5, 3, 4)).shape == (5, 3, 4)


def moments(inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of samples."""
    dz = inner.shape[1]
    return inner.mean(0), inner.mT.cov().reshape(dz, dz)
