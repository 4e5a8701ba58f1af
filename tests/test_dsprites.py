"""The dSprites sequence task: what is drawn, what is random, and its likelihood by plain loops."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kbr.core.datasets.dsprites import DSprites
from kbr.core.datasets.dsprites_file import DSpritesFile, file_md5
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.datasets.sprites import SpriteRenderer
from kbr.core.errors import KbrError
from kbr.core.filters.classical.particle import ParticleFilter


def centre(image: Tensor) -> tuple[float, float]:
    """Centre of mass (column, row), in pixels."""
    i, j = image.reshape(64, 64).nonzero().double().add(0.5).unbind(-1)
    return float(j.mean()), float(i.mean())


def test_shapes_and_types():
    data = DSprites().generate(n_train=7, n_test=5, seed=0, batch=(2, 3))
    assert data.x_train.shape == (2, 3, 7, 1, 64, 64)
    assert data.x_test.shape == (2, 3, 5, 1, 64, 64)
    assert data.x_train.dtype == torch.float32
    assert data.z_train.shape == (2, 3, 7, 2)
    assert data.z_test.dtype == torch.float64


def test_the_seed_decides():
    task = DSprites()
    first, again, other = (task.generate(n_train=5, n_test=3, seed=s) for s in (1, 1, 2))
    passed = task.generate(n_train=5, n_test=3, seed=torch.Generator().manual_seed(1))
    assert (first.x_test == again.x_test).all()
    assert (first.x_test == passed.x_test).all()
    assert (first.x_train != other.x_train).any()
    assert (first.z_train[:3] != first.z_test).all()


def test_latents_are_the_papers_dynamics():
    """omega = beta = .4, M = 8, sigma_z = .2: the same draws as the low-dimensional task."""
    data = DSprites().generate(n_train=6, n_test=1, seed=4)
    plain = Oscillatory(sigma_x=0.05).generate(n_train=6, n_test=1, seed=4)
    torch.testing.assert_close(data.z_train, plain.z_train)


def test_images_show_the_noisy_position():
    """Without noise, the image is the sprite at the grid position nearest to z."""
    task = DSprites(sigma_x=0.0, pixel_noise=0.0)
    data = task.generate(n_train=30, n_test=1, seed=0)
    classes = torch.tensor([[2, 0, 0, 0, 0]]).repeat(30, 1)
    classes[:, 3:] = (31 * (data.z_train.clamp(-1.5, 1.5) + 1.5) / 3).round().long()
    expected = SpriteRenderer().images(classes)
    assert (data.x_train.squeeze(1) == expected).all()


def test_noise_levels():
    """The pixels' variance is .01, and the position's standard deviation sigma_x plus rounding."""
    task = DSprites(sigma_x=0.2)
    data = task.generate(n_train=400, n_test=1, seed=0)
    corner = data.x_train[..., :4, :4]  # never reached by the sprite
    assert corner.std() == pytest.approx(0.1, rel=0.03)
    assert corner.mean() == pytest.approx(0.0, abs=0.005)
    quiet = DSprites(sigma_x=0.2, pixel_noise=0.0).generate(n_train=400, n_test=1, seed=0)
    seen = torch.tensor([centre(x) for x in quiet.x_train]).double()
    inside = (quiet.z_train.abs() < 1).all(-1)
    error = (seen - 32) / 32 * 3 - quiet.z_train
    error = (error - error[inside].mean(0))[inside]  # a heart's mass is not at its origin
    assert error.std() == pytest.approx(math.hypot(0.2, 3 / 31 / math.sqrt(12)), rel=0.1)


def test_directions_and_clamping():
    """u is to the right, v downwards; beyond the extent the sprite stays at the grid's border."""
    task = DSprites()
    middle, right, down, far, corner = task.frames(
        torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [9.0, -2.0], [1.5, -1.5]])
    )
    pixels = 32 / 3  # per unit of z
    x0, y0 = centre(middle)
    assert centre(right) == pytest.approx((x0 + pixels, y0), abs=1)
    assert centre(down) == pytest.approx((x0, y0 + pixels), abs=1)
    assert (far == corner).all()


def test_nan_position():
    with pytest.raises(KbrError, match="position must be finite"):
        DSprites().frames(torch.tensor([[0.0, math.nan]]))


def chance(cell: int, u: float, sigma: float, extent: float = 1.5) -> float:
    """P(u + N(0, sigma^2), clamped to the extent, is rounded to this cell)."""
    width = 2 * extent / 31
    low = -math.inf if cell == 0 else -extent + (cell - 0.5) * width
    high = math.inf if cell == 31 else -extent + (cell + 0.5) * width
    if low > u:  # by symmetry; differences of numbers near one have no digits left
        low, high = 2 * u - high, 2 * u - low
    unit = sigma * math.sqrt(2)
    return 0.5 * (math.erfc((u - high) / unit) - math.erfc((u - low) / unit))


@pytest.mark.parametrize(("sigma_x", "pixel_noise"), [(0.05, 1.0), (0.3, 0.5)])
def test_log_likelihood_equals_plain_loops(sigma_x, pixel_noise):
    """The mixture over 1024 grid positions, term by term."""
    task = DSprites(sigma_x=sigma_x, pixel_noise=pixel_noise)
    x, _ = task.sample(1, torch.Generator().manual_seed(0))
    z = torch.tensor([[0.4, -0.2], [1.49, 0.1], [-1.7, 2.0]], dtype=torch.float64)
    image = x[0].double().flatten()
    for k, (u, v) in enumerate(z.tolist()):
        terms = []
        for i in range(32):
            for j in range(32):
                sprite = task.table[32 * i + j].double()
                square = float((image - sprite).square().sum())
                weight = chance(i, u, sigma_x) * chance(j, v, sigma_x)
                if weight > 0:
                    terms.append(math.log(weight) - 0.5 * square / pixel_noise**2)
        peak = max(terms)
        expected = peak + math.log(sum(math.exp(t - peak) for t in terms))
        expected -= 2048 * math.log(2 * math.pi * pixel_noise**2)
        got = float(task.log_likelihood(x[0], z)[k])
        assert got == pytest.approx(expected, abs=1e-3)


def test_log_likelihood_without_position_noise():
    """sigma_x = 0: the Gaussian density of the image at the nearest grid position."""
    task = DSprites(sigma_x=0.0, pixel_noise=1.0)
    x, z = task.sample(4, torch.Generator().manual_seed(0))
    normal = torch.distributions.Normal(task.frames(z).double(), 1.0)
    expected = normal.log_prob(x.double()).sum((-3, -2, -1))
    got = task.log_likelihood(x, z.unsqueeze(-2)).squeeze(-1)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=0)


def test_log_likelihood_keeps_tails_and_batches():
    """Latents on either side, 30 standard deviations off, still have a finite likelihood."""
    task = DSprites()
    data = task.generate(n_train=3, n_test=1, seed=0, batch=(2,))
    z = data.z_train.unsqueeze(-2) + torch.tensor([[0.0, 0.0], [1.5, 0.0], [-1.5, 0.0]])
    both = task.log_likelihood(data.x_train, z)
    assert both.shape == (2, 3, 3)
    assert torch.isfinite(both).all()
    assert (both.argmax(-1) == 0).all()
    alone = task.log_likelihood(data.x_train[1, 2], z[1, 2])
    torch.testing.assert_close(alone, both[1, 2], atol=0.01, rtol=0)  # pixels are in float32
    single = task.log_likelihood(data.x_train, z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), both, atol=0.05, rtol=1e-4)


def test_particle_filter_knows_the_answer():
    """With the true model it is at least as good as the true position rounded to the grid."""
    task = DSprites()
    data = task.generate(n_train=1, n_test=40, seed=0, batch=(2,))
    result = ParticleFilter(model=task.state_space(), n_particles=500).filter(data.x_test)
    error = (result.mean - data.z_test).square().sum(-1).mean()
    assert error < 0.012
    assert result.evidence.all()


def test_file_and_renderer_are_one_interface(tmp_path):
    """The same sprite from a file in the published layout gives the same task."""
    sizes = (3, 1, 1, 32, 32)
    classes = np.stack(np.unravel_index(np.arange(3 * 1024), sizes), axis=1)
    images = SpriteRenderer().images(torch.from_numpy(classes)).numpy()
    path = tmp_path / "mini.npz"
    columns = np.concatenate([np.zeros_like(classes[:, :1]), classes], axis=1)
    np.savez_compressed(path, imgs=images, latents_classes=columns)
    source = DSpritesFile(path=path, md5=file_md5(path), sizes=sizes)
    drawn = DSprites().generate(n_train=4, n_test=2, seed=0)
    read = DSprites(source=source).generate(n_train=4, n_test=2, seed=0)
    assert (drawn.x_train == read.x_train).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shape": 3}, "shape must be between 0 and 2; got 3"),
        ({"scale": 6}, "scale must be between 0 and 5; got 6"),
        ({"orientation": -1}, "orientation must be between 0 and 39; got -1"),
        ({"pixel_noise": -0.1}, "pixel_noise must be finite and at least zero"),
        ({"sigma_x": math.nan}, "sigma_x must be finite"),
        ({"extent": 0.0}, "extent must be a finite number greater than zero"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(KbrError, match=message):
        DSprites(**settings)


def test_a_value_is_not_an_index():
    """scale=0.5 is not rounded to index 0: KbrError, or TypeError where annotations are checked."""
    with pytest.raises((KbrError, TypeError), match="scale"):
        DSprites(scale=0.5)


def test_wrong_lengths_and_noise_are_named():
    with pytest.raises(KbrError, match="n_train must be at least 1 step; got 0"):
        DSprites().generate(n_train=0)
    with pytest.raises(KbrError, match="pixel_noise must be a finite number greater than zero"):
        DSprites(pixel_noise=0.0).log_likelihood(torch.zeros(1, 64, 64), torch.zeros(1, 2))
