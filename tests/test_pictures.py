"""Pictures of a run: every one that applies is drawn, small, whole, and of what it says."""

import io
import math
from dataclasses import replace
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.integrate import trapezoid

from kbr.app.figures import animation, style
from kbr.app.figures.animation import animate
from kbr.app.figures.beliefs import WITHIN_2_SD, density, telling_steps
from kbr.app.figures.frames import contact_sheet, encoder_figure
from kbr.app.figures.run import run_figures
from kbr.app.figures.style import save
from kbr.app.figures.view import BELIEFS, View, as_pictures, first_weights, spread_out, view_of
from kbr.app.models.kernel import Outcome
from kbr.app.tasks.heading import (
    ANGLES,
    degrees,
    degrees_text,
    density_of_moments,
    density_of_weights,
)
from kbr.core.datasets.dsprites import DSprites
from kbr.core.datasets.dynamics import Oscillatory
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.showing.plotting import are_alike, ellipse_axes
from kbr.core.uncertainty.regions import chi2_quantile, coverage
from kbr.training.encoders import SoftArgmaxCNN

STEPS, TRAIN = 8, 30


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outcome(x_shape, dz=2, *, circular=False, window=None, weights=True, gaze=None, missing=()):
    """A run of STEPS steps whose answers are the truth and a little noise."""
    truth, z = noise(STEPS, dz, seed=1), noise(TRAIN, dz, seed=2)
    if circular:
        truth, z = (v / v.norm(dim=-1, keepdim=True) for v in (truth, z))
    x = noise(STEPS, *x_shape, seed=3).abs()
    evidence = torch.ones(1, STEPS, dtype=torch.bool)
    for t in missing:
        x[t], evidence[0, t] = torch.nan, False
    view = View(
        x_train=noise(TRAIN, *x_shape, seed=4).abs(),
        z_train=z,
        x_test=x,
        circular=circular,
        window=window,
        weights=noise(STEPS, TRAIN, seed=5) if weights else None,
        gaze=gaze,
    )
    return Outcome(
        mean=truth[None] + 0.1,
        cov=(0.04 * torch.eye(dz, dtype=torch.float64)).expand(1, STEPS, dz, dz),
        truth=truth[None],
        evidence=evidence,
        view=lambda: view,
    )


ALWAYS = {"trajectory", "error", "coverage", "pit"}
SPRITES = {"x_shape": (1, 16, 16), "window": (-3.0, 3.0, 3.0, -3.0)}
CASES = {
    "vector": ({"x_shape": (2,)}, {"ellipses", "weights"}),
    "line": ({"x_shape": (1,), "dz": 1}, {"weights"}),
    "solid": ({"x_shape": (4,), "dz": 3, "weights": False}, set()),
    "image": (SPRITES, {"ellipses", "weights", "observations", "contact_sheet"}),
    "heading": (
        {"x_shape": (3, 9, 12), "circular": True},
        {"ellipses", "weights", "observations", "contact_sheet"},
    ),
    "missing": (
        {**SPRITES, "missing": (0, 3)},
        {"ellipses", "weights", "observations", "contact_sheet"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_has_every_picture_that_applies(tmp_path, case):
    given, expected = CASES[case]
    written = run_figures(tmp_path / "figures", outcome(**given))
    assert {path.stem for path in written} == ALWAYS | expected
    for path in written:
        with Image.open(path) as image:
            assert min(image.size) > 150
            assert np.asarray(image.convert("L")).std() > 5  # something is drawn


def test_a_sweep_draws_the_trajectory_alone_and_makes_no_view(tmp_path):
    made = outcome((2,))

    def view():
        raise AssertionError("the view costs time that a sweep has not")

    cheap = Outcome(
        mean=made.mean, cov=made.cov, truth=made.truth, evidence=made.evidence, view=view
    )
    assert [path.name for path in run_figures(tmp_path, cheap, quick=True)] == ["trajectory.png"]


def test_labels_name_the_axes_with_and_without_a_view(tmp_path, monkeypatch):
    made, named = outcome((2,)), []

    def keep(figure, path, kinds):
        if path.stem not in ("coverage", "pit"):  # which are of all columns together
            named.append(
                [word for axis in figure.axes for word in (axis.get_xlabel(), axis.get_ylabel())]
            )
        return save(figure, path, kinds)

    monkeypatch.setattr(style, "save", keep)
    labelled = replace(made, labels=("px [m]", "v [m/s]"), view=None)
    run_figures(tmp_path, labelled)
    assert all(any("px [m]" in word for word in words) for words in named)
    named.clear()
    view = replace(made.view(), labels=labelled.labels)
    run_figures(tmp_path, replace(labelled, view=lambda: view))
    assert len(named) == 4
    assert all(any("v [m/s]" in word for word in words) for words in named)


def test_gaps_are_shaded_and_angles_leave_no_line_across(tmp_path, monkeypatch):
    """From 350 to 10 degrees no line falls; a label with dollar signs is not read as a formula."""
    kept = []
    monkeypatch.setattr(style, "save", lambda figure, *_: kept.append(figure) or [0])
    made = outcome((1,), dz=1, missing=(2, 3, 6))
    angle = torch.tensor([330.0, 350, 10, 30, 50, 70, 90, 110]).double()[None, :, None]
    view = replace(made.view(), labels=(r"price $\foo$",), turns=(360.0,), weights=None)
    made = replace(made, mean=angle, truth=angle + 5, labels=view.labels, view=lambda: view)
    run_figures(tmp_path, made)
    axis = kept[0].axes[0]
    kept[0].canvas.draw()
    mean = next(line for line in axis.lines if line.get_label() == "filter mean").get_ydata()
    assert np.isnan(mean[2])
    assert np.nanmax(np.abs(np.diff(mean))) <= 20
    shaded = [patch for patch in axis.patches if patch.get_width() in (1, 2)]
    assert [patch.get_x() for patch in shaded] == [2.5, 6.5]
    assert "no evidence" in axis.get_legend_handles_labels()[1]
    assert axis.get_ylabel() == r"price \$\foo\$"
    plt.close("all")


def test_answers_without_dynamics_are_a_scatter(tmp_path):
    made = outcome((2,))
    still = Outcome(mean=made.mean, cov=None, truth=made.truth)
    assert [path.name for path in run_figures(tmp_path, still)] == ["posterior_mean.png"]
    assert animate(tmp_path / "filter.gif", still) is None


@pytest.mark.parametrize("case", ["vector", "solid", "image", "heading", "missing"])
def test_the_animation_has_a_frame_for_every_step(tmp_path, case):
    path = tmp_path / "filter.gif"
    assert animate(path, outcome(**CASES[case][0])) == path
    with Image.open(path) as gif:
        assert gif.n_frames == STEPS
        frames = []
        for k in range(gif.n_frames):
            gif.seek(k)
            frames.append(np.asarray(gif.convert("RGB")).astype(int))
    assert all((a != b).any() for a, b in pairwise(frames))
    assert [p.name for p in tmp_path.iterdir()] == ["filter.gif"]  # no temporary file is left


def test_nothing_moves_in_one_dimension(tmp_path):
    assert animate(tmp_path / "filter.gif", outcome((1,), 1)) is None


def test_sixty_noisy_frames_stay_below_two_megabytes():
    """The worst case for the compression: noise on every pixel of a whole picture."""
    random = np.random.default_rng(0)
    page = np.full((320, 540, 3), 255, dtype=np.uint8)
    frames = []
    for _ in range(BELIEFS):
        small = random.normal(0.0, 0.1, (64, 64)).clip(0, 1)
        page[40:264, 10:234] = (
            (255 * small).astype(np.uint8).repeat(4, 0).repeat(4, 1)[:224, :224, None]
        )
        frames.append(page.copy())
    content = animation._gif(frames)
    assert len(content) < 2_000_000
    with Image.open(io.BytesIO(content)) as gif:
        assert gif.n_frames == BELIEFS


def test_the_marks_keep_their_colours():
    page = np.zeros((50, 50, 3), dtype=np.uint8)
    page[..., 1] = np.arange(50, dtype=np.uint8) * 5
    page[0, 0] = (0xE0, 0x5A, 0x00)
    with Image.open(io.BytesIO(animation._gif([page, page[::-1].copy()]))) as gif:
        assert gif.convert("RGB").getpixel((0, 0)) == (0xE0, 0x5A, 0x00)


def test_contact_sheet_takes_any_number_of_frames(tmp_path):
    for count in (1, 5, 17):
        figure = contact_sheet(torch.rand(count, 3, 36, 48), [f"{k}" for k in range(count)])
        assert len(figure.axes[0].texts) == count
        (path,) = save(figure, tmp_path / f"sheet_{count}", ("png",))
        assert path.is_file()


def test_frames_become_pictures():
    frames = torch.tensor([0.0, 0.5, 1.2, float("nan")]).reshape(1, 1, 2, 2)
    shown = as_pictures(frames)
    assert shown.shape == (1, 2, 2, 3)
    np.testing.assert_allclose(shown[0, :, :, 0], [[0, 0.5], [1, 0.5]])
    bytes_ = as_pictures(255 * torch.rand(2, 3, 4, 4))
    assert bytes_.min() == 0
    assert bytes_.max() == 1


def test_a_frame_lies_where_the_sprite_is():
    """The window puts a sprite's middle at its latent position."""
    task = DSprites(shape=0, pixel_noise=0.0)
    left, right, bottom, top = task.window
    for z in ([0.0, 0.0], [1.0, -0.5]):
        frame = task.frames(torch.tensor(z))[0]
        v, u = (frame.nonzero().double().mean(0) + 0.5) / 64
        assert float(left + (right - left) * u) == pytest.approx(z[0], abs=0.1)
        assert float(top + (bottom - top) * v) == pytest.approx(z[1], abs=0.1)


def test_the_encoder_figure_shows_places_on_the_frame():
    """A blob's place, drawn in the figure's coordinates, is at the blob's pixel."""
    frames = torch.zeros(1, 1, 16, 16)
    maps = torch.full((1, 1, 8, 8), -20.0)
    maps[0, 0, 2, 5] = 0.0  # the cell over pixel row 4, column 10
    places = torch.tensor([[[2 * 5 / 7 - 1, 2 * 2 / 7 - 1]]])
    figure = encoder_figure(frames, maps.flatten(2).softmax(-1).reshape(maps.shape), places)
    axis = figure.axes[0]
    left, right, bottom, top = axis.images[0].get_extent()
    u, v = axis.lines[0].get_xydata()[0]
    assert 16 * (u - left) / (right - left) - 0.5 == pytest.approx(10)
    assert 16 * (v - top) / (bottom - top) - 0.5 == pytest.approx(4)
    plt.close(figure)


def test_the_encoder_says_where_it_looks():
    network = SoftArgmaxCNN(shape=(1, 16, 16)).eval()
    x = torch.rand(3, 1, 16, 16)
    maps, places = network.heat_maps(x), network.coordinates(x)
    torch.testing.assert_close(maps.sum((-2, -1)), torch.ones(3, 16))
    across = torch.linspace(-1, 1, maps.shape[-1])
    torch.testing.assert_close((maps.sum(-2) * across).sum(-1), places[..., 0])


def test_first_weights_are_those_of_the_filter():
    data = Oscillatory().generate(n_train=60, n_test=5, seed=0)
    filt = KernelBayesFilter(scales=(1.0,), lams=(1e-2,), correction=None)
    filt.fit(data.x_train, data.z_train)
    weights = first_weights(filt, data.x_test)
    torch.testing.assert_close(weights @ data.z_train, filt.filter(data.x_test).mean)
    view = view_of(Oscillatory(), data, weights=weights)
    assert view.window is None
    assert not view.circular
    assert not view.has_images


def test_ellipses_have_two_standard_deviations_each_way():
    turn = math.radians(30)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    cov = rotation @ np.diag([0.09, 0.01]) @ rotation.T
    width, height, angle = ellipse_axes(cov[None])
    assert width[0] == pytest.approx(4 * 0.3)
    assert height[0] == pytest.approx(4 * 0.1)
    assert angle[0] % 180 == pytest.approx(30)
    wider, _, _ = ellipse_axes(cov[None], chi2_quantile(0.9, 2) ** 0.5)
    assert wider[0] == pytest.approx(2 * math.sqrt(4.60517) * 0.3)  # chi squared, 2 dimensions


def test_coverage_of_a_gaussian():
    """The share of truths within two standard deviations that ellipses.png tells of."""
    random = np.random.default_rng(0)
    cov = np.array([[0.5, 0.2], [0.2, 0.3]])
    truth = torch.from_numpy(random.multivariate_normal([1, 2], cov, 20_000))
    mean = torch.tensor([1.0, 2.0], dtype=torch.float64).expand_as(truth)
    share = coverage(mean, torch.from_numpy(cov).expand(20_000, 2, 2), truth, level=WITHIN_2_SD)
    assert share == pytest.approx(1 - math.exp(-2), abs=0.01)


def test_density_peaks_where_the_weights_are():
    z = noise(200, 2, seed=7).numpy()
    w = -np.ones(200)  # negative weights are no mass
    w[17] = 1.0
    ticks = np.linspace(-3, 3, 121)
    value = density(z, w, ticks, ticks)
    assert value.min() >= 0
    at = np.unravel_index(value.argmax(), value.shape)
    np.testing.assert_allclose([ticks[at[0]], ticks[at[1]]], z[17], atol=0.03)


def test_densities_of_columns_in_other_units_are_the_same():
    z, w = noise(200, 2, seed=7).numpy(), noise(200, seed=8).numpy()
    ticks, size = np.linspace(-3, 3, 21), np.array([100.0, 0.01])
    found = density(z * size, w, ticks * size[0], ticks * size[1])
    np.testing.assert_allclose(found, density(z, w, ticks, ticks), rtol=1e-6)
    assert are_alike(z)
    assert not are_alike(z * size)


def test_telling_steps_are_in_order_and_inside():
    weights = noise(20, 10, seed=8).abs()
    weights[6] = 1.0
    assert telling_steps(weights) == [0, 6, 19]
    assert telling_steps(weights[:2]) == [0, 1]


def test_spread_out_takes_both_ends():
    assert spread_out(3, 101) == [0, 50, 100]
    assert spread_out(5, 2) == [0, 1]


def test_headings_wrap_at_a_full_turn():
    angle = torch.tensor([0.0, 90.0, 359.7, 181.0]).double().deg2rad()
    z = torch.stack([angle.cos(), angle.sin()], -1)
    torch.testing.assert_close(degrees(z), angle.rad2deg(), atol=1e-9, rtol=0)
    assert [degrees_text(row) for row in z] == ["0°", "90°", "0°", "181°"]


@pytest.mark.parametrize(
    ("mean", "sd"), [((0.9, 0.3), 0.3), ((0.05, -0.1), 0.5), ((-1.0, 0.0), 0.01)]
)
def test_the_angle_of_a_gaussian_against_samples(mean, sd):
    """The projected normal has the mass of sampled angles in every octant."""
    centre = torch.tensor(mean, dtype=torch.float64)
    value = density_of_moments(centre, sd**2 * torch.eye(2, dtype=torch.float64))
    sd = max(sd, 0.02)  # the narrowest belief that is shown
    z = centre + sd * noise(200_000, 2, seed=9)
    sampled = torch.histc(degrees(z), 8, 0, 360) / len(z)
    edges = np.arange(0, 181, 22.5)
    mass = [
        trapezoid(np.interp(grid, np.arange(181), value), np.radians(2 * grid))
        for grid in (np.linspace(a, b, 50) for a, b in pairwise(edges))
    ]
    np.testing.assert_allclose(mass, sampled.numpy(), atol=0.02)


def test_weights_on_headings_have_mass_one_and_their_peak():
    angle = torch.tensor([10.0, 200.0]).double().deg2rad()
    z = torch.stack([angle.cos(), angle.sin()], -1)
    value = density_of_weights(z, torch.tensor([0.2, 0.8], dtype=torch.float64))
    assert value[:-1].mean() * 2 * math.pi == pytest.approx(1)
    assert np.degrees(ANGLES[value.argmax()]) == pytest.approx(200)
    uniform = density_of_weights(z, torch.tensor([-1.0, -1.0], dtype=torch.float64))
    np.testing.assert_allclose(uniform, 0.5 / math.pi)
