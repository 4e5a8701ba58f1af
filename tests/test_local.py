"""Many points with kernels of a high rank: steps on the points that matter to them."""

import copy
import os
from itertools import accumulate
from pathlib import Path

import pytest
import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter, load_filter
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.choosing.climb import FLOORS, Cell, climb
from kbr.core.filters.kernel.engines.local import Cells, LocalOperators, thinned
from kbr.core.filters.sequences import LEAD, Sequences, blocks_all_over, excerpts, held_last


def wide(n_train, n_test, seed, columns=20):
    """The rotation task seen by many sensors that each turn it into something curved."""
    data = Rotation().generate(n_train=n_train, n_test=n_test, seed=seed)
    generator = torch.Generator().manual_seed(7)
    mix = torch.randn(2, columns, generator=generator, dtype=torch.float64)
    noise = torch.Generator().manual_seed(seed + 1)

    def seen(x):
        x = torch.as_tensor(x, dtype=torch.float64)
        made = torch.tanh(1.5 * x @ mix)
        return made + 0.3 * torch.randn(made.shape, generator=noise, dtype=torch.float64)

    return seen(data.x_train), data.z_train, seen(data.x_test), data.z_test


def spread_of(result):
    return result.raw_cov.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt()


@pytest.fixture(scope="module")
def fitted():
    x, z, x_test, z_test = wide(4200, 120, seed=0, columns=10)
    rule = ImportanceWeightedRule(lam=1e-2, floor=0.1)
    filt = KernelBayesFilter(rule=rule, scales=(0.25,), widths=(4.0,)).fit(x, z)
    return filt, x_test, z_test


def test_many_points_of_a_high_rank_are_filtered_locally(fitted):
    filt, x, z = fitted
    assert isinstance(filt.operators, LocalOperators)
    assert "engine=local" in repr(filt)
    assert any("each step on at most 952 of 4,200 points" in n for n in filt.operators.notes)
    result = filt.filter(x)
    assert float((result.mean - torch.as_tensor(z)).square().sum(-1).mean()) < 0.1
    assert result.evidence.double().mean() > 0.95


def test_it_answers_like_the_dense_filter(monkeypatch):
    """Within a hundredth of the posterior's standard deviation, of all points with a ratio."""
    monkeypatch.setattr("kbr.core.filters.kernel.filter.measured", lambda fitted, _: fitted)
    x, z, x_test, _ = wide(2000, 40, seed=1)
    rule = ImportanceWeightedRule(lam=1e-2, floor=0.1)
    settings = {"rule": rule, "scales": (0.25,), "widths": (4.0,), "eta": 1e-4, "correction": None}
    dense, local = (
        KernelBayesFilter(engine=name, **settings).fit(x, z).filter(x_test)
        for name in ("active_set", "local")
    )
    away = (dense.mean - local.mean).norm(dim=-1) / spread_of(dense)
    assert float(away[1:].max()) < 0.01


def test_steps_files_and_copies_agree(fitted, tmp_path):
    filt, x, _ = fitted
    x = x[:25].clone()
    x[7] = torch.nan
    expected = filt.filter(x)
    belief = filt.init()
    for t, row in enumerate(x):
        belief = filt.step(belief, row)
        torch.testing.assert_close(belief.mean, expected.mean[t], rtol=1e-9, atol=1e-9)
    assert not expected.evidence[7]
    filt.save(tmp_path / "local.ckpt")
    for same in (load_filter(tmp_path / "local.ckpt"), copy.deepcopy(filt)):
        again = same.filter(x)
        torch.testing.assert_close(again.mean, expected.mean, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(again.cov, expected.cov, rtol=1e-6, atol=1e-9)
    assert filt.forecast(belief, 5).mean.isfinite().all()


@pytest.mark.slow
def test_smoothing_has_error_bars_too(fitted, monkeypatch):
    """Closer than filtering, also where observations are missing, and within its regions."""
    monkeypatch.setattr("kbr.core.filters.kernel.choosing.held_out.SMOOTHED", 24)
    filt, x, z = fitted
    x, z = x[:30].clone(), torch.as_tensor(z)[:30]
    x[12:18] = torch.nan
    smoothed, filtered = filt.smooth(x), filt.filter(x)
    errors = [(result.mean - z).square().sum(-1).mean() for result in (smoothed, filtered)]
    assert float(errors[0]) < float(errors[1])
    held = filt.credible_region(smoothed).contains(z).double().mean()
    assert 0.7 < float(held) <= 1.0
    assert max(filt.smoothing_calibration.counts) > 144  # those of one pattern in six blocks


def test_sequences_side_by_side_are_those_one_by_one(fitted):
    filt, x, _ = fitted
    several = torch.stack([x[:12], x[12:24], x[24:36]])
    together = filt.filter(several).mean
    for k, one in enumerate(several):
        torch.testing.assert_close(together[k], filt.filter(one).mean, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_the_default_chooses_it_and_finds_its_settings():
    """Whole sequences are held out; the choice and what it cost are there to read."""
    x, z, x_test, z_test = wide(2100, 150, seed=2, columns=12)
    cut = [slice(k * 420, (k + 1) * 420) for k in range(5)]
    filt = KernelBayesFilter().fit([x[some] for some in cut], [z[some] for some in cut])
    assert "engine=local" in repr(filt)
    assert float(filt.choice.floor) in FLOORS
    assert float(filt.choice.val_mse) > 0
    result = filt.filter(x_test)
    assert float((result.mean - torch.as_tensor(z_test)).square().sum(-1).mean()) < 0.08
    held = filt.credible_region(result, level=0.9).contains(torch.as_tensor(z_test))
    assert 0.8 < float(held.double().mean()) < 0.99


@pytest.mark.parametrize("count", [5, 64, 65, 1000])
def test_thinning_keeps_the_mass_and_the_first_half(count):
    size = min(64, count)
    places, mass = thinned(torch.tensor([count, 3]), torch.tensor([size, 3]))
    assert places.shape == mass.shape == (2, size)
    assert mass.sum(-1).tolist() == pytest.approx([count, 3])
    assert mass[1, :3].tolist() == [1, 1, 1]
    places = places[:1]
    assert places[0, : size // 2].tolist() == list(range(size // 2))
    assert bool((places.diff() > 0).all())
    assert int(places.max()) < count


def test_every_latent_is_in_one_cell():
    z = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cells = Cells.of(z)
    assert sorted(set(cells.rows.flatten().tolist())) == list(range(1000))
    radius = (z[cells.rows] - cells.centres.unsqueeze(1)).norm(dim=-1).mean()
    assert float(radius) < 0.5 * float((z - z.mean(0)).norm(dim=-1).mean())


def test_a_floor_leaves_out_small_ratios():
    ratio = torch.tensor([[4.0, 0.5, 0.3, -1.0]], dtype=torch.float64)
    plain, floored = ImportanceWeightedRule(), ImportanceWeightedRule(floor=0.1)
    assert plain.effective_ratio(ratio)[0, 2] > 0
    expected = torch.tensor([[4.0, 0.5, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(floored.effective_ratio(ratio), expected / expected.mean())


def test_whole_sequences_are_held_out_from_all_over():
    order, lengths = held_last([10, 20, 30, 40, 50, 60, 70, 80])
    assert sorted(order) == list(range(360))
    assert sum(lengths) == 360
    assert lengths[-1] != 80  # not the end of the recording alone


def test_excerpts_come_from_all_over_with_a_lead():
    """Errors of a filter that starts in the middle of a sequence are not those of its track."""
    rows = torch.arange(300.0).unsqueeze(-1)
    data = Sequences(rows, rows, [150, 150])
    pieces = excerpts(data, range(300), 180)
    assert [piece.lead for piece in pieces] == [0, *[LEAD] * 5]
    assert sum(len(piece.z) - piece.lead for piece in pieces[1:]) == 150
    assert float(pieces[0].z[0]) == 0
    assert float(pieces[-1].z[-1]) == 299
    (last,) = excerpts(data, range(200, 300), 100)
    assert last.lead == LEAD
    assert len(last.z) == 100


@pytest.mark.parametrize(
    "lengths", [[3000], [100, 2900], [500] * 6, [7] * 400, [2000, *[100] * 10]]
)
def test_error_bars_are_measured_on_blocks_all_over(lengths):
    """Whole sequences where there are enough, and never more than a third of the rows."""
    n, starts = sum(lengths), set(accumulate(lengths, initial=0))
    blocks = blocks_all_over(lengths, 6, 120)
    assert blocks == sorted(blocks, key=lambda block: block.start)
    assert blocks[0].start < n / 3 < 2 * n / 3 < blocks[-1].stop <= n
    for block in blocks:
        assert 120 <= len(block) <= n // 3
        if lengths in ([500] * 6, [7] * 400):
            assert {block.start, block.stop} <= starts


def test_blocks_are_whole_sequences_though_each_is_shorter():
    """A piece of a sequence is too easy where the rest of it is known."""
    lengths = [110] * 5
    starts = set(accumulate(lengths, initial=0))
    for block in blocks_all_over(lengths, 3, 160):
        assert {block.start, block.stop} <= starts
        assert len(block) == 110


def test_a_climb_finds_a_single_minimum_and_stays_in_bounds():
    target = Cell(scale_z=0.5, scale_x=1.0, lam=1e-1, floor=0.03, eta=0.03)

    def score(cell, limit):
        parts = [abs(FLOORS.index(cell.floor) - FLOORS.index(target.floor))]
        for name, base in (("scale_z", 2), ("scale_x", 2), ("lam", 10), ("eta", 30)):
            ratio = getattr(cell, name) / getattr(target, name)
            parts.append(abs(torch.tensor(ratio).log().item()) / torch.tensor(base).log().item())
        return 1.0 + sum(parts)

    names = ("lam", "scale_x", "floor", "scale_z", "eta")
    best, error = climb(score, Cell(), names, {"lam": (1e-8, 1.0), "eta": (1e-6, 1.0)})
    assert best == target
    assert error == pytest.approx(1.0)
    best, _ = climb(lambda cell, limit: -cell.lam, Cell(), ("lam",), {"lam": (1e-5, 1e-2)})
    assert best.lam <= 1e-2


@pytest.mark.slow
@pytest.mark.skipif("KBR_TEST_DATA" not in os.environ, reason="KBR_TEST_DATA is not set")
def test_a_phone_in_a_canteen():
    """30 columns, 11,306 rows: positions to a decimetre or two, in regions that hold them."""
    from benchmarks.local import canteen

    figures = canteen(Path(os.environ["KBR_TEST_DATA"]) / "real" / "rtt_canteen")
    assert figures["mse"] < 0.1
    assert 0.85 < figures["coverage"] < 0.98
    assert figures["smoothing s"] < 40
    assert figures["smoothed mse"] < figures["mse"]
    assert 0.85 < figures["smoothed coverage"] < 0.99
