"""Kalman, extended, unscented and particle filters against textbook loops in plain numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.errors import KbrError
from kbr.core.filters.classical.extended import ExtendedKalmanFilter
from kbr.core.filters.classical.kalman import KalmanFilter
from kbr.core.filters.classical.particle import ParticleFilter, systematic_resample
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.classical.unscented import UnscentedKalmanFilter
from kbr.core.filters.result import mean_squared_error

KALMANS = [
    pytest.param(KalmanFilter, {}, id="kalman"),
    pytest.param(ExtendedKalmanFilter, {}, id="extended"),
    pytest.param(UnscentedKalmanFilter, {}, id="unscented"),
    pytest.param(UnscentedKalmanFilter, {"alpha": 0.1, "beta": 2.0, "kappa": 0.0}, id="scaled"),
]


def linear_system(seed, dz=3, dx=2):
    """Matrices of a stable random linear system with an offset."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(dz, dz)))
    noise = [rng.normal(size=(k, k)) for k in (dz, dx, dz)]
    q, r, p0 = (0.1 * a @ a.T + 0.1 * np.eye(len(a)) for a in noise)
    return {
        "f": 0.9 * turn, "b": rng.normal(size=dz), "h": rng.normal(size=(dx, dz)),
        "c": rng.normal(size=dx), "q": q, "r": r, "m0": rng.normal(size=dz), "p0": p0,
    }  # fmt: skip


def as_model(system):
    """The same system as functions."""
    s = {name: torch.from_numpy(value) for name, value in system.items()}
    return StateSpaceModel(
        transition=lambda z: z @ s["f"].to(z).mT + s["b"].to(z),
        observation=lambda z: z @ s["h"].to(z).mT + s["c"].to(z),
        transition_cov=s["q"],
        observation_cov=s["r"],
        initial_mean=s["m0"],
        initial_cov=s["p0"],
    )


def kalman_loop(system, x):
    """Textbook Kalman filter: explicit inverse, P = (I - KH) P, NaN rows skipped."""
    f, b, h, c, q, r = (system[k] for k in "fbhcqr")
    m, p, means, covs = system["m0"], system["p0"], [], []
    for t, x_t in enumerate(x):
        if t > 0:
            m, p = f @ m + b, f @ p @ f.T + q
        if not np.isnan(x_t).any():
            k = p @ h.T @ np.linalg.inv(h @ p @ h.T + r)
            m, p = m + k @ (x_t - h @ m - c), (np.eye(len(m)) - k @ h) @ p
        means.append(m)
        covs.append(p)
    return np.stack(means), np.stack(covs)


def simulate(system, steps, seed):
    rng = np.random.default_rng(seed)
    z, xs = rng.multivariate_normal(system["m0"], system["p0"]), []
    for _ in range(steps):
        noise = rng.multivariate_normal(np.zeros(len(system["c"])), system["r"])
        xs.append(system["h"] @ z + system["c"] + noise)
        z = system["f"] @ z + system["b"] + rng.multivariate_normal(0 * z, system["q"])
    return np.stack(xs)


@pytest.mark.parametrize(("cls", "options"), KALMANS)
@pytest.mark.parametrize(("dz", "dx"), [(1, 1), (3, 2), (5, 6)])
def test_linear_system_is_filtered_exactly(cls, options, dz, dx):
    """All three are the Kalman filter when nothing is nonlinear, missing rows included."""
    system = linear_system(dz, dz, dx)
    x = simulate(system, 40, seed=1)
    x[[0, 7, 8]] = np.nan
    out = cls(model=as_model(system), **options).filter(x)
    mean, cov = kalman_loop(system, x)
    np.testing.assert_allclose(out.mean.numpy(), mean, atol=1e-8)
    np.testing.assert_allclose(out.cov.numpy(), cov, atol=1e-8)
    assert out.evidence.tolist() == [t not in (0, 7, 8) for t in range(40)]
    assert out.effective_sample_size is None


@pytest.mark.parametrize(("cls", "options"), KALMANS)
def test_batch_equals_loop_over_sequences(cls, options):
    system = linear_system(0)
    filt = cls(model=as_model(system), **options)
    x = torch.stack([torch.from_numpy(simulate(system, 20, seed=s)) for s in range(6)])
    x[2, 5] = torch.nan
    x[4] = torch.nan
    out = filt.filter(x.reshape(2, 3, 20, 2))
    alone = [filt.filter(row) for row in x]
    for name in ("mean", "cov", "evidence"):
        want = torch.stack([getattr(row, name) for row in alone])
        got = getattr(out, name).reshape(want.shape)
        torch.testing.assert_close(got, want, atol=1e-10, rtol=0)


def test_extended_filter_against_finite_differences():
    """The oscillatory ring, with Jacobians by central differences in plain numpy."""
    task = Oscillatory()
    x = task.sample(60, torch.Generator().manual_seed(0))[0]
    model = task.state_space()
    f = lambda z: task.step_mean(torch.from_numpy(z)).numpy()  # noqa: E731
    m, p = model.initial_mean.numpy(), model.initial_cov.numpy()
    noise, means = 0.04 * np.eye(2), []
    for t, x_t in enumerate(x.numpy()):
        if t > 0:
            jac = np.stack([(f(m + e) - f(m - e)) / 2e-6 for e in 1e-6 * np.eye(2)], axis=1)
            m, p = f(m), jac @ p @ jac.T + noise
        k = p @ np.linalg.inv(p + noise)
        m, p = m + k @ (x_t - m), p - k @ p
        means.append(m)
    out = ExtendedKalmanFilter(model=model).filter(x)
    np.testing.assert_allclose(out.mean.numpy(), np.stack(means), atol=1e-5)


def test_unscented_filter_against_weighted_sums():
    """The oscillatory ring, with the weighted sigma-point sums of the textbook."""
    alpha, beta, kappa, d = 0.7, 2.0, 0.5, 2
    task = Oscillatory()
    x = task.sample(60, torch.Generator().manual_seed(0))[0]
    model = task.state_space()
    spread = alpha**2 * (d + kappa)
    w_mean = np.array([1 - d / spread] + [0.5 / spread] * (2 * d))
    w_cov = w_mean + np.array([1 - alpha**2 + beta] + [0] * (2 * d))
    m, p = model.initial_mean.numpy(), model.initial_cov.numpy()
    noise, means, covs = 0.04 * np.eye(2), [], []
    for t, x_t in enumerate(x.numpy()):
        if t > 0:
            root = math.sqrt(spread) * np.linalg.cholesky(p).T
            points = np.concatenate([m[None], m + root, m - root])
            moved = task.step_mean(torch.from_numpy(points)).numpy()
            m = w_mean @ moved
            p = (moved - m).T @ np.diag(w_cov) @ (moved - m) + noise
        # A linear observation's sigma points give the Kalman update, whatever their weights.
        k = p @ np.linalg.inv(p + noise)
        m, p = m + k @ (x_t - m), p - k @ p
        means.append(m)
        covs.append(p)
    filt = UnscentedKalmanFilter(model=model, alpha=alpha, beta=beta, kappa=kappa)
    out = filt.filter(x)
    np.testing.assert_allclose(out.mean.numpy(), np.stack(means), atol=1e-9)
    np.testing.assert_allclose(out.cov.numpy(), np.stack(covs), atol=1e-9)


def test_particle_filter_is_kalman_up_to_monte_carlo_error():
    """Over 30 repeats, means and covariances differ by no more than their spread allows."""
    system = linear_system(11, 2, 2)
    x = simulate(system, 25, seed=4)
    x[10] = np.nan
    repeats = torch.from_numpy(x).expand(30, 25, 2)
    out = ParticleFilter(model=as_model(system), n_particles=3000).filter(repeats)
    for got, exact in zip((out.mean, out.cov), kalman_loop(system, x), strict=True):
        error = got - torch.from_numpy(exact)
        score = error.mean(0) / (error.std(0) / math.sqrt(30))
        assert score.square().mean().sqrt() < 1.5
        assert score.abs().max() < 4.5
    size = out.effective_sample_size
    assert size.shape == (30, 25)
    assert 1 <= size.min() <= size.max() <= 3000.5


def test_particle_error_falls_with_the_number_of_particles():
    """With four hundred times the particles the error is about a twentieth."""
    system = linear_system(5, 2, 2)
    x = simulate(system, 20, seed=4)
    exact = torch.from_numpy(kalman_loop(system, x)[0])
    few, many = (
        ParticleFilter(model=as_model(system), n_particles=n).filter(x).mean - exact
        for n in (50, 20_000)
    )
    assert many.norm() < few.norm() / 7


def test_particle_predicts_through_a_missing_row():
    """A missing first row leaves the initial distribution; a later one spreads the belief."""
    system = linear_system(1, 2, 2)
    x = simulate(system, 6, seed=0)
    x[0] = x[3] = np.nan
    out = ParticleFilter(model=as_model(system), n_particles=20_000).filter(x)
    assert out.evidence.tolist() == [False, True, True, False, True, True]
    np.testing.assert_allclose(out.mean[0].numpy(), system["m0"], atol=0.03)
    np.testing.assert_allclose(
        out.mean[3].numpy(), system["f"] @ out.mean[2].numpy() + system["b"], atol=0.03
    )
    assert out.cov[3].trace() > out.cov[2].trace()


@pytest.mark.parametrize("nothing", [-torch.inf, torch.nan])
def test_particle_survives_likelihoods_that_are_all_zero(nothing):
    """One impossible image: a flagged prediction, from which the sequence recovers."""

    def log_likelihood(x, z):
        impossible = x.mean((-1, -2), keepdim=False).unsqueeze(-1) > 100
        fit = -(x.mean((-1, -2)).unsqueeze(-1) - z[..., 0]).square() / 0.02
        return torch.where(impossible, torch.full_like(fit, nothing), fit)

    task = Rotation()
    z = task.latents(30, torch.Generator().manual_seed(0), (2,))
    images = z[..., :1, None].expand(2, 30, 4, 5).clone()
    images[0, 12] = 1e6
    base = task.state_space()
    model = replace(
        base,
        observation=None,
        observation_cov=None,
        observation_shape=(4, 5),
        log_likelihood=log_likelihood,
    )
    filt = ParticleFilter(model=model, n_particles=500)
    out = filt.filter(images)
    assert not out.evidence[0, 12]
    assert out.evidence.sum() == 59
    assert torch.isfinite(out.mean).all()
    assert torch.isfinite(out.cov).all()
    # Seen in its first coordinate only, a turning point is still found once it has moved a while.
    assert mean_squared_error(out.mean[:, 15:], z[:, 15:]).max() < 0.1
    missing = images.clone()
    missing[0, 12] = torch.nan
    torch.testing.assert_close(filt.filter(missing).mean, out.mean)


def test_particle_beats_extended_on_oscillatory_and_ties_on_rotation():
    """Figure of section 5.2: mean squared errors near the reference values, 20 sequences each."""
    errors = {}
    for task in (Rotation(), Oscillatory()):
        data = task.generate(n_train=1, n_test=200, seed=0, batch=(20,))
        model = task.state_space()
        for filt in (
            ExtendedKalmanFilter(model=model),
            UnscentedKalmanFilter(model=model),
            ParticleFilter(model=model, n_particles=500),
        ):
            mean = filt.filter(data.x_test).mean
            key = type(task).__name__, type(filt).__name__
            errors[key] = float(mean_squared_error(mean, data.z_test).mean())
    assert 0.040 < errors["Rotation", "ExtendedKalmanFilter"] < 0.050
    ratio = errors["Rotation", "ParticleFilter"] / errors["Rotation", "ExtendedKalmanFilter"]
    assert 0.95 < ratio < 1.05
    assert 0.057 < errors["Oscillatory", "ExtendedKalmanFilter"] < 0.072
    assert 0.047 < errors["Oscillatory", "ParticleFilter"] < 0.057
    worst = 0.9 * errors["Oscillatory", "ExtendedKalmanFilter"]
    assert errors["Oscillatory", "ParticleFilter"] < worst
    assert errors["Oscillatory", "UnscentedKalmanFilter"] < worst


def test_same_seed_same_particles():
    task = Oscillatory()
    x = task.sample(20, torch.Generator().manual_seed(0), (3,))[0]
    filt = ParticleFilter(model=task.state_space(), n_particles=50)
    state = torch.random.get_rng_state()
    first = filt.filter(x).mean
    torch.testing.assert_close(filt.filter(x).mean, first, atol=0, rtol=0)
    assert (replace(filt, seed=1).filter(x).mean != first).any()
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"


def test_systematic_resampling_against_a_loop():
    """Every particle has floor(n w) or ceil(n w) children, and the loop over the ladder agrees."""
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.26, 0.24, 0.0], [1 / 6] * 6], dtype=torch.float64)
    n = weights.shape[-1]
    for seed in range(20):
        got = systematic_resample(weights, torch.Generator().manual_seed(seed))
        draws = torch.rand(2, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for row, draw, ancestors in zip(weights.tolist(), draws, got.tolist(), strict=True):
            want, j, total = [], 0, row[0]
            for i in range(n):
                while total <= (i + float(draw)) / n:
                    j += 1
                    total += row[j]
                want.append(j)
            assert ancestors == want
            for i, w in enumerate(row):
                assert math.floor(n * w - 1e-9) <= ancestors.count(i) <= math.ceil(n * w - 1e-9)


def test_dtype_and_containers_follow_the_input():
    task = Oscillatory()
    x = task.sample(10, torch.Generator().manual_seed(0))[0]
    model = task.state_space()
    for filt in (ExtendedKalmanFilter(model=model), ParticleFilter(model=model, n_particles=64)):
        wide, narrow = filt.filter(x.numpy()), filt.filter(x.float())
        assert wide.mean.dtype == wide.cov.dtype == torch.float64
        assert narrow.mean.dtype == narrow.cov.dtype == torch.float32
    line = filt.filter(x.float())
    assert line.effective_sample_size.dtype == torch.float32


def test_scalar_observations_may_come_flat():
    system = linear_system(0, 2, 1)
    x = simulate(system, 8, seed=0)
    filt = KalmanFilter(model=as_model(system))
    torch.testing.assert_close(filt.filter(x[:, 0]).mean, filt.filter(x).mean)


def test_first_observation_missing_on_the_ring():
    """The direction at the origin is a convention; what matters is that filters get past it."""
    x = Oscillatory().sample(30, torch.Generator().manual_seed(0), (4,))[0]
    x[:, 0] = torch.nan
    model = replace(Oscillatory().state_space(), initial_mean=torch.zeros(2, dtype=torch.float64))
    for cls in (ExtendedKalmanFilter, UnscentedKalmanFilter):
        out = cls(model=model).filter(x)
        assert torch.isfinite(out.mean).all()
        assert torch.isfinite(out.cov).all()


def test_noise_free_observations_pin_the_latent():
    task = Oscillatory(sigma_x=0.0)
    x, z = task.sample(20, torch.Generator().manual_seed(0))
    for cls in (ExtendedKalmanFilter, UnscentedKalmanFilter):
        torch.testing.assert_close(cls(model=task.state_space()).filter(x).mean, z)
    with pytest.raises(KbrError, match="sigma_x"):
        ParticleFilter(model=task.state_space()).filter(x)
    frozen = Rotation(sigma_x=0.0, sigma_z=0.0)
    x = frozen.sample(20, torch.Generator().manual_seed(0))[0]
    with pytest.raises(KbrError, match="sigma_z"):
        ExtendedKalmanFilter(model=frozen.state_space()).filter(x)


def test_wrong_shapes_and_settings_say_what_to_change():
    model = Oscillatory().state_space()
    eye = torch.eye(2, dtype=torch.float64)
    for filt in (ExtendedKalmanFilter(model=model), ParticleFilter(model=model, n_particles=8)):
        with pytest.raises(KbrError, match=r"\[..., T, 2\].*got \(5, 3\)"):
            filt.filter(torch.zeros(5, 3))
        with pytest.raises(KbrError, match="at least one time step"):
            filt.filter(torch.zeros(0, 2))
        with pytest.raises(KbrError, match=r"got \(2,\)"):
            filt.filter(torch.zeros(2))
    with pytest.raises(KbrError, match=r"affine transition.*ExtendedKalmanFilter"):
        KalmanFilter(model=model).filter(torch.ones(5, 2))
    # Under the tests' import hook jaxtyping sees a wrong shape first; it names the field as well.
    with pytest.raises((KbrError, TypeError), match="transition_cov"):
        replace(model, transition_cov=torch.eye(3))
    with pytest.raises(KbrError, match="observation_cov must be finite and symmetric"):
        replace(model, observation_cov=torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(KbrError, match="initial_cov must have no negative eigenvalue"):
        replace(model, initial_cov=-eye)
    with pytest.raises(KbrError, match="belong together"):
        replace(model, observation=None)
    with pytest.raises(KbrError, match="log_likelihood and observation_shape"):
        replace(model, observation=None, observation_cov=None, observation_shape=None)
    with pytest.raises(KbrError, match="n_particles"):
        ParticleFilter(model=model, n_particles=0)
    with pytest.raises(KbrError, match="resample_threshold"):
        ParticleFilter(model=model, resample_threshold=1.5)
    with pytest.raises(KbrError, match="kappa"):
        UnscentedKalmanFilter(model=model, kappa=-2.0)
    with pytest.raises(KbrError, match="alpha"):
        UnscentedKalmanFilter(model=model, alpha=0.0)


@pytest.mark.parametrize("cls", [ExtendedKalmanFilter, UnscentedKalmanFilter, ParticleFilter])
def test_a_function_of_the_wrong_shape_is_named(cls):
    model = replace(Oscillatory().state_space(), observation=lambda z: z[..., :1])
    with pytest.raises(KbrError, match="observation must return shape"):
        cls(model=model).filter(torch.zeros(4, 2))
    model = replace(Oscillatory().state_space(), transition=lambda z: z.reshape(-1, 2)[0])
    with pytest.raises(KbrError, match="transition must return shape"):
        cls(model=model).filter(torch.zeros(3, 4, 2))


def test_a_function_that_is_not_finite_is_named():
    model = replace(Oscillatory().state_space(), transition=lambda z: z / 0)
    with pytest.raises(KbrError, match=r"transition .* not finite"):
        ExtendedKalmanFilter(model=model).filter(torch.ones(4, 2))


def test_kalman_filters_need_an_observation_function():
    model = replace(
        Oscillatory().state_space(),
        observation=None,
        observation_cov=None,
        log_likelihood=lambda x, z: -(x.unsqueeze(-2) - z).square().sum(-1),
    )
    with pytest.raises(KbrError, match="ParticleFilter"):
        ExtendedKalmanFilter(model=model).filter(torch.zeros(4, 2))
    assert ParticleFilter(model=model, n_particles=9).filter(torch.zeros(4, 2)).mean.shape == (4, 2)
