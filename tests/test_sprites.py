"""The dSprites renderer against published frames, a plain polygon fill, and its own symmetries."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kbr.core.datasets.sprites import HEART, SIZES, SpriteRenderer, latent_values
from kbr.core.errors import KbrError


def random_classes(count: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, (count,), generator=generator) for n in SIZES], dim=1)


def draw(shape: int, scale: float, orientation: float, x: float, y: float) -> Tensor:
    return SpriteRenderer().draw(
        shape=torch.tensor([shape]),
        scale=torch.tensor([scale], dtype=torch.float64),
        orientation=torch.tensor([orientation], dtype=torch.float64),
        position=torch.tensor([[x, y]], dtype=torch.float64),
    )[0]


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union, image by image."""
    return (a & b).sum((1, 2)) / (a | b).sum((1, 2))


def real_frames() -> tuple[Tensor, Tensor]:
    folder = os.environ.get("KBR_TEST_DATA")
    if folder is None:
        pytest.skip("set KBR_TEST_DATA to a folder with dsprites_real_frames.npz")
    with np.load(Path(folder) / "dsprites_real_frames.npz") as data:
        return torch.from_numpy(data["images"]), torch.from_numpy(data["classes"]).long()


def test_matches_the_published_frames():
    """Overlaps are .99 on average, .97 at least; a pixel counts most in the smallest hearts."""
    images, classes = real_frames()
    score = overlap(SpriteRenderer().images(classes), images)
    hearts = classes[:, 0] == 2
    smallest = hearts & (classes[:, 1] == classes[hearts, 1].min())
    assert score.mean() >= 0.99
    assert score[smallest].min() >= 0.98
    assert score.min() >= 0.97


def in_polygon(px: float, py: float, corners: list[tuple[float, float]]) -> bool:
    """Crossing number."""
    inside = False
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        if (ay > py) != (by > py) and px < ax + (py - ay) / (by - ay) * (bx - ax):
            inside = not inside
    return inside


@pytest.mark.parametrize(("scale", "theta", "x", "y"), [(1.0, 0.7, 0.3, 0.8), (0.5, 0.0, 0.5, 0.1)])
def test_heart_equals_a_filled_polygon(scale, theta, x, y):
    """The closed form agrees with a plain fill of the curve, traced point by point."""
    a, b, c = HEART
    corners = []
    for k in range(2000):
        t = 2 * math.pi * k / 2000
        u = a * math.sin(t) ** 3
        v = c - b * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))
        # Turned counter-clockwise as seen, with y pointing down.
        right = math.cos(theta) * u + math.sin(theta) * v
        down = -math.sin(theta) * u + math.cos(theta) * v
        corners.append((16 + 32 * x + scale * right, 16 + 32 * y + scale * down))
    image = draw(2, scale, theta, x, y)
    rows = range(int(32 * y), int(32 * y) + 32)
    for i in rows:
        for j in range(int(32 * x), int(32 * x) + 32):
            assert bool(image[i, j]) == in_polygon(j + 0.5, i + 0.5, corners)
    assert image.sum() == image[rows.start : rows.stop].sum()


def test_sizes_and_directions():
    """What one reads off the dataset: a square of side 20, a flat ellipse, a heart's point."""
    square, ellipse, heart = (draw(k, 1.0, 0.0, 0.5, 0.5) for k in range(3))
    assert square.sum() == 400
    assert draw(0, 0.5, 0.0, 0.5, 0.5).sum() == 100
    assert ellipse.any(0).sum() == 26
    assert ellipse.any(1).sum() == 14
    assert heart.any(0).sum() == 20
    assert (heart.flip(1) == heart).all()  # mirror-symmetric
    assert heart[:32].sum() > 1.5 * heart[32:].sum()  # lobes above, point below
    # A small counter-clockwise turn brings the point to the right.
    turned = draw(2, 1.0, 0.5, 0.5, 0.5)
    assert turned[32 + 7 :].any(0).nonzero().double().mean() > 33


def test_position_moves_the_sprite():
    """x is the column, y the row; a step of 1/32 is a pixel, and no window edge shows."""
    base = draw(2, 1.0, 1.0, 0.25, 0.5)
    assert (draw(2, 1.0, 1.0, 0.25 + 5 / 32, 0.5) == base.roll(5, 1)).all()
    assert (draw(2, 1.0, 1.0, 0.25, 0.5 - 7 / 32) == base.roll(-7, 0)).all()
    corner = draw(0, 1.0, math.pi / 4, 1.0, 0.0)
    assert (corner == draw(0, 1.0, math.pi / 4, 0.0, 1.0).roll((32, -32), (1, 0))).all()


def test_latent_coding():
    """The dataset's values; orientation 39 repeats orientation 0."""
    values = latent_values(torch.tensor([[0, 0, 0, 0, 0], [2, 5, 39, 31, 31], [1, 2, 13, 3, 0]]))
    expected = [
        [1, 0.5, 0, 0, 0],
        [3, 1, 2 * math.pi, 1, 1],
        [2, 0.7, 2 * math.pi / 3, 3 / 31, 0],
    ]
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64))
    first = random_classes(50)
    first[:, 2] = 0
    last = first.clone()
    last[:, 2] = 39
    renderer = SpriteRenderer()
    assert (renderer.images(first) == renderer.images(last)).all()


def test_many_equal_one_at_a_time():
    """Grouping by shape and chunking change nothing; every image has a sprite of 0 and 1."""
    classes = random_classes(40)
    images = SpriteRenderer(chunk=7).images(classes)
    assert images.dtype == torch.uint8
    for row, image in zip(classes, images, strict=True):
        assert (SpriteRenderer().images(row[None])[0] == image).all()
        assert image.max() == 1
    assert SpriteRenderer().images(classes[:0]).shape == (0, 64, 64)


@pytest.mark.parametrize("column", range(5))
def test_unknown_index_is_named(column):
    names = ["shape", "scale", "orientation", "x", "y"]
    for wrong in (-1, SIZES[column]):
        classes = torch.zeros(2, 5, dtype=torch.long)
        classes[1, column] = wrong
        with pytest.raises(KbrError, match=f"{names[column]} must be between .* got {wrong}"):
            SpriteRenderer().images(classes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("x", 1.01),
        ("y", -0.1),
        ("x", math.nan),
        ("scale", 1.5),
        ("scale", 0.0),
        ("orientation", math.inf),
    ],
)
def test_out_of_the_image_is_an_error(setting, value):
    latents = {"scale": 1.0, "orientation": 0.0, "x": 0.5, "y": 0.5, setting: value}
    name = "position" if setting in "xy" else setting
    with pytest.raises(KbrError, match=f"{name} must be"):
        draw(2, *latents.values())


def test_zero_chunk_is_an_error():
    with pytest.raises(KbrError, match="chunk must be at least 1"):
        SpriteRenderer(chunk=0)
