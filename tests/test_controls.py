"""Control inputs and irregular time: p(z' | z, u) is learned, and every way in and out takes u."""

import math
import pickle

import numpy as np
import pytest
import torch

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter
from kbr.core import tables
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.classical.particle import ParticleFilter
from kbr.core.filters.kernel import fitted
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.engines import large
from kbr.core.filters.refined import RefinedFilter
from kbr.core.kernels import Gaussian

SMALL = {"scales": (0.5,), "lams": (1e-2,)}


def normal(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def driven(n, seed, *, kick=1.5, noise=1.0):
    """A damped oscillator (place, speed) whose speed is kicked by u; x is a noisy look at both."""
    generator = torch.Generator().manual_seed(seed)
    u = kick * (2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1)
    c, s = 0.9 * math.cos(0.3), 0.9 * math.sin(0.3)
    turn = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    eps, now, path = 0.1 * normal((n, 2), seed + 1), torch.zeros(2, dtype=torch.float64), []
    for push, noisy in zip(u, eps, strict=True):
        now = turn @ now + torch.cat([0 * push, push]) + noisy
        path.append(now)
    z = torch.stack(path)
    return z + noise * normal((n, 2), seed + 2), z, u


def ring(n, seed):
    """A point on a ring that u moves along it; x is a noisy look at it."""
    generator = torch.Generator().manual_seed(seed)
    u = 3 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1.5
    angle = (0.4 + u + 0.1 * normal((n, 1), seed + 1)).cumsum(0)
    z = torch.cat([angle.cos(), angle.sin()], -1)
    return z + 0.5 * normal((n, 2), seed + 2), z, u


def gapped(n, seed):
    """Rotation seen at random gaps of 1 to 5 steps, and the times."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.randint(1, 6, (n,), generator=generator).cumsum(0)
    x, z = Rotation().sample(int(time[-1]) + 1, generator)
    return x[time], z[time], time.numpy()


def error(result, z):
    return float((result.mean - z).square().sum(-1).mean())


def close(a, b, atol=1e-9):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def filt():
    x, z, u = ring(150, 0)
    return KernelBayesFilter(**SMALL).fit(x, z, u=u)


def test_predictions_are_the_gram_form(monkeypatch):
    """Math: w+ = (G_Z * G_U + k lam' I)^-1 (G_Z w * k_U(u)), forwards and backwards."""
    x, z, u = ring(60, 0)
    rule = ImportanceWeightedRule(lam=1e-2)
    monkeypatch.setattr(fitted, "lift_tolerance", lambda _: 1e-13)
    made = KernelBayesFilter(rule=rule, eta=1e-3, scales=(0.5,), standardize=False)
    made = made.fit(x, z, u=u)
    operators, lam = made.operators, 1e-3
    kernel_u, kernel_z = operators.lift.kernel, Gaussian(scale=0.5).fit(z)
    inner = (u[1:] - u[1:].mean()) / u[1:].std(correction=0)
    gram_u, query = kernel_u(inner, inner), inner[7:8]
    weights = torch.rand(60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    state = operators.coordinates(weights.unsqueeze(0))
    for start, end, found in (
        (z[:-1], slice(1, None), operators.ahead(state, query)),
        (z[1:], slice(None, -1), operators.reverse(made.choice.lam_transition).ahead(state, query)),
    ):
        gram = kernel_z(start, start) * gram_u + 59 * lam * torch.eye(59, dtype=torch.float64)
        right = (kernel_z(start, z) @ weights) * kernel_u(inner, query).squeeze(-1)
        expected = torch.zeros(60, dtype=torch.float64)
        expected[end] = torch.linalg.solve(gram, right)
        close(found.weights[0], expected, 1e-6 * float(expected.abs().max()))


def test_a_driven_ring_needs_its_input():
    x, z, u = ring(300, 3)
    x_test, z_test, u_test = ring(200, 13)
    ignored = KernelBayesFilter(**SMALL).fit(x, z).filter(x_test)
    made = KernelBayesFilter(**SMALL).fit(x, z, u=u)
    known = made.filter(x_test, u=u_test)
    assert error(known, z_test) < 0.5 * error(ignored, z_test)
    assert error(made.smooth(x_test, u=u_test), z_test) < error(known, z_test)
    inside = made.credible_region(known).contains(z_test).double().mean()
    assert 0.8 < inside < 0.97


@pytest.mark.slow
def test_a_strongly_driven_oscillator_is_filtered_with_half_the_error():
    errors = []
    for seed in (0, 10):
        x, z, u = driven(1500, seed)
        x_test, z_test, u_test = driven(300, seed + 500)
        ignored = KernelBayesFilter().fit(x, z).filter(x_test)
        known = KernelBayesFilter().fit(x, z, u=u).filter(x_test, u=u_test)
        errors.append((error(known, z_test), error(ignored, z_test)))
    known, ignored = np.mean(errors, 0)
    assert known < 0.5 * ignored


def test_constant_controls_change_nothing():
    x, z, _ = ring(120, 0)
    x_test, zero = x[:40].clone(), torch.zeros(120, 2, dtype=torch.float64)
    x_test[10:14] = torch.nan
    plain = KernelBayesFilter(**SMALL).fit(x, z)
    with pytest.warns(UserWarning, match="constant in training: u_1, u_2"):
        made = KernelBayesFilter(**SMALL).fit(x, z, u=zero)
    for run in ("filter", "smooth"):
        found, truth = getattr(made, run)(x_test, u=zero[:40]), getattr(plain, run)(x_test)
        close(found.mean, truth.mean)
        close(found.cov, truth.cov)
    belief = made.step(made.step(made.init(), x[0]), x[1], u=zero[1])
    expected = plain.step(plain.step(plain.init(), x[0]), x[1])
    close(belief.mean, expected.mean)
    close(made.forecast(belief, u=zero[:3]).mean, plain.forecast(expected, 3).mean)


def test_steps_forecasts_and_gaps_are_the_filter(filt):
    x, _, u = ring(30, 5)
    x[8:11] = torch.nan  # predicted, with the controls of these steps
    whole, belief, means = filt.filter(x, u=u), filt.init(), []
    for row, push in zip(x, u, strict=True):
        belief = filt.step(belief, row, u=push)
        means.append(belief.mean)
    close(torch.stack(means), whole.mean)
    close(belief.cov, whole.cov[-1])
    early = filt.filter(x[:8], u=u[:8])
    belief = filt.init()
    for row, push in zip(x[:8], u[:8], strict=True):
        belief = filt.step(belief, row, u=push)
    close(belief.mean, early.mean[-1])
    close(filt.forecast(belief, 3, u=u[8:11]).mean, whole.mean[10])
    close(filt.forecast(belief, u=u[8:11, 0].tolist()).mean, whole.mean[10])
    other = filt.forecast(belief, u=-u[8:11])
    assert not torch.allclose(other.mean, whole.mean[10], atol=1e-3)
    first = u.clone()
    first[0] = torch.nan  # what led to the first row is not used
    close(filt.filter(x, u=first).mean, whole.mean)
    close(filt.filter(x, u=u.squeeze(-1)).mean, whole.mean)


def test_smoothing_backwards_takes_the_same_controls(filt):
    """At the last step smoothing is filtering; elsewhere the control of the next step counts."""
    x, _, u = ring(30, 6)
    smoothed, filtered = filt.smooth(x, u=u), filt.filter(x, u=u)
    close(smoothed.mean[-1], filtered.mean[-1])
    changed = u.clone()
    changed[-1] += 1.0
    assert not torch.allclose(filt.smooth(x, u=changed).mean[-2], smoothed.mean[-2], atol=1e-3)
    close(filt.filter(x, u=changed).mean[-2], filtered.mean[-2])


def test_files_pickles_and_devices_keep_the_controls(filt, tmp_path):
    x, _, u = ring(20, 7)
    truth = filt.filter(x, u=u)
    filt.save(tmp_path / "filter.pt")
    loaded = KernelBayesFilter.load(tmp_path / "filter.pt")
    copies = (loaded, pickle.loads(pickle.dumps(filt)), filt.to("cpu"))
    for made in copies:
        close(made.filter(x, u=u).mean, truth.mean)
        close(made.filter(x, u=u).cov, truth.cov)
    assert float(loaded.choice.scale_u) == float(filt.choice.scale_u)


def test_named_columns_offsets_and_angles():
    x, z, u = ring(100, 8)
    degrees = np.rad2deg(u[:, 0].numpy()) % 360
    table = {"a": 1e6 + x[:, 0].numpy(), "b": x[:, 1].numpy()}
    push = {"turn": degrees, "gas": 1e6 + normal(100, 1).numpy()}
    made = KernelBayesFilter(**SMALL).fit(table, z, u=push, circular="turn")
    whole = made.filter({**push, **table, "more": np.zeros(100)})
    close(whole.mean, made.filter(table, u=push).mean)
    turned = {**push, "turn": degrees - 720}
    close(whole.mean, made.filter(table, u=turned).mean)
    rows = [{name: float(column[k]) for name, column in {**table, **push}.items()} for k in (0, 1)]
    belief = made.step(made.step(made.init(), rows[0]), rows[1])
    close(belief.mean, whole.mean[1])
    with pytest.raises(KbrError, match="no column 'turn' of control inputs"):
        made.filter({**table, "gas": push["gas"]})
    x_of_array = np.stack([table["a"], table["b"]], -1)
    u_of_array = np.stack([push["turn"], push["gas"]], -1)
    close(whole.mean, made.filter(x_of_array, u=u_of_array).mean)


def test_lists_of_sequences_and_batches():
    parts = [ring(60, seed) for seed in (1, 11)]
    x, z, u = ([part[k] for part in parts] for k in range(3))
    made = KernelBayesFilter(**SMALL).fit(x, z, u=u)
    assert made.fitted.data.lengths == [60, 60]
    stacked = KernelBayesFilter(**SMALL).fit(*(torch.stack(v) for v in (x, z)), u=torch.stack(u))
    single = KernelBayesFilter(**SMALL).fit(x[1], z[1], u=u[1])
    test, _, push = ring(20, 21)
    both = stacked.filter(torch.stack([test, test]), u=torch.stack([push, push]))
    close(both.mean[1], single.filter(test, u=push).mean, 1e-4)
    assert both.mean.shape == (2, 20, 2)
    step = stacked.step(stacked.init(), torch.stack([test[0], test[0]]))
    step = stacked.step(step, torch.stack([test[1], test[1]]), u=torch.stack([push[1], push[1]]))
    close(step.mean, both.mean[:, 1])


def test_very_many_points_take_controls(monkeypatch):
    x, z, u = ring(150, 2)
    test, _, push = ring(15, 22)
    rule = ImportanceWeightedRule(lam=1e-2)
    exact = KernelBayesFilter(rule=rule, eta=1e-3, scales=(0.5,)).fit(x, z, u=u)
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(tables, "ROWS", 64)
    made = KernelBayesFilter(rule=rule, eta=1e-3, scales=(0.5,)).fit(x, z, u=u)
    assert made.operators.lift.rows.dtype == torch.float32
    for run in ("filter", "smooth"):
        found, truth = getattr(made, run)(test, u=push), getattr(exact, run)(test, u=push)
        close(found.mean, truth.mean, 5e-3)


def test_missing_controls_are_said():
    x, z, u = ring(80, 4)
    u[[0, 30]] = torch.nan
    with pytest.warns(UserWarning, match="u is missing in 1 of 80"):
        made = KernelBayesFilter(**SMALL).fit(x, z, u=u)
    assert made.fitted.data.lengths == [30, 50]  # the row stays, the step to it is not learned
    with pytest.raises(KbrError, match="u has missing values"):
        made.filter(x, u=u)
    belief = made.step(made.init(), x[0])
    with pytest.raises(KbrError, match="u has missing values"):
        made.step(belief, x[1], u=[math.nan])


def test_a_control_unlike_any_of_training_predicts_the_start(filt):
    x, _, u = ring(3, 5)
    belief = filt.step(filt.step(filt.init(), x[0]), x[1], u=u[1])
    far = filt.forecast(belief, u=[1e6])
    close(far.mean, filt.init().mean)
    assert torch.isfinite(filt.step(belief, x[2], u=[1e6]).mean).all()


def test_what_does_not_fit_is_refused(filt, tmp_path):
    x, z, u = ring(40, 9)
    plain = KernelBayesFilter(**SMALL).fit(x, z)
    with pytest.raises(KbrError, match="fitted without control inputs"):
        plain.filter(x, u=u)
    with pytest.raises(KbrError, match=r"fitted with control inputs \(u_1\)"):
        filt.filter(x)
    with pytest.raises(KbrError, match="fitted with control inputs"):
        filt.forecast(filt.step(filt.init(), x[0]))
    with pytest.raises(KbrError, match="a row for each of x"):
        filt.filter(x, u=u[:-1])
    with pytest.raises(KbrError, match="one row for each of 2 step"):
        filt.forecast(filt.init(), 2, u=u[:3])
    with pytest.raises(KbrError, match="a row for each of x"):
        filt.filter(x, u=torch.cat([u, u, u], -1))
    with pytest.raises(KbrError, match="u must have shape"):
        KernelBayesFilter().fit(x, z, u=u[:-1])
    with pytest.raises(KbrError, match="compress takes filters without"):
        filt.compress(20)
    with pytest.raises(KbrError, match="export takes filters without"):
        filt.export(tmp_path / "step.pt2")
    with pytest.raises(KbrError, match="takes no control inputs"):
        RefinedFilter().fit(x, z, u=u)
    rule = ImportanceWeightedRule(ratio=TransitionRatio(model=Rotation().state_space()), lam=1e-2)
    with pytest.raises(KbrError, match="leave u out"):
        KernelBayesFilter(rule=rule).fit(x, z, u=u)


def told(x, time):
    """Means of a particle filter that sees x at these times, and nothing between them."""
    whole = torch.full((int(time[-1]) + 1, 2), torch.nan, dtype=torch.float64)
    whole[time] = x
    return ParticleFilter(model=Rotation().state_space(), n_particles=2000).filter(whole).mean[time]


def test_steps_of_time_are_an_input():
    x, z, time = gapped(400, 0)
    x_test, z_test, later = gapped(200, 500)
    with pytest.warns(UserWarning, match="set time_steps=input"):
        equal = KernelBayesFilter(**SMALL).fit(x, z, time=time)
    made = KernelBayesFilter(**SMALL).fit(x, z, time=time, time_steps="input")
    mine = error(made.filter(x_test, time=later), z_test)
    assert mine < 0.98 * error(equal.filter(x_test), z_test)
    belief, means = made.init(), []
    for row, stamp in zip(x_test[:20], later[:20], strict=True):
        belief = made.step(belief, row, time=stamp)
        means.append(belief.mean)
    whole = made.filter(x_test[:20], time=later[:20])
    close(torch.stack(means), whole.mean)
    late = made.filter({"x": x_test[:20].numpy(), "time": later[:20]})
    close(late.mean, whole.mean)
    missing = x_test[:22].clone()
    missing[20:] = torch.nan
    ahead = made.forecast(belief, time=later[20:22])
    close(ahead.mean, made.filter(missing, time=later[:22]).mean[-1])
    assert ahead.place[1] == later[21]


@pytest.mark.slow
def test_rotation_at_random_gaps_is_filtered_as_by_particles_that_are_told():
    pairs = []
    for seed in range(5):
        x, z, time = gapped(900, seed)
        x_test, z_test, later = gapped(300, seed + 500)
        made = KernelBayesFilter().fit(x, z, time=time, time_steps="input")
        best = float((told(x_test, later) - z_test).square().sum(-1).mean())
        pairs.append((error(made.filter(x_test, time=later), z_test), best))
    mine, best = np.mean(pairs, 0)
    assert mine < 1.15 * best


def test_time_beside_controls_gaps_and_even_steps(tmp_path):
    x, z, u = ring(120, 1)
    time = np.cumsum(np.tile([1.0, 2.0, 1.0, 3.0], 30))
    time[60:] += 1000.0
    with pytest.warns(UserWarning, match="as an input of the dynamics, and 1 longer"):
        made = KernelBayesFilter(**SMALL).fit(x, z, u=u, time=time, time_steps="input")
    assert made.operators.controls == 2
    assert made.fitted.data.lengths == [60, 60]
    made.save(tmp_path / "filter.pt")
    loaded = KernelBayesFilter.load(tmp_path / "filter.pt")
    whole = made.filter(x, u=u, time=time)
    close(loaded.filter(x, u=u, time=time).mean, whole.mean)
    close(whole.mean[60], made.filter(x[60:61], u=u[60:61], time=time[60:61]).mean[0])
    belief = made.step(made.step(made.init(), x[59], time=time[59]), x[60], u=u[60], time=time[60])
    close(belief.mean, whole.mean[60])  # after the gap the belief starts anew
    with pytest.raises(KbrError, match="needs the time of every row"):
        made.filter(x, u=u)
    with pytest.raises(KbrError, match="time must grow"):
        made.step(belief, x[61], u=u[61], time=time[59])
    even = np.arange(120.0)
    with pytest.warns(UserWarning, match="steps of time are even"):
        same = KernelBayesFilter(**SMALL).fit(x, z, time=even, time_steps="input")
    close(same.filter(x[:20]).mean, KernelBayesFilter(**SMALL).fit(x, z).filter(x[:20]).mean)
    with pytest.raises(KbrError, match="time_steps must be one of"):
        KernelBayesFilter().fit(x, z, time=even, time_steps="resample")
    with pytest.raises(KbrError, match="pass time="):
        KernelBayesFilter().fit(x, z, time_steps="input")


def test_a_history_of_observations_goes_with_controls():
    """Each is of use beside the other: the sensor lags, and u moves the state."""
    rng = np.random.default_rng(1000)
    u = rng.normal(size=(4, 80, 1))
    z = np.cumsum(u, 1)
    z = np.sin(z / 4)  # bounded
    x = z + np.roll(z, 1, axis=1) + 0.3 * rng.normal(size=z.shape)
    errors = {}
    for history, moves in ((1, False), (2, True)):
        filt = KernelBayesFilter(history=history)
        given = {"u": list(u[:3])} if moves else {}
        filt.fit(list(x[:3]), list(z[:3]), **given)
        last = {"u": u[3]} if moves else {}
        result = filt.filter(x[3], **last)
        errors[history] = float((result.mean[2:] - torch.from_numpy(z[3, 2:])).square().mean())
        assert filt.smooth(x[3], **last).cov.isfinite().all()
        assert filt.calibration is not None
    assert errors[2] < errors[1]
