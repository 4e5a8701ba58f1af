"""The heading task: which frame is seen, what is random, and its likelihood by plain loops."""

import math

import numpy as np
import pytest
import torch

from kbr.core.datasets.frame_table import FrameTable
from kbr.core.datasets.heading import Heading
from kbr.core.errors import KbrError
from kbr.core.filters.classical.particle import ParticleFilter


def table(yaw, *, size=(3, 4), seed=0):
    """Random frames at these headings; every frame is different."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand((len(yaw), 3, *size), generator=generator)
    return FrameTable(images=images, yaw=torch.tensor(yaw, dtype=torch.float64))


def smooth_table(count=360, size=(4, 6)):
    """Frames that change little by little: waves over the turn."""
    yaw = torch.arange(count, dtype=torch.float64) * 360 / count
    phase = torch.linspace(0, 6, 3 * size[0] * size[1]).reshape(3, *size)
    images = 0.5 + 0.4 * torch.cos(torch.deg2rad(yaw).float()[:, None, None, None] + phase)
    return FrameTable(images=images, yaw=yaw)


UNEVEN = [10.0, 350.0, -100.0, 95.0, 200.0, 470.0]  # any order, any spacing, beyond a turn


class TestFrameTable:
    def test_the_nearest_heading_wraps_at_360(self):
        frames = table(UNEVEN)
        headings = np.sort(np.array(UNEVEN) % 360)
        for degrees in np.arange(-719.9, 720, 7.3):
            distance = np.abs((headings - degrees + 180) % 360 - 180)
            found = int(frames.nearest(torch.tensor(math.radians(degrees))))
            assert found == distance.argmin()

    def test_frames_are_sorted_and_between_zero_and_one(self):
        images = torch.arange(5 * 3, dtype=torch.uint8).reshape(5, 3, 1, 1) * 17
        frames = FrameTable(images=images, yaw=torch.tensor([0.0, 300.0, 100.0, 200.0, -1.0]))
        order = [0, 2, 3, 1, 4]
        torch.testing.assert_close(frames.pixels, images[order] / 255)
        assert frames.shape == (3, 1, 1)

    @pytest.mark.parametrize("sigma", [0.0, 0.05, 0.2, 1.0, 5.0])
    def test_chances_are_those_of_sampling(self, sigma):
        frames = table(UNEVEN)
        theta = torch.tensor([0.1, 1.0, 3.1, -2.0], dtype=torch.float64)
        chance = frames.chance(theta, torch.arange(6), sigma=sigma)
        torch.testing.assert_close(chance.sum(-1), torch.ones(4, dtype=torch.float64))
        noise = torch.randn(4, 100_000, generator=torch.Generator().manual_seed(0)).double()
        index = frames.nearest(theta.unsqueeze(-1) + sigma * noise)
        counted = torch.stack([(index == k).double().mean(-1) for k in range(6)], dim=-1)
        torch.testing.assert_close(chance, counted, rtol=0, atol=8e-3)

    @pytest.mark.parametrize(
        ("images", "yaw", "words"),
        [
            (torch.rand(1, 3, 2, 2), [0.0], "full turn"),
            (torch.rand(2, 3, 2, 2), [0.0, 360.0], "full turn"),
            (torch.rand(2, 3, 2, 2), [0.0, math.nan], "yaw must be finite"),
            (255 * torch.rand(2, 3, 2, 2), [0.0, 90.0], "255"),
        ],
    )
    def test_bad_tables_are_named(self, images, yaw, words):
        with pytest.raises(KbrError, match=words):
            FrameTable(images=images, yaw=torch.tensor(yaw))

    @pytest.mark.parametrize("shape", [(4, 2, 2), (4, 1, 2, 2), (5, 3, 2, 2)])
    def test_wrong_shapes_fail(self, shape):
        with pytest.raises(Exception, match=r"images|yaw"):
            FrameTable(images=torch.rand(shape), yaw=torch.arange(4.0))


def test_shapes_and_types():
    task = Heading(frames=table(UNEVEN))
    data = task.generate(n_train=7, n_test=5, seed=0, batch=(2, 3))
    assert data.x_train.shape == (2, 3, 7, 3, 3, 4)
    assert data.x_test.shape == (2, 3, 5, 3, 3, 4)
    assert data.x_train.dtype == torch.float32
    assert data.z_train.shape == (2, 3, 7, 2)
    assert data.z_test.dtype == torch.float64
    torch.testing.assert_close(data.z_test.norm(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))


def test_the_seed_decides():
    task = Heading(frames=table(UNEVEN))
    first, again, other = (task.generate(n_train=5, n_test=3, seed=s) for s in (1, 1, 2))
    assert (first.x_test == again.x_test).all()
    assert (first.z_train == again.z_train).all()
    assert (first.x_train != other.x_train).any()
    assert (first.z_train[:3] != first.z_test).any()


def test_frames_show_the_noisy_headings():
    """`noisy_headings` draws the random numbers that `generate` draws."""
    task = Heading(frames=smooth_table(), pixel_noise=0.0)
    data = task.generate(n_train=40, n_test=30, seed=3)
    noisy = task.noisy_headings(n_train=40, n_test=30, seed=3)
    for x, y, z in zip(
        (data.x_train, data.x_test), noisy, (data.z_train, data.z_test), strict=True
    ):
        assert (x == task.frames.pixels[task.frames.nearest(y)]).all()
        off = torch.atan2(z[:, 1], z[:, 0]) - y
        off = torch.remainder(off + math.pi, 2 * math.pi) - math.pi
        assert 0.1 < float(off.std()) < 0.3


def test_noise_levels():
    """Turn .4 and .2 a step, heading noise .2, pixel variance .01."""
    task = Heading(frames=smooth_table())
    data = task.generate(n_train=4000, n_test=1, seed=0)
    theta = torch.atan2(data.z_train[:, 1], data.z_train[:, 0])
    step = torch.remainder(theta.diff(), 2 * math.pi)
    step = torch.where(step > math.pi, step - 2 * math.pi, step)
    assert float(step.mean()) == pytest.approx(0.4, abs=0.015)
    assert float(step.std()) == pytest.approx(0.2, rel=0.05)
    noisy, _ = task.noisy_headings(n_train=4000, n_test=1, seed=0)
    off = torch.remainder(noisy - theta + math.pi, 2 * math.pi) - math.pi
    assert float(off.std()) == pytest.approx(0.2, rel=0.05)
    quiet = task.frames.pixels[task.frames.nearest(noisy)]
    assert float((data.x_train - quiet).std()) == pytest.approx(0.1, rel=0.02)


def test_first_headings_are_uniform():
    z = Heading(frames=table(UNEVEN)).generate(n_train=1, n_test=1, batch=(4000,)).z_train
    assert z.mean((0, 1)).abs().max() < 0.05


def slow_log_likelihood(task, x, z, draws=200_000):
    """log p(x | z) by sampling the heading's noise."""
    rng = np.random.default_rng(0)
    theta = math.atan2(z[1], z[0]) + task.sigma_x * rng.standard_normal(draws)
    frames = task.frames.pixels[task.frames.nearest(torch.tensor(theta))].double()
    square = (frames - x.double()).square().flatten(1).sum(-1)
    log_p = -0.5 * square / task.pixel_noise**2
    log_p -= 0.5 * x.numel() * math.log(2 * math.pi * task.pixel_noise**2)
    return float(log_p.logsumexp(0)) - math.log(draws)


def test_the_likelihood_is_that_of_sampling():
    task = Heading(frames=smooth_table(count=40), pixel_noise=0.3)
    data = task.generate(n_train=3, n_test=1, seed=0)
    z = data.z_train
    value = task.log_likelihood(data.x_train, z.expand(3, 3, 2))
    for i in range(3):
        for j in range(3):
            if float(value[i, j]) > float(value[i].max()) - 6:  # else sampling is too rare
                slow = slow_log_likelihood(task, data.x_train[i], z[j])
                assert float(value[i, j]) == pytest.approx(slow, abs=0.05)


def test_likelihoods_far_away_are_finite_and_ordered():
    """Also half a turn away, where nearly all of the normal's mass is elsewhere."""
    task = Heading(frames=smooth_table())
    x = task.frames.pixels[0]
    theta = torch.linspace(0, math.pi, 30, dtype=torch.float64)
    value = task.log_likelihood(x, torch.stack([theta.cos(), theta.sin()], dim=-1))
    assert value.isfinite().all()
    assert (value[2:].diff() < 0).all()


def test_the_particle_filter_reaches_the_oracle():
    """With clear pictures the frames tell the noisy headings, and no more."""
    task = Heading(frames=smooth_table(size=(12, 16)), pixel_noise=0.05)
    data = task.generate(n_train=1, n_test=150, seed=0, batch=(4,))
    _, noisy = task.noisy_headings(n_train=1, n_test=150, seed=0, batch=(4,))
    oracle = task.oracle.filter(noisy)
    result = ParticleFilter(model=task.state_space(), n_particles=600).filter(data.x_test)
    assert (result.mean - oracle.mean).square().sum(-1).mean() < 2e-3
    errors = [(r.mean - data.z_test).square().sum(-1).mean() for r in (result, oracle)]
    assert float(errors[0]) == pytest.approx(float(errors[1]), rel=0.1)


def test_transitions_keep_to_the_circle_and_turn():
    model = Heading(frames=table(UNEVEN)).state_space()
    z = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(20_000, 2)
    ahead = model.draw_transition(z, torch.Generator().manual_seed(0))
    torch.testing.assert_close(ahead.norm(dim=-1), torch.ones(20_000, dtype=torch.float64))
    angle = torch.atan2(ahead[:, 1], ahead[:, 0])
    assert float(angle.mean()) == pytest.approx(0.4, abs=0.01)
    assert float(angle.std()) == pytest.approx(0.2, rel=0.03)
    mean = model.transition(z[0])
    torch.testing.assert_close(mean, torch.tensor([math.cos(0.4), math.sin(0.4)]).double())


def test_the_angular_error_is_in_degrees():
    task = Heading(frames=table(UNEVEN))
    degrees = torch.tensor([[0.0, 90.0, 179.0]], dtype=torch.float64)
    answer = torch.deg2rad(degrees + torch.tensor([10.0, -20.0, 3.0]))
    truth, mean = (
        torch.stack([a.cos(), a.sin()], dim=-1) for a in (torch.deg2rad(degrees), answer)
    )
    found = task.extra_metrics(0.3 * mean, truth)  # the length of an answer does not matter
    assert found == {"test/angular_error_degrees": pytest.approx(11.0)}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"pixel_noise": -1.0}, "pixel_noise"),
        ({"sigma_x": math.nan}, "sigma_x"),
        ({"omega": math.inf}, "omega"),
    ],
)
def test_bad_settings_are_named(settings, name):
    with pytest.raises(KbrError, match=name):
        Heading(frames=table(UNEVEN), **settings)


@pytest.mark.parametrize("sizes", [{"n_train": 0, "n_test": 1}, {"n_train": 1, "n_test": 0}])
def test_lengths_are_checked(sizes):
    task = Heading(frames=table(UNEVEN))
    for draw in (task.generate, task.noisy_headings):
        with pytest.raises(KbrError, match="at least 1 step"):
            draw(**sizes)


def test_no_pixel_noise_has_no_likelihood():
    task = Heading(frames=table(UNEVEN), pixel_noise=0.0)
    with pytest.raises(KbrError, match="pixel_noise"):
        task.log_likelihood(torch.rand(3, 3, 4), torch.ones(1, 2))
