"""Regression on single observations and the Kalman filter over it, against what they must do."""

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.neighbors import KNeighborsRegressor

from kbr.app.baselines.frames import TunedFrames, folds_of, spaced
from kbr.app.baselines.kalman import KalmanRegression, Motion
from kbr.core.errors import KbrError
from kbr.core.units.scaling import Scaling
from kbr.core.units.units import Units

GRID = {"n_neighbors": [1, 5, 25]}


def walks(rng, count=6, rows=80, noise=1.0):
    """Smooth paths z, an offset of 1e6, and x = z and noise in units far apart."""
    angle = rng.uniform(0, 6, (count, 1, 1)) + 0.1 * np.arange(rows)[None, :, None]
    z = 1e6 + 3 * np.sin(angle + 0.02 * np.cumsum(rng.normal(size=angle.shape), 1))
    x = np.concatenate([1e-3 * (z - 1e6 + noise * rng.normal(size=z.shape)), 0 * z + 5e5], -1)
    x[..., 1] += 1e5 * rng.normal(size=z.shape[:2])  # tells nothing
    return x.reshape(-1, 2), z.reshape(-1, 1), [rows] * count


def coverage(mean, cov, z):
    radius = 1.645 * np.sqrt(np.asarray(cov)[:, 0, 0])
    return float(np.mean(np.abs(np.asarray(mean) - z)[:, 0] <= radius))


def test_folds_are_whole_sequences_or_thirds():
    np.testing.assert_array_equal(folds_of([2, 1, 3, 1]), [0, 0, 1, 2, 2, 2, 0])
    np.testing.assert_array_equal(folds_of([4, 2]), [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(spaced(10, 3), [0, 4, 9])


def test_settings_are_chosen_and_regions_hold_what_they_promise():
    x, z, lengths = walks(np.random.default_rng(1000))
    model = TunedFrames(estimator=KNeighborsRegressor(), grid=GRID)
    model.fit(x, z, lengths)
    assert model.chosen == {"n_neighbors": 25}  # x is noisy: one neighbour is a poor guess
    x_new, z_new, _ = walks(np.random.default_rng(1001))
    assert 0.8 < coverage(*model.filter(x_new), z_new) < 0.98


def test_the_last_answer_stands_less_certain_with_every_missing_row():
    x, z, lengths = walks(np.random.default_rng(1000))
    model = TunedFrames(estimator=KNeighborsRegressor(), grid={"n_neighbors": [5]})
    model.fit(x, z, lengths)
    seen = x[:6].copy()
    seen[[0, 3, 4]] = np.nan
    mean, cov = model.filter(seen)
    np.testing.assert_allclose(mean[0], z.mean(0), rtol=1e-9)
    np.testing.assert_allclose(mean[4], mean[2])
    assert cov[2, 0, 0] < cov[3, 0, 0] < cov[4, 0, 0]
    assert cov[5, 0, 0] == pytest.approx(float(cov[2, 0, 0]))
    np.testing.assert_allclose(cov[0, 0, 0], z.var(), rtol=0.01)


def test_an_angle_is_an_angle():
    """Headings around a full turn: no answer lies half way round."""
    rng = np.random.default_rng(1000)
    yaw = 360 * rng.random((300, 1))
    x = np.hstack([np.cos(np.radians(yaw)), np.sin(np.radians(yaw))])
    units = Units(Scaling.fit(torch.from_numpy(x)), Scaling.fit(torch.from_numpy(yaw), [True]))
    model = TunedFrames(estimator=KNeighborsRegressor(), grid=GRID)
    model.fit(x, yaw, [100, 100, 100], units)
    mean, _ = model.filter(x)
    missed = (mean.numpy() - yaw + 180) % 360 - 180
    assert np.abs(missed).max() < 15


def test_settings_that_cannot_be_are_refused_by_name():
    x, z, lengths = walks(np.random.default_rng(1000), rows=6)
    for grid, words in (
        ({"neighbours": [1, 2]}, r"model\.grid: Invalid parameter 'neighbours'"),
        ({"n_neighbors": [100, 200]}, r"no setting can be fitted to these rows"),
    ):
        with pytest.raises(KbrError, match=words):
            TunedFrames(estimator=KNeighborsRegressor(), grid=grid).fit(x, z, lengths)
    few = TunedFrames(estimator=KNeighborsRegressor(), grid={"n_neighbors": [2, 100]})
    few.fit(x, z, lengths)
    assert few.chosen == {"n_neighbors": 2}


def test_the_filter_is_better_than_single_rows_and_the_smoother_than_the_filter():
    x, z, lengths = walks(np.random.default_rng(1000), rows=60)
    x_new, z_new, new = walks(np.random.default_rng(1002), count=3, rows=60)
    errors, shares = {}, {}
    for name, smooth in (("filter", False), ("smoother", True)):
        frames = TunedFrames(estimator=KernelRidge(kernel="rbf", gamma=0.1, alpha=1.0))
        model = KalmanRegression(frames=frames, smooth=smooth)
        model.fit(x, z, lengths)
        parts = [model.filter(part) for part in np.split(x_new, np.cumsum(new)[:-1])]
        mean, cov = (np.concatenate([np.asarray(p[k]) for p in parts]) for k in (0, 1))
        errors[name] = np.square(mean - z_new).mean()
        shares[name] = coverage(mean, cov, z_new)
    errors["rows"] = np.square(np.asarray(model.frames.filter(x_new)[0]) - z_new).mean()
    assert model.chosen["motion"] == "velocity"
    assert errors["smoother"] < errors["filter"] < 0.5 * errors["rows"]
    assert 0.8 < shares["filter"] < 0.98


@pytest.mark.parametrize("motion", ["walk", "velocity"])
def test_filter_and_smoother_are_the_exact_posterior(motion):
    """Against the joint Gaussian of all states and answers, one of them missing."""
    _, z, lengths = walks(np.random.default_rng(1000), count=3, rows=30)
    moving = getattr(Motion, motion)(z - z.mean(), lengths)
    noise = torch.eye(1, dtype=torch.float64)
    y = torch.tensor([[0.3], [torch.nan], [-0.2], [1.0]], dtype=torch.float64)
    mean, cov = moving.filter(y, noise)
    smooth_mean, smooth_cov = moving.smooth(mean, cov)
    steps, d = 4, len(moving.prior)
    blocks = [moving.prior]
    for _ in range(steps - 1):
        blocks.append(moving.matrix @ blocks[-1] @ moving.matrix.mT + moving.noise)
    joint = torch.zeros(steps, d, steps, d, dtype=torch.float64)
    for s in range(steps):
        for t in range(s, steps):
            across = torch.linalg.matrix_power(moving.matrix, t - s) @ blocks[s]
            joint[t, :, s], joint[s, :, t] = across, across.mT
    joint = joint.reshape(steps * d, steps * d)
    for last, found in ((2, (mean[2], cov[2])), (3, (smooth_mean[2], smooth_cov[2]))):
        seen = [t for t in range(last + 1) if t != 1]
        h = torch.zeros(len(seen), steps * d, dtype=torch.float64)
        h[range(len(seen)), [t * d for t in seen]] = 1
        gain = torch.linalg.solve(h @ joint @ h.mT + torch.eye(len(seen)), h @ joint).mT
        exact = (gain @ y[seen, 0]).reshape(steps, d)[2]
        left = (joint - gain @ h @ joint).reshape(steps, d, steps, d)[2, :, 2]
        torch.testing.assert_close(found[0], exact, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found[1], left, rtol=1e-8, atol=1e-8)
