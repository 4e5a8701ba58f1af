"""The moving filter on systems we know, on odd data, and in every way in and out."""

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from recordings import turning
from sklearn.base import clone
from test_controls import driven
from test_filter_accuracy import error, linear_model, linear_sequences
from test_moving_parts import close, normal
from test_sensors import robot

from kbr import Embedding, KalmanFilter, KbrError, MovingFilter, load_filter
from kbr.core.filters.kernel.operators import transition_pairs
from kbr.core.filters.moving.choosing.fitting import Learner, MovingSettings
from kbr.core.filters.moving.choosing.scoring import held_out
from kbr.core.filters.moving.cloud import Cloud
from kbr.core.filters.moving.doubt import Doubt
from kbr.core.filters.moving.model import Tempering
from kbr.core.filters.moving.sensing import Shows
from kbr.core.filters.moving.smooth_map import MapChoice, SmoothMap
from kbr.core.filters.training_data import training_data

NAN = torch.nan
FIXED = {"sensing": "shows", "temper": 1.0, "inflate": 1.0, "outliers": 1e-3}
FIXED |= {"jitter": 0.0, "lasting": 0.0}
SMALL = {**FIXED, "n_particles": 200}


def circle(n, seed, noise=0.3):
    """A point on a ring, about .3 a step: x is a noisy look at z."""
    angle = (0.3 + 0.05 * normal(n, seed=seed)).cumsum(0)
    z = torch.stack([angle.cos(), angle.sin()], -1)
    return z + noise * normal(n, 2, seed=seed + 1000), z


@pytest.fixture(scope="module")
def fitted():
    return MovingFilter(**SMALL).fit(*circle(300, 0))


@pytest.mark.parametrize(
    ("settings", "n", "most"),
    [(FIXED, 500, 1.1), pytest.param({}, 1200, 1.05, marks=pytest.mark.slow)],
    ids=["given", "chosen"],
)
def test_error_is_near_that_of_the_kalman_filter(settings, n, most):
    """Half the latent is hidden; dynamics, sensor and noise are learned."""
    x, z = linear_sequences(60, 9, (20,))
    exact = KalmanFilter(model=linear_model()).filter(x)
    filt = MovingFilter(**settings, n_particles=300).fit(*linear_sequences(n, 1))
    found = filt.filter(x)
    assert 0.98 * error(exact.mean, z) < error(found.mean, z) < most * error(exact.mean, z)
    sizes = (found.raw_cov[:, 20:].diagonal(dim1=-2, dim2=-1)).mean((0, 1))
    truth = exact.cov.expand_as(found.cov)[:, 20:].diagonal(dim1=-2, dim2=-1).mean((0, 1))
    assert ((sizes / truth).log().abs() < math.log(1.25)).all()
    inside = filt.credible_region(found).contains(z).double().mean()
    assert 0.84 < inside < 0.96


def test_with_many_points_the_recursion_is_the_kalman_filter():
    """Given maps that are the true model: nothing is left but the number of points."""
    made = MovingFilter(**FIXED, n_particles=10, restart=0.0, standardize=False)
    model, exact = made.fit(*linear_sequences(60, 1)).model, linear_model()
    root = torch.linalg.cholesky(exact.initial_cov)
    start = normal(2000, 2, seed=21) @ root.mT
    step = exact.transition(torch.eye(2, dtype=torch.float64)) - torch.eye(2, dtype=torch.float64)
    dynamics = linear_map(step, exact.transition_cov)
    sensing = linear_map(torch.eye(2, dtype=torch.float64)[:, :1], exact.observation_cov)
    true = Shows(((0,),), (sensing,))
    model = replace(model, dynamics=dynamics, sensing=true, start=start, particles=4000)
    rows, _ = linear_sequences(60, 2)
    truth, found = KalmanFilter(model=exact).filter(rows), model.filtered(rows)
    size = truth.cov.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((found.mean - truth.mean) / size).square().mean().sqrt() < 0.1
    ratio = found.cov.diagonal(dim1=-2, dim2=-1).mean(0) / truth.cov.diagonal(
        dim1=-2, dim2=-1
    ).mean(0)
    assert (ratio.log().abs() < 0.1).all()


def test_errors_of_a_step_have_the_covariance_that_was_learned(fitted):
    cov = torch.tensor([[0.04, 0.05], [0.05, 0.09]], dtype=torch.float64)
    still = linear_map(torch.zeros(2, 2, dtype=torch.float64), cov)
    model = replace(fitted.model, dynamics=still, particles=20_000)
    model = replace(model, tempering=replace(model.tempering, inflate=2.0))
    points = torch.zeros(20_000, 2, dtype=torch.float64)
    mean, found = model.predicted(Cloud.even(points), None, model.draws(3)).moments()
    close(mean, torch.zeros_like(mean), 0.02)
    close(found, 4 * cov, 0.015)


def test_held_out_rows_are_not_known_to_the_models_that_they_judge():
    x, z = circle(200, 21)
    learner = Learner(training_data(x, z), MovingSettings(sensing="shows", particles=10))
    kind, whole = next(iter(learner.whole.items()))
    parts = learner.parts[kind]
    assert len(parts) > 1
    close(whole.dynamics.centre, learner.data.z[:-1].mean(0))
    for part in parts:
        rest, held = learner.data.outside(part.block), learner.data.z[list(part.block)]
        before = transition_pairs(rest.lengths)[0]
        close(part.model.dynamics.centre, rest.z[before].mean(0))
        assert torch.cdist(part.model.start, held).min() > 0
        close(part.model.sensing.maps[0].centre, rest.z.mean(0))


def linear_map(matrix, cov):
    """a -> matrix' a, with errors of this covariance: a map without landmarks."""
    d, k = matrix.shape
    sd = cov.diagonal().sqrt()
    like = torch.zeros(d, dtype=torch.float64)
    return SmoothMap(
        like,
        torch.ones_like(like),
        like.new_zeros(1, d),
        like.new_ones(()),
        torch.cat([like.new_zeros(k), 2 * sd.log()]),
        torch.cat([matrix, like.new_zeros(d, k)], -1),
        like.new_zeros(1, 2 * k),
        2 * sd.log(),
        2 * sd.log(),
        torch.linalg.cholesky(cov / torch.outer(sd, sd)),
        Doubt(like.new_zeros(d + 2, d + 2), like.new_zeros(d + 2, k), like.new_zeros(k)),
        MapChoice(1.0, like.new_ones(k), like.new_full((k,), torch.inf)),
        like.new_zeros(k),
    )


def test_filter_is_step_after_step_and_a_batch_is_one_by_one(fitted):
    x = torch.stack([circle(25, seed)[0] for seed in (1, 2, 3)])
    x[0, 6], x[1, 9:12], x[2, 4, 1] = NAN, NAN, NAN
    whole = fitted.filter(x)
    for k, rows in enumerate(x):
        alone, belief = fitted.filter(rows), fitted.init()
        close(whole.mean[k], alone.mean)
        close(whole.cov[k], alone.cov)
        for t, row in enumerate(rows):
            belief = fitted.step(belief, row)
            close(belief.mean, alone.mean[t])
            close(belief.cov, alone.cov[t])
            assert bool(belief.evidence) == bool(alone.evidence[t])
            close(belief.effective_sample_size, alone.effective_sample_size[t], 1e-3)
    assert belief.steps == 25
    assert whole.evidence.logical_not().nonzero().tolist()[:1] == [[0, 6]]
    assert not whole.evidence[2, 4]


def test_the_same_is_answered_twice_and_by_a_filter_fitted_again():
    data, x = circle(60, 0), circle(30, 4)[0]
    first, again = (MovingFilter(**SMALL).fit(*data) for _ in range(2))
    truth = first.filter(x)
    for found in (first.filter(x), again.filter(x)):
        assert torch.equal(found.mean, truth.mean)
        assert torch.equal(found.cov, truth.cov)
    other = MovingFilter(**SMALL, seed=1).fit(*data).filter(x)
    assert 0 < (other.mean - truth.mean).abs().max() < 0.2


def test_a_gap_is_predicted_and_its_regions_grow_and_hold_the_truth():
    filt = MovingFilter(**FIXED, n_particles=300).fit(*circle(400, 5))
    made = [circle(40, 100 + seed) for seed in range(60)]
    x, z = (torch.stack(part) for part in zip(*made, strict=True))
    x[:, 20:32] = NAN
    found = filt.filter(x)
    assert not found.evidence[:, 20:32].any()
    assert found.evidence[:, :20].double().mean() > 0.97
    size = found.cov.diagonal(dim1=-2, dim2=-1).sum(-1).mean(0)
    assert size[31] > size[25] > size[19]
    assert size[31] > 1.5 * size[19]
    assert size[36] < 0.8 * size[31]
    inside = filt.credible_region(found).contains(z).double()
    assert 0.84 < inside[:, 20:32].mean() < 0.98
    assert 0.84 < inside[:, 5:20].mean() < 0.97
    off = (found.mean - z).square().sum(-1).mean(0)
    assert off[31] < 0.2  # the dynamics are known


class TestOddObservations:
    def test_a_gross_outlier_is_flagged_and_moves_nothing(self, fitted):
        x, z = circle(40, 6, noise=0.1)
        seen = x.clone()
        seen[25] = -z[25]  # like a training row, but on the other side of the ring
        gap = x.clone()
        gap[25] = NAN
        found, plain, blind = (fitted.filter(rows) for rows in (seen, x, gap))
        assert found.evidence.logical_not().nonzero().flatten().tolist() == [25]
        close(found.mean[25], blind.mean[25], 0.1)
        assert (found.mean[25] - z[25]).norm() < 0.3
        close(found.mean[30:], plain.mean[30:], 0.1)

    def test_a_state_that_has_truly_moved_is_found_again(self, fitted):
        (x, z), half = circle(60, 7), 30
        x[half:], z[half:] = -x[half:], -z[half:]
        off = (fitted.filter(x).mean - z).norm(dim=-1)
        assert off[half] > 1
        assert off[half + 5 :].max() < 0.6
        never = replace(fitted.model, restart=0.0)
        inner = fitted.units.x.apply(x)
        lost = fitted.units.z.linear(never.filtered(inner).mean)
        assert (lost - z).norm(dim=-1)[half : half + 5].min() > 1

    @pytest.mark.parametrize("far", [1e3, 1e30, torch.inf])
    def test_what_is_unlike_all_training_rows_is_no_evidence(self, fitted, far):
        x = circle(20, 8)[0]
        x[12] = far
        found = fitted.filter(x)
        assert found.evidence.logical_not().nonzero().flatten().tolist() == [12]
        assert found.mean.isfinite().all()
        assert found.cov.isfinite().all()

    def test_four_radii_away_is_unlike(self, fitted):
        x = circle(300, 0)[0]
        middle, radius = x.mean(0), (x - x.mean(0)).square().sum(-1).mean().sqrt()
        row = middle + 4 * radius * torch.tensor([0.6, 0.8])
        assert not fitted.step(fitted.init(), row).evidence
        assert fitted.step(fitted.init(), x[3]).evidence


def test_absent_sensors_drop_out_and_the_others_count(tmp_path):
    x, z = robot(400, 2000, absent=0.7)
    rows, truth = robot(150, 2001, absent=0.7)
    filt = MovingFilter(**SMALL).fit(x, z, sensors="each")
    found = filt.filter(rows)
    assert torch.equal(found.evidence[10:], rows.isfinite().any(-1)[10:])
    assert error(found.mean[10:], truth[10:]) < 0.05 * truth.square().sum(-1).mean()
    blind = torch.where(rows.isfinite().all(-1, keepdim=True), rows, NAN)
    assert error(found.mean[10:], truth[10:]) < 0.2 * error(filt.filter(blind).mean, truth) < 2
    inside = filt.credible_region(found).contains(truth).double()[10:].mean()
    assert 0.8 < inside < 0.99
    belief = filt.init()
    for row in rows[:12]:
        belief = filt.step(belief, row)
    close(belief.mean, found.mean[11])
    filt.save(tmp_path / "filter")
    close(load_filter(tmp_path / "filter").filter(rows).mean, found.mean)
    far = rows.clone()
    far[20] = torch.tensor([NAN, 50.0, NAN, NAN])
    assert not filt.filter(far).evidence[20]


def test_sensors_that_are_seldom_there():
    x, z = circle(120, 9)
    late, early, never = x.clone(), x.clone(), x.clone()
    late[:-12, 1], early[12:, 1], never[9:, 1] = NAN, NAN, NAN
    for rows in (late, early):
        found = MovingFilter(**SMALL).fit(rows, z, sensors="each").filter(circle(30, 10)[0])
        assert found.mean.isfinite().all()
        assert found.evidence.all()
    for rows in (never, torch.where(x.new_tensor([True, False]).bool(), x, NAN)):
        with pytest.raises(KbrError, match=r"at least 10 training rows.*'x_2' has [90]"):
            MovingFilter(**SMALL).fit(rows, z, sensors="each")
    with pytest.raises(KbrError, match="sensing='tells'"):
        MovingFilter(sensing="tells").fit(x, z, sensors="each")


def test_a_driven_oscillator_needs_its_controls(tmp_path):
    x, z, u = driven(150, 0)
    x_test, z_test, u_test = driven(100, 500)
    filt = MovingFilter(**SMALL).fit(x, z, u=u)
    found = filt.filter(x_test, u=u_test)
    ignored = MovingFilter(**SMALL).fit(x, z).filter(x_test)
    assert error(found.mean, z_test) < 0.5 * error(ignored.mean, z_test)
    belief = filt.step(filt.init(), x_test[0])
    for row, push in zip(x_test[1:6], u_test[1:6], strict=True):
        belief = filt.step(belief, row, u=push)
    close(belief.mean, found.mean[5])
    ahead = filt.forecast(belief, u=u_test[6:9])
    gap = x_test[:9].clone()
    gap[6:] = NAN
    close(ahead.mean, filt.filter(gap, u=u_test[:9]).mean[-1])
    pushed = filt.forecast(belief, u=u_test[6:9] + 1.0)
    assert (pushed.mean - ahead.mean).norm() > 0.5
    filt.save(tmp_path / "filter")
    close(MovingFilter.load(tmp_path / "filter").filter(x_test, u=u_test).mean, found.mean)
    with pytest.raises(KbrError, match="fitted with control inputs"):
        filt.filter(x_test)


def test_a_position_alone_is_followed_with_its_velocity():
    x, z = circle(150, 11)
    x_test, z_test = circle(100, 12)
    x, z, x_test, z_test = (part[:, :1] for part in (x, z, x_test, z_test))
    plain, made = (MovingFilter(**SMALL, velocity=v).fit(x, z) for v in (False, "auto"))
    found = made.filter(x_test)
    assert found.mean.shape == (100, 1)
    assert error(found.mean, z_test) < 0.6 * error(plain.filter(x_test).mean, z_test)
    belief = made.step(made.init(), x_test[0])
    close(belief.mean, found.mean[0])
    assert made.summary().details["velocity"] == "followed"
    with pytest.raises(KbrError, match="velocity"):
        made.init(prior=z[:5])


@pytest.mark.parametrize("velocity", [False, True])
def test_an_angle_beside_a_column_about_a_million(velocity):
    x, yaw = turning(200)
    high = 1e6 + 30 * np.sin(np.radians(yaw))
    z = np.concatenate([yaw, high], 1)
    filt = MovingFilter(**SMALL, velocity=velocity)
    filt.fit(1e6 + 1e-3 * x[:150], z[:150], circular="z_1")
    found = filt.filter(1e6 + 1e-3 * x[150:])
    mean = found.mean.numpy()
    assert ((mean[:, 0] >= 0) & (mean[:, 0] < 360)).all()
    off = (mean[:, 0] - z[150:, 0] + 180) % 360 - 180
    assert np.abs(off)[5:].mean() < 12
    assert np.abs(mean[5:, 1] - z[155:, 1]).mean() < 8
    truth = filt.units.z.nearest(torch.as_tensor(z[150:]), found.mean)
    assert 0.75 < filt.credible_region(found).contains(truth).double().mean() <= 1
    belief = filt.init()
    for row in x[150:156]:
        belief = filt.step(belief, 1e6 + 1e-3 * row)
    close(belief.mean, found.mean[5], 1e-5)


def test_units_of_the_data_are_those_of_the_answer(fitted):
    units, x = torch.tensor([1e-4, 1e6]), circle(40, 13)[0]
    train = circle(300, 0)
    other = MovingFilter(**SMALL).fit(*(units * part + 3 * units for part in train))
    found, truth = other.filter(units * x + 3 * units), fitted.filter(x)
    close(found.mean / units - 3, truth.mean, 1e-4)
    close(found.cov / torch.outer(units, units), truth.cov, 1e-4)


def test_a_prior_of_ones_own_is_where_the_filter_starts(fitted):
    _, z = circle(300, 0)
    near = z[:1] + 0.05 * normal(60, 2, seed=22)
    nothing = torch.full((2,), NAN)
    for prior in (near, Embedding.from_samples(near)):
        belief = fitted.init(prior=prior)
        close(belief.mean, near.mean(0))
        assert belief.raw_cov.diagonal().max() < 0.01
        close(fitted.step(belief, nothing).mean, belief.mean)
        later = fitted.forecast(belief, 6)
        assert (later.mean - near.mean(0)).norm() > 0.5
    weighted = Embedding(near, torch.nn.functional.one_hot(torch.tensor(4), 60).double())
    close(fitted.init(prior=weighted).mean, near[4])
    assert fitted.step(fitted.init(prior=weighted), z[0]).mean.isfinite().all()
    with pytest.raises(KbrError, match=r"shape \[m, dz\]"):
        fitted.init(prior=near[:, :1])
    with pytest.raises(KbrError, match="a weight above zero"):
        fitted.init(prior=Embedding(near, torch.zeros(60)))


def test_a_long_gap_leads_nowhere_else_than_training_did():
    """Beyond the latents a linear part goes on: few rows may make it explode."""
    x, z = robot(400, 1000, absent=0.7)
    filt = MovingFilter(**SMALL).fit(x, z, sensors="each")
    rows = robot(150, 1001, absent=0.7)[0]
    gap = torch.where(rows.isfinite().all(-1, keepdim=True), rows, NAN)
    for far in (filt.filter(gap), filt.forecast(filt.init(), 200, path=True)):
        assert (far.mean.abs() <= 3 * z.abs().max()).all()
        assert (far.raw_cov.abs() <= 10 * z.square().max()).all()
        assert far.cov.isfinite().all()
    steep = linear_map(9 * torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    model = replace(filt.model, dynamics=steep)
    low, high, _ = model.bounds
    cloud = model.begin()
    for step in range(30):
        cloud = model.predicted(cloud, None, model.draws(step))
        assert ((cloud.points >= low) & (cloud.points <= high)).all()


def test_forecasts_are_steps_without_an_observation(fitted):
    x = circle(20, 14)[0]
    belief = fitted.init()
    for row in x[:10]:
        belief = fitted.step(belief, row)
    path = fitted.forecast(belief, 10, path=True)
    assert path.mean.shape == (10, 2)
    assert not path.evidence.any()
    gap = x.clone()
    gap[10:] = NAN
    close(path.mean, fitted.filter(gap).mean[10:])
    close(path.cov, fitted.filter(gap).cov[10:])
    for k in (1, 4, 10):
        close(fitted.forecast(belief, k).mean, path.mean[k - 1])
    start = fitted.forecast(fitted.init())
    close(start.mean, fitted.init().mean)
    assert start.steps == 1


def test_copies_files_and_devices_are_the_same_filter(fitted, tmp_path):
    x, path = circle(30, 15)[0], tmp_path / "filter.ckpt"
    fitted.save(path)
    truth = fitted.filter(x)
    copies = [pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted), fitted.to("cpu")]
    for made in [*copies, MovingFilter.load(path), load_filter(path)]:
        found = made.filter(x)
        close(found.mean, truth.mean, 1e-12)
        close(found.cov, truth.cov, 1e-12)
        assert made.get_params(deep=False) == fitted.get_params(deep=False)
        assert made.chosen == fitted.chosen
        assert made.val_mse == pytest.approx(fitted.val_mse)
        assert made.shape == (2,)
        assert repr(made) == repr(fitted)
    fresh = clone(fitted)
    assert not fresh.is_fitted
    assert fresh.get_params() == fitted.get_params()
    with pytest.raises(KbrError, match="is fitted"):
        fitted.set_params(temper=0.5)


DAMAGE = {
    "nothing": (),
    "no model": ("model", None),
    "no start": ("model", "start", None),
    "an empty start": ("model", "start", torch.zeros(0, 2, dtype=torch.float64)),
    "a start of other latents": ("model", "start", torch.zeros(5, 3, dtype=torch.float64)),
    "a start of single precision": ("model", "start", torch.zeros(5, 2)),
    "no dynamics": ("model", "dynamics", {}),
    "dynamics of NaN": ("model", "dynamics", "offset", torch.full((4,), NAN, dtype=torch.float64)),
    "fewer landmarks": ("model", "dynamics", "landmarks", torch.zeros(1, 2, dtype=torch.float64)),
    "a sensor of no kind": ("model", "sensing", "kind", "smells"),
    "a sensor without maps": ("model", "sensing", "maps", []),
    "a sensor of other columns": ("model", "sensing", "columns", [[0]]),
    "columns that are not there": ("model", "columns", [[0, 7]]),
    "no reach": ("model", "reaches", []),
    "no points": ("model", "particles", 0),
    "outliers only": ("model", "tempering", "outliers", 1.0),
    "tempered by words": ("model", "tempering", "temper", "much"),
    "a restart above one": ("model", "restart", 2.0),
    "unknown settings": ("settings", {"particles": 3}),
    "impossible settings": ("settings", {"temper": 3}),
    "no units": ("units", None),
    "no calibration of this kind": ("calibration", {"blend": 1}),
    "another shape": ("shape", [1]),
    "a negative shape": ("shape", [-2]),
    "rates that are not there": ("rates", 1),
    "no number": ("val_mse", None),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_state_is_refused(fitted, name):
    state = copy.deepcopy(fitted.state())
    if not DAMAGE[name]:
        state = {}
    else:
        *way, key, value = DAMAGE[name]
        place = state
        for part in way:
            place = place[part]
        place[key] = value
    with pytest.raises(KbrError):
        MovingFilter.from_state(state)


def test_settings_that_cannot_be_are_refused_by_name():
    bad = {
        "n_particles": [0, -3, True],
        "sensing": ["smells"],
        "temper": [0.0, 1.1, "some", math.nan],
        "inflate": [0.0, -1.0, "some", math.inf, math.nan],
        "outliers": [0.0, 0.6, "some"],
        "restart": [-0.1, 1.0, math.nan],
        "velocity": ["some"],
        "seed": [-1, True],
    }
    for name, values in bad.items():
        for value in values:
            with pytest.raises(KbrError, match=f"^{name} must be"):
                MovingFilter(**{name: value})
    with pytest.raises(TypeError, match="particles"):
        MovingFilter(particles=3)
    for name, value in {"n_particles": 1.5, "seed": None, "velocity": 2, "restart": "some"}.items():
        wrong = MovingFilter()
        setattr(wrong, name, value)
        with pytest.raises(KbrError, match=f"^{name} must be"):
            wrong.__post_init__()


def test_what_does_not_fit_is_refused(fitted):
    x, z = circle(40, 16)
    with pytest.raises(KbrError, match=r"at least 10 training steps.*got 9"):
        MovingFilter().fit(x[:9], z[:9])
    with pytest.raises(KbrError, match="consecutive steps"):
        MovingFilter().fit(list(x.split(1)), list(z.split(1)))
    with pytest.raises(KbrError, match=r"one data set.*\[2, 20, 2\]"):
        MovingFilter().fit(x.reshape(2, 20, 2), z.reshape(2, 20, 2))
    with pytest.raises(KbrError, match="not fitted"):
        MovingFilter().filter(x)
    with pytest.raises(KbrError, match="one observation"):
        fitted.step(fitted.init(), x[:3])
    with pytest.raises(KbrError, match="at least one step"):
        fitted.filter(x[:0])
    with pytest.raises(KbrError, match=r"x has 2 column"):
        fitted.filter(x[:, :1])
    with pytest.raises(KbrError, match="no smoother"):
        fitted.smooth(x)


def parts(x, z):
    """Data of odd kinds: x, z and rows to filter."""
    ones, few = torch.ones(len(x), 1, dtype=torch.float64), 20
    frames = normal(len(x), 2, 6, 6, seed=23)
    frames[:, 0] += 3 * z[:, :1, None]
    return {
        "numbers": (x[:, 0], z, x[:few, 0]),
        "numbers of numbers": (x[:, 0], z[:, 0], x[:few, 0]),
        "frames": (frames, z, frames[:few]),
        "single precision": (x.float(), z.float(), x[:few].float()),
        "whole numbers": ((10 * x).long().numpy(), (10 * z).long().numpy(), (10 * x[:few]).long()),
        "a constant column of x": (torch.cat([x, ones / 3], -1), z, None),
        "a constant column of z": (x, torch.cat([z, 1e6 * ones], -1), x[:few]),
        "rows that are all the same": (ones.expand(-1, 2), ones.expand(-1, 2), ones[:few] * 1.0),
        "a blind sensor": (ones, z, ones[:few]),
        "columns twice": (torch.cat([x, x], -1), torch.cat([z, z], -1), None),
        "no noise": (z, z, z[:few]),
        "pairs": (list(x.split(2)), list(z.split(2)), x[:few]),
        "ten rows": (x[:10], z[:10], x[:few]),
        "numbers of any size": (1e150 * x, 1e-150 * z, 1e150 * x[:few]),
    }


@pytest.mark.parametrize("kind", parts(*circle(10, 0)))
def test_odd_data_are_fitted_and_filtered(kind):
    x, z, rows = parts(*circle(40, 17))[kind]
    rows = x[:20] if rows is None else rows
    rows = rows.expand(-1, 2) if kind == "rows that are all the same" else rows
    filt = MovingFilter(n_particles=50, inflate=1.0, outliers=1e-3, temper=1.0).fit(x, z)
    found, belief = filt.filter(rows), filt.init()
    assert found.mean.isfinite().all()
    assert found.cov.isfinite().all()
    for row in rows[:3]:
        belief = filt.step(belief, row)
    torch.testing.assert_close(belief.mean, found.mean[2], rtol=1e-6, atol=1e-6)
    assert torch.linalg.eigvalsh(found.cov).min() > -1e-9 * found.cov.abs().max()
    if kind == "frames":
        assert filt.model.sensing.kind == "tells"
        assert error(found.mean[5:, :1], z[5:20, :1]) < 0.2
    if "constant column of z" in kind:
        close(found.mean[:, 2], torch.full((20,), 1e6, dtype=torch.float64), 1e-2)


def test_the_summary_fits_a_page(fitted):
    long = {f"a column with quite a long name {k}": v for k, v in enumerate(circle(60, 18)[0].T)}
    wide = MovingFilter(**SMALL).fit(long, circle(60, 18)[1])
    for filt in (fitted, wide):
        shown = str(filt.summary())
        assert max(map(len, shown.splitlines())) <= 80
        for word in ("MovingFilter", "temper", "inflate", "outliers", "shows, given", "coverage"):
            assert word in shown
    for value in (fitted, MovingFilter(), fitted.init(), fitted.filter(circle(5, 19)[0])):
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)


def test_settings_tried_together_are_those_tried_one_by_one():
    x, z = circle(90, 22)
    learner = Learner(training_data(x, z), MovingSettings(sensing="shows", particles=30))
    parts = next(iter(learner.parts.values()))
    settings = [
        Tempering(),
        Tempering(temper=0.25, inflate=2.0),
        Tempering(outliers=0.1),
    ]
    together = held_out(parts, settings, 0)
    alone = [held_out(parts, [one], 0)[0] for one in settings]
    assert len({found.score for found in together}) == 3
    for found, expected in zip(together, alone, strict=True):
        assert found.score == pytest.approx(expected.score, rel=1e-6)
        assert found.mse == pytest.approx(expected.mse, rel=1e-6)


def test_settings_are_chosen_by_held_out_steps():
    """Errors of the sensor that last for many steps: less than each row says is believed."""
    z, lasting = circle(200, 20)[1], torch.zeros(2, dtype=torch.float64)
    noise = []
    for kick in normal(200, 2, seed=44):
        lasting = 0.95 * lasting + 0.15 * kick
        noise.append(lasting)
    x = z + torch.stack(noise)
    filt = MovingFilter(n_particles=100, sensing="shows").fit(x, z)
    tempered = MovingFilter(n_particles=100, sensing="shows", lasting=0.0).fit(x, z)
    plain = MovingFilter(**SMALL).fit(x, z)
    assert filt.chosen["lasting"] == 1
    assert tempered.chosen["temper"] < 1
    assert max(filt.val_mse, tempered.val_mse) < 0.8 * plain.val_mse
    trials = []

    def counted(some):
        trials.extend(some)
        return trials

    MovingFilter(n_particles=20).fit(x[:30], z[:30], progress=counted)
    assert len(trials) >= 8  # of both ways to learn the sensor, and of every setting
