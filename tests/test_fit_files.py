"""Fits to files: sums of all rows in blocks, masses that keep them, workers, going on."""

import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.engines.compression import compressed
from kbr.core.filters.kernel.engines.landmarks import Span, pair_moments
from kbr.core.filters.kernel.engines.recombination import matched, recombine
from kbr.core.filters.kernel.from_files import carrying, fitting, narrowing, passes, team
from kbr.core.filters.kernel.from_files.pairs import FilePairs
from kbr.core.filters.kernel.from_files.passes import Averages, Steps
from kbr.core.filters.kernel.operators import transition_pairs
from kbr.core.filters.result import mean_squared_error
from kbr.core.kernels import Gaussian
from kbr.core.units.units import Units

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (300, 120, 1, 479)
N = sum(LENGTHS)
LANDMARKS = 60


@cache
def sequences():
    generator = torch.Generator().manual_seed(1000)
    pairs = [Rotation().sample(length, generator) for length in LENGTHS]
    return [x for x, _ in pairs], [z for _, z in pairs]


def unseen():
    return Rotation().sample(60, torch.Generator().manual_seed(9))


def write(folder, xs=None, zs=None, dtype=np.float64):
    known = sequences()
    for k, (x, z) in enumerate(zip(xs or known[0], zs or known[1], strict=True)):
        np.save(folder / f"x_{k:03}.npy", x.numpy().astype(dtype))
        np.save(folder / f"z_{k:03}.npy", z.numpy().astype(dtype))
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return write(tmp_path / "data")


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces, reads and blocks that end inside sequences; fewer candidates than rows."""
    for name, size in (("PIECE", 100), ("READ", 33), ("AT_ONCE", 16)):
        monkeypatch.setattr(passes, name, size)
    monkeypatch.setattr(fitting, "CANDIDATES", 400)


@pytest.fixture
def unmeasured(monkeypatch):
    """Where error bars do not matter: most of the time of a small fit."""
    monkeypatch.setattr(fitting, "measured_on", lambda fitted, data: fitted)
    monkeypatch.setattr(fitting, "_compared", lambda settings, small, *rest: small)


def unfitted(**settings):
    rule = ImportanceWeightedRule(lam=1e-2)
    settings = {"scales": (1.0,), "correction": None, **settings}  # many pairs have none
    return KernelBayesFilter(rule=rule, eta=1e-4, **settings)


def answer(filt):
    return filt.filter(unseen()[0]).mean


def rows():
    return tuple(torch.cat(part).double() for part in sequences())


def test_sums_in_blocks_are_those_of_all_rows(folder, small_pieces):
    pairs, (x, z), kernel = FilePairs.of(folder), rows(), Gaussian(bandwidth=0.7)
    assert pairs.lengths == list(LENGTHS)
    units, some = Units.none(z), torch.arange(0, N, 90)
    averages = Averages(pairs, units, (kernel, kernel), (x[some], z[some]))
    found = sum(averages(piece) for piece in averages.pieces())
    gram = kernel(x, x[some]) * kernel(z, z[some])
    np.testing.assert_allclose(found, [*gram.sum(0), N], rtol=1e-12)
    span = Span(kernel, z[some], z[some], torch.full_like(z[some, 0], 0.1))
    steps = Steps(pairs, units, span)
    found = sum(steps(piece) for piece in steps.pieces())
    before, after = transition_pairs(LENGTHS)
    cross = span(z[before]).mT @ span(z[after])
    np.testing.assert_allclose(found[:-1], cross.flatten(), rtol=0, atol=1e-7)
    assert found[-1] == len(before)


def test_masses_of_few_candidates_have_the_moments_of_all_rows():
    """Also where the nearest masses would be negative, and through recombination."""
    (x, z), kernel = rows(), Gaussian(bandwidth=1.0)
    moments, _ = pair_moments((kernel, kernel), x, z, LANDMARKS, 1e-10)
    target, some = moments.mean(0), torch.arange(0, N, 4)
    inverse = torch.linalg.pinv(moments[some])
    nearest = 1 / len(some) + (target - moments[some].mean(0)) @ inverse
    assert nearest.min() < 0
    mass, missed = matched(moments[some], target)
    assert mass.min() >= 0
    assert missed < 1e-9
    kept, fewer = recombine(moments[some][mass > 0], mass[mass > 0])
    assert len(kept) <= LANDMARKS
    torch.testing.assert_close(fewer @ moments[some][mass > 0][kept], target, rtol=0, atol=1e-8)


def test_moments_that_cannot_be_met_are_said():
    points = torch.linspace(-1, 1, 50, dtype=torch.float64)
    moments = torch.stack([torch.ones_like(points), points], 1)
    mass, missed = matched(moments, torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert missed > 1
    assert mass.isfinite().all()
    with pytest.warns(UserWarning, match="met to"):
        carrying._landmarks(moments, torch.tensor([1.0, 3.0], dtype=torch.float64))


def test_of_very_many_rows_bandwidths_are_tried_again(
    folder, small_pieces, unmeasured, monkeypatch
):
    """The settings of the least error in the table are in use, with ridges that suit them."""
    first = unfitted().fit_files(folder, n_landmarks=LANDMARKS).choice
    tables, best = [], narrowing.Trials.best

    def seen(trials, errors):
        tables.append((trials, errors.reshape(2, -1)))
        return best(trials, errors)

    monkeypatch.setattr(narrowing, "MANY", N)
    monkeypatch.setattr(narrowing, "NARROWER", (1.0, 0.7))
    monkeypatch.setattr(narrowing, "TRACK", 50)
    monkeypatch.setattr(narrowing.Trials, "best", seen)
    monkeypatch.setattr(fitting, "_choice", lambda *rest: first)
    filt = KernelBayesFilter().fit_files(folder, n_landmarks=LANDMARKS)
    (trials, errors), choice = tables[0], filt.choice
    at, k = divmod(int(errors.argmin()), errors.shape[1])
    assert errors.isfinite().all()
    assert len(errors.unique()) == errors.numel()
    for name in ("scale_x", "scale_z"):
        expected = (1.0, 0.7)[at] * getattr(first, name)
        torch.testing.assert_close(getattr(choice, name), expected)
    torch.testing.assert_close(choice.lam, trials.lams()[k])
    torch.testing.assert_close(trials.lams(), first.lam * torch.tensor([0.1, 1.0, 10.0]).double())
    x, _ = trials.tracks()
    assert x.shape == (6 + 2 + 9, 50, 2)  # whole pieces of every sequence
    torch.testing.assert_close(x[0], trials.recent.x[:50])

    fixed = unfitted(lams=None).fit_files(folder, n_landmarks=LANDMARKS)  # with a scale of its own
    assert len(tables) == 1
    torch.testing.assert_close(fixed.choice.scale_z, first.scale_z)


def test_it_filters_as_a_compressed_fit_does(folder, small_pieces, unmeasured):
    """The same number of landmarks: errors within three per cent of each other's."""
    made = unfitted().fit_files(folder, n_landmarks=150)
    full = unfitted().fit(*sequences())
    x_test, z_test = unseen()
    files, small, whole = (
        float(mean_squared_error(filt.filter(x_test).mean, z_test))
        for filt in (made, KernelBayesFilter.of(compressed(full.fitted, 150)), full)
    )
    assert files == pytest.approx(small, rel=0.03)
    assert files == pytest.approx(whole, rel=0.03)
    assert made.operators.n <= 150
    assert not (folder / fitting.PART).exists()


def test_it_is_a_filter_like_any_other(folder, small_pieces, tmp_path):
    filt = unfitted().fit_files(folder, n_landmarks=LANDMARKS)
    x, _ = unseen()
    filt.save(tmp_path / "filter.ckpt")
    loaded = KernelBayesFilter.load(tmp_path / "filter.ckpt")
    for other in (loaded, pickle.loads(pickle.dumps(filt)), filt.to("cpu")):
        assert torch.equal(answer(other), answer(filt))
    assert vars(loaded.compression) == vars(filt.compression)
    assert filt.compression.n_train == N
    assert filt.compression.compared < N
    belief = filt.step(filt.init(), x[0])
    assert filt.forecast(belief, steps=3).mean.isfinite().all()
    assert filt.smooth(x).cov.isfinite().all()
    assert filt.calibration.scores.isfinite().all()
    text = " ".join(repr(filt.summary()).split())
    assert f"{N} steps" in text
    assert f"{filt.operators.n} weighted pairs in the place of {N} pairs" in text
    assert filt.rule.kernel_x.bandwidth is None  # another fit chooses it again


def test_settings_are_chosen_on_the_rows_that_fit_takes(folder, unmeasured):
    made = unfitted(scales=(0.7, 1.4)).fit_files(folder, n_landmarks=LANDMARKS)
    full = unfitted(scales=(0.7, 1.4)).fit(*sequences())
    assert float(made.choice.scale_z) == float(full.choice.scale_z)
    assert float(made.choice.val_mse) == pytest.approx(float(full.choice.val_mse), rel=1e-6)


def test_one_pair_of_files_with_ids_is_the_same_filter(
    folder, unmeasured, small_pieces, tmp_path, monkeypatch
):
    monkeypatch.setattr("kbr.core.filters.kernel.from_files.pairs.IDS", 70)
    x, z = (torch.cat(part).numpy() for part in sequences())
    ids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    for name, values in (("x", x), ("z", z), ("sequence", ids)):
        np.save(tmp_path / f"{name}.npy", values)
    assert FilePairs.of(tmp_path).lengths == list(LENGTHS)
    one = unfitted().fit_files(tmp_path, n_landmarks=LANDMARKS)
    several = unfitted().fit_files(folder, n_landmarks=LANDMARKS)
    assert torch.equal(answer(one), answer(several))


def test_a_stopped_fit_goes_on_with_the_same_numbers(folder, unmeasured, small_pieces, monkeypatch):
    expected = answer(unfitted().fit_files(folder, n_landmarks=LANDMARKS, resume=False))
    for kind, at in ((Averages, 400), (Steps, 700)):
        whole, done = kind.__call__, []

        def stopping(self, piece, at=at, whole=whole):
            if piece[0] == at:
                raise KeyboardInterrupt
            return whole(self, piece)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "__call__", stopping)
            with pytest.raises(KeyboardInterrupt):
                unfitted().fit_files(folder, n_landmarks=LANDMARKS)
        assert (folder / fitting.PART).exists()

        def counting(self, piece, whole=whole, done=done):
            done.append(piece[0])
            return whole(self, piece)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "__call__", counting)
            patch.setattr(fitting, "choose", None)  # not chosen again
            filt = unfitted().fit_files(folder, n_landmarks=LANDMARKS)
        assert done == list(range(at, N, 100))
        assert torch.equal(answer(filt), expected)
        assert not (folder / fitting.PART).exists()


@pytest.mark.parametrize("what", ["data", "settings", "damage"])
def test_what_has_changed_is_not_gone_on_with(folder, unmeasured, small_pieces, monkeypatch, what):
    whole = Steps.__call__
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "__call__", lambda self, piece: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            unfitted().fit_files(folder, n_landmarks=LANDMARKS)
    more = LANDMARKS
    if what == "data":
        z = np.load(folder / "z_003.npy")
        z[17] += 0.1
        np.save(folder / "z_003.npy", z)
    elif what == "settings":
        more += 1
    else:
        (folder / fitting.PART).write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="begins anew"):
        filt = unfitted().fit_files(folder, n_landmarks=more)
    assert Steps.__call__ is whole
    fresh = unfitted().fit_files(folder, n_landmarks=more, resume=False)
    assert torch.equal(answer(filt), answer(fresh))


def test_rows_with_missing_values_are_left_out_and_said(folder, small_pieces):
    xs, zs = ([part.clone() for part in side] for side in sequences())
    xs[0][100], zs[3][200, 1] = torch.nan, torch.nan
    write(folder, xs, zs)
    with pytest.warns(UserWarning, match="2 of 900 rows have missing values"):
        filt = unfitted().fit_files(folder, n_landmarks=LANDMARKS)
    assert filt.compression.n_train == N - 2
    _, z = rows()
    span = Span(Gaussian(bandwidth=1.0), z[:3], z[:3], z[:3, 0].square())
    steps = Steps(FilePairs.of(folder), Units.none(z), span)
    assert sum(steps(piece)[-1] for piece in steps.pieces()) == N - len(LENGTHS) - 2


def test_float32_and_one_column_are_read(tmp_path, unmeasured):
    x, z = (part[3] for part in sequences())
    np.save(tmp_path / "x.npy", x[:, 0].numpy().astype(np.float32))
    np.save(tmp_path / "z.npy", z[:, 0].numpy().astype(np.float32))
    filt = unfitted().fit_files(tmp_path, n_landmarks=LANDMARKS)
    assert filt.filter(x[:20, 0]).mean.shape == (20, 1)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "no .npy files"),
        (["x"], r"z\.npy.*it has x"),
        (["x", "z", "time"], "it has .*time"),
        (["x_0", "z_1"], "it has x_0, z_1"),
        (["x_0", "z_0", "sequence"], "it has .*sequence"),
        (["x", "z", "x_0", "z_0"], "it has x, x_0"),
    ],
)
def test_other_folders_are_refused(tmp_path, names, words):
    for name in names:
        np.save(tmp_path / f"{name}.npy", np.zeros((5, 1)))
    with pytest.raises(KbrError, match=words):
        unfitted().fit_files(tmp_path)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"x_0": (5, 2), "z_0": (4, 1)}, "as many rows; got 5 and 4"),
        ({"x_0": (5, 2), "z_0": (5, 1), "x_1": (5, 3), "z_1": (5, 1)}, r"shape \[5, 3\].*\[2\]"),
        ({"x": (5, 2), "z": (5, 1, 1)}, r"\[T, dz\]"),
        ({"x": (5, 2), "z": (5, 1), "sequence": (4,)}, "an id for each of 5 rows"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, shapes, words):
    for name, shape in shapes.items():
        np.save(tmp_path / f"{name}.npy", np.zeros(shape))
    with pytest.raises(KbrError, match=words):
        unfitted().fit_files(tmp_path)


def test_what_it_cannot_do_is_refused(folder, tmp_path):
    for settings, words in (({"history": 2}, "history=1"), ({"velocity": True}, "velocity=False")):
        with pytest.raises(KbrError, match=words):
            unfitted(**settings).fit_files(folder)
    with pytest.raises(KbrError, match="workers"):
        unfitted().fit_files(folder, workers=0)
    with pytest.raises(KbrError, match="n_landmarks"):
        unfitted().fit_files(folder, n_landmarks=1, resume=False)
    with pytest.raises(KbrError, match="no folder"):
        unfitted().fit_files(tmp_path / "absent")


def test_pieces_of_processes_come_in_order(monkeypatch):
    """Each process of torch.distributed takes every second piece, and all get all of them."""
    pieces, task = [(k, k + 1) for k in range(5)], lambda piece: np.array([piece[0]])
    monkeypatch.setattr(team.dist, "get_world_size", lambda: 2)

    def gather(found, mine):
        found[gather.rank] = mine
        other = gather.start + 1 - gather.rank
        found[1 - gather.rank] = task(pieces[other]) if other < len(pieces) else None
        gather.start += 2

    monkeypatch.setattr(team.dist, "all_gather_object", gather)
    for rank in range(2):
        monkeypatch.setattr(team.dist, "get_rank", lambda rank=rank: rank)
        gather.rank, gather.start = rank, 0
        assert [int(part[0]) for part in team.Group().map(task, pieces)] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_two_workers_end_with_the_numbers_of_one(folder, tmp_path):
    expected = answer(unfitted().fit_files(folder, n_landmarks=LANDMARKS))
    found = unfitted().fit_files(folder, n_landmarks=LANDMARKS, workers=2)
    assert torch.equal(answer(found), expected)
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import torch
from kbr import ImportanceWeightedRule, KernelBayesFilter
torch.distributed.init_process_group("gloo")
filt = KernelBayesFilter(rule=ImportanceWeightedRule(lam=1e-2), eta=1e-4, scales=(1.0,))
filt.fit_files({str(folder)!r}, n_landmarks={LANDMARKS})
filt.save(f"{tmp_path}/{{torch.distributed.get_rank()}}.ckpt")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        loaded = KernelBayesFilter.load(tmp_path / f"{rank}.ckpt")
        torch.testing.assert_close(answer(loaded), expected, rtol=0, atol=1e-10)
