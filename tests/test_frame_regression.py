"""Kernel ridge regression of frames: against plain numpy, and what its averages of pixels bring."""

import numpy as np
import pytest
import torch

from kbr import KbrError
from kbr.core.frame_regression import RIDGES, SCALES, FrameRegression, _Ridge, parts_of, pooled
from kbr.core.kernel_ridge import errors_left_out


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def plain(rows, z, width, ridge, queries):
    """Ridge regression on 1 + exp(-|a - b|^2 / 2 h^2), targets standardised; in numpy."""
    rows, z, queries = (np.asarray(part) for part in (rows, z, queries))
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    n = len(rows)
    far = np.linalg.norm(queries[:, None] - rows[None], axis=-1)
    gram, cross = (1 + np.exp(-((d / width) ** 2) / 2) for d in (distances, far))
    middle, size = z.mean(0), z.std(0)
    solved = np.linalg.solve(gram + n * ridge * np.eye(n), (z - middle) / size)
    return middle + size * (cross @ solved)


def blob(places, noise, seed):
    """Frames [n 12 16] of a bright spot, and two numbers that tell where it is."""
    height, width = torch.arange(12.0).double(), torch.arange(16.0).double()
    at = torch.stack([6 + 3 * places[:, 0], 8 + 4 * places[:, 1]], -1)
    rows = (height - at[:, :1]).square().unsqueeze(-1) + (width - at[:, 1:]).square().unsqueeze(-2)
    return torch.exp(-rows / 6) + noise * normal(len(places), 12, 16, seed=seed), places


def test_it_is_ridge_regression():
    x, z, queries = normal(40, 3, seed=1), normal(40, 2, seed=2) + 5.0, normal(7, 3, seed=3)
    regression, _ = FrameRegression.fit(x, z)
    assert regression.pool == 1
    found = _Ridge.of((x - x.mean(0)) / x.std(0, correction=0), z, 0.7, [40])
    ridge = 1e-2
    offset, weights = found.solution(ridge)
    by_hand = FrameRegression(
        1,
        x.mean(0),
        x.std(0, correction=0),
        found.solver.landmarks,
        found.solver.bandwidth,
        offset,
        weights,
    )
    rows, asked = ((part - x.mean(0)) / x.std(0, correction=0) for part in (x, queries))
    want = torch.from_numpy(plain(rows, z, float(found.solver.bandwidth), ridge, asked))
    torch.testing.assert_close(by_hand(queries), want, rtol=0, atol=1e-5)


def test_what_rows_are_told_is_told_without_them():
    x, z = normal(60, 2, seed=4), normal(60, 1, seed=5)
    parts = parts_of([60])
    assert parts == [6] * 10
    found, ridge, size = _Ridge.of(x, z, 0.5, parts), 1e-2, 6
    told = found.told(ridge)
    middle, width = z.mean(0), z.std(0, correction=0)
    psi = found.solver.rows @ found.solver.vectors.mT  # (1, psi) of all rows
    for start in (0, 12, 54):
        block = torch.arange(start, start + size)
        rest = torch.tensor([k for k in range(60) if k not in set(block.tolist())])
        gram = psi[rest].mT @ psi[rest] + 60 * ridge * torch.eye(psi.shape[1]).double()
        beta = torch.linalg.solve(gram, psi[rest].mT @ ((z - middle) / width)[rest])
        want = middle + width * (psi[block] @ beta)
        torch.testing.assert_close(told[block], want, rtol=0, atol=1e-6)


def test_rows_left_over_are_a_block_of_their_own():
    hat = normal(10, 10, seed=6)
    rooted, missed = 0.1 * hat, normal(10, 1, seed=7)
    found = errors_left_out(rooted, missed, 4)
    own = rooted[8:] @ rooted[8:].mT
    want = torch.linalg.solve(torch.eye(2).double() - own, missed[8:])
    torch.testing.assert_close(found[8:], want, rtol=0, atol=1e-9)


def test_pixels_are_averaged_where_their_noise_hides_the_frame():
    places = torch.rand(150, 2, generator=torch.Generator().manual_seed(8)).double() * 2 - 1
    x, z = blob(places, 0.5, seed=9)
    new, truth = blob(places.flip(0) * 0.9, 0.5, seed=10)
    regression, told = FrameRegression.fit(x, z)
    assert regression.pool > 1
    error, of_mean = (float((m - truth).square().mean()) for m in (regression(new), z.mean(0)))
    assert error < 0.25 * of_mean
    training = float((told - z).square().mean())  # left out: as far off as for new frames
    assert 0.5 < training / error < 2.0


def test_edges_of_frames_are_averaged_too():
    frames = normal(2, 3, 5, 7, seed=11)
    small = pooled(frames, 2).reshape(2, 3, 3, 4)
    torch.testing.assert_close(small[0, 1, 0, 0], frames[0, 1, :2, :2].mean())
    torch.testing.assert_close(small[1, 2, 2, 3], frames[1, 2, 4, 6])
    assert pooled(frames, 1).shape == (2, 105)


def test_units_do_not_matter():
    """Columns of 1e6 and 1e-6, offsets of latents: the same answer."""
    x, z = normal(80, 3, seed=12), normal(80, 2, seed=13)
    z[:, 0] += 2 * x[:, 0].sin()
    one, _ = FrameRegression.fit(x, z)
    other, _ = FrameRegression.fit(
        x * torch.tensor([1e6, 1.0, 1e-6]).double() + torch.tensor([1e6, 0.0, 1.0]).double(),
        z * 1e3 + 1e6,
    )
    queries = normal(5, 3, seed=14)
    scaled = queries * torch.tensor([1e6, 1.0, 1e-6]).double() + torch.tensor([1e6, 0, 1]).double()
    torch.testing.assert_close(other(scaled), one(queries) * 1e3 + 1e6, rtol=1e-6, atol=1.0)


def test_constant_frames_tell_the_mean():
    z = normal(30, 1, seed=15)
    regression, _ = FrameRegression.fit(torch.ones(30, 8, 8).double(), z)
    told = regression(torch.ones(2, 8, 8).double())
    torch.testing.assert_close(told, z.mean(0).expand(2, 1), rtol=0, atol=1e-6)


def test_one_row_is_too_few():
    with pytest.raises(KbrError, match=r"at least 2 rows; got 1\. Raise n_train"):
        FrameRegression.fit(torch.ones(1, 3).double(), torch.ones(1, 1).double())


def test_settings_to_try_are_sorted():
    assert sorted(SCALES) == list(SCALES)
    assert sorted(RIDGES) == list(RIDGES)


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [([25], [2, 3] * 5), ([7, 2], [1] * 9), ([5, 6, 7, 8], [5, 6, 7, 8]), ([3] * 20, [6] * 10)],
)
def test_whole_sequences_are_left_out_where_there_are_four(lengths, parts):
    assert parts_of(lengths) == parts


def test_parts_longer_than_the_features_are_left_out_by_the_size_of_these():
    """A recording of thousands of rows makes no system of its size."""
    rooted, missed = 0.05 * normal(200, 6, seed=23), normal(200, 2, seed=24)
    whole = torch.eye(120).double() - rooted[:120] @ rooted[:120].mT
    found = errors_left_out(rooted, missed, 120)
    want = torch.linalg.solve(whole, missed[:120])
    torch.testing.assert_close(found[:120], want, rtol=0, atol=1e-9)


def test_rows_of_a_sequence_do_not_tell_each_other():
    """Each sequence is off in its own way: what is told of it knows only the others."""
    generator = torch.Generator().manual_seed(16)
    z = torch.randn(80, 10, 1, generator=generator).double()
    off = 0.7 * normal(80, 1, 1, seed=18)  # by as much in all rows of a sequence
    x = z + off + 0.02 * normal(80, 10, 1, seed=19)
    rows, truth = x[:40].flatten(0, 1), z[:40].flatten(0, 1)
    whole, told = FrameRegression.fit(rows, truth, [10] * 40)
    new = float((whole(x[40:].flatten(0, 1)) - z[40:].flatten(0, 1)).square().mean())
    assert 0.5 < float((told - truth).square().mean()) / new < 2.0


def test_channels_have_units_of_their_own():
    places = torch.rand(120, 2, generator=torch.Generator().manual_seed(20)).double() * 2 - 1
    seen, z = blob(places, 0.2, seed=21)
    noise = normal(120, 12, 16, seed=22)
    one, other = (torch.stack([seen, size * noise + 5 * size], 1) for size in (1.0, 1e3))
    told = [FrameRegression.fit(x, z)[1] for x in (one, other)]
    torch.testing.assert_close(told[0], told[1], rtol=0, atol=1e-6)
