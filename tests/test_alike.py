"""Steps of one sequence err alike: what they are worth, and settings that are compared by them."""

from itertools import accumulate, pairwise

import pytest
import torch

from kbr.core.filters.moving.choosing.scoring import GAIN, STEPS, HeldOut, side_by_side
from kbr.core.filters.sequences import Piece, Sequences, beginnings, whole_sequences
from kbr.core.uncertainty.alike import as_if_independent, independent
from kbr.core.uncertainty.calibration import calibrate


def normal(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_independent_steps_count_as_what_they_are():
    for seed in range(5):
        counted = float(independent(normal(600, seed=seed).square(), [100] * 6))
        assert 150 < counted <= 600


def test_sequences_that_are_off_as_a_whole_count_once_each():
    off = torch.arange(6.0, dtype=torch.float64).repeat_interleave(100)
    counted = independent(off + 1e-3 * normal(600, seed=0), [100] * 6)
    assert float(counted) == pytest.approx(6, rel=0.1)


def test_the_count_is_that_of_a_loop():
    """Analysis of variance of the ranks, written out; a batch is one by one."""
    sizes, several = [30, 50, 20], normal(2, 100, seed=1).square()
    several[:, :30] += 0.8
    for row, found in zip(several, independent(several, sizes), strict=True):
        ranks = [sum(float(b < a) for b in row) for a in row]
        mean, starts = sum(ranks) / 100, list(accumulate(sizes, initial=0))
        between = within = 0.0
        for start, size in zip(starts, sizes, strict=False):
            piece = ranks[start : start + size]
            middle = sum(piece) / size
            between += size * (middle - mean) ** 2 / 2
            within += sum((rank - middle) ** 2 for rank in piece) / 97
        usual = (100 - sum(size**2 for size in sizes) / 100) / 2
        alike = max((between - within) / (between + (usual - 1) * within), 0)
        assert float(found) == pytest.approx(100 / (1 + (usual - 1) * alike))


def test_regions_of_alike_steps_hold_their_share_of_the_next_sequence():
    """Eight sequences, each off in its own way: the ninth lies in their 90 % region."""

    def sequences(count: int, seed: int) -> torch.Tensor:
        return (normal(count, 1, seed=seed) + 0.3 * normal(count, 50, seed=seed + 1)).flatten()

    held: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(40):
        error, new = sequences(8, 10 * seed), sequences(1, 10 * seed + 5)
        truth, cov = error.unsqueeze(-1), torch.ones(400, 1, 1, dtype=torch.float64)
        for alike in held:
            pieces = [[50] * 8] if alike else None
            found = calibrate([(torch.zeros_like(truth), cov, truth)], pieces=pieces)
            held[alike].append(float((new.square() <= found.radius2(0.9)).double().mean()))
    shares = {alike: sum(rows) / len(rows) for alike, rows in held.items()}
    assert 0.86 < shares[True] < 0.97
    assert shares[False] < shares[True] - 0.02


def test_ranks_move_as_conformal_prediction_with_fewer_numbers_asks():
    rows = torch.arange(1.0, 101, dtype=torch.float64)
    same = as_if_independent(rows, torch.tensor(100.0))
    torch.testing.assert_close(same, rows)
    fewer = as_if_independent(rows, torch.tensor(20.0))
    assert float(fewer[90]) == 95  # 91 = ceil(101 * .9); 21 / 20 * .9 = .945
    assert float(as_if_independent(rows, torch.tensor(5.0))[90]) == 100
    assert bool((fewer.diff() >= 0).all())


def test_only_what_differs_in_most_pieces_is_surely_better():
    steps = torch.full((6,), 50.0)
    base = HeldOut(normal(6, seed=3), steps, 1.0)
    least = GAIN * (STEPS / 300) ** 0.5
    lower = HeldOut(base.scores - 2 * least, steps, 1.0)
    hardly = HeldOut(base.scores - 0.5 * least, steps, 1.0)
    one = HeldOut(base.scores - torch.tensor([20 * least, 0, 0, 0, 0, 0]), steps, 1.0)
    assert lower.better_than(base, sure=True)
    assert not base.better_than(lower)
    assert not hardly.better_than(base)
    assert one.score < lower.score  # by one piece alone, which may be chance
    assert one.better_than(base)
    assert not one.better_than(base, sure=True)


def test_pieces_side_by_side_are_those_one_by_one():
    pieces = [Piece(normal(t, 3, seed=t), normal(t, 2, seed=t + 1)) for t in (60, 30)]
    x, z, there = side_by_side(pieces, controls=1)
    assert x.shape == (2, 60, 3)
    torch.testing.assert_close(x[0], pieces[0].x)
    torch.testing.assert_close(z[1, :30], pieces[1].z)
    assert bool(x[1, 30:, :2].isnan().all())
    assert not bool(x[1, 30:, 2].isnan().any())  # controls go on
    assert there.sum(-1).tolist() == [40, 15]


@pytest.mark.parametrize(
    ("lengths", "blocks"),
    [
        ([65] * 8, 6),
        ([200] * 100, 6),
        ([7] * 400, 6),
        ([110] * 5, 5),
        ([1000], 0),
        ([5000, 10, 10, 10], 0),
    ],
)
def test_whole_sequences_are_held_out_where_there_are_some(lengths, blocks):
    n, starts = sum(lengths), set(accumulate(lengths, initial=0))
    found = whole_sequences(lengths, 6, 4, 120)
    assert len(found) == blocks
    for before, after in pairwise(found):
        assert before.stop <= after.start
    for block in found:
        assert {block.start, block.stop} <= starts
        assert len(block) <= n // 3
        count = sum(start in block for start in starts)
        assert count >= min(4, len(lengths) // 6)
    if len(lengths) > 24:  # about so many of them, and rows to judge by
        assert all(
            max(4 * lengths[0], 120) <= len(block) <= 4 * lengths[0] + 120 for block in found
        )


def test_beginnings_are_those_of_every_sequence_in_a_block():
    rows = torch.arange(300.0).unsqueeze(-1)
    pieces = beginnings(Sequences(rows, rows, [100, 120, 80]), range(100, 300), 90)
    assert [float(piece.z[0]) for piece in pieces] == [100, 220]
    assert [len(piece.z) for piece in pieces] == [90, 80]
