"""Frames that stay in their file: read by blocks, trained on exactly, never all at once."""

import os
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kbr.app.recordings.read import Source
from kbr.app.recordings.split import Splitting
from kbr.app.recordings.task import OwnData
from kbr.core.errors import KbrError
from kbr.core.io import file_rows
from kbr.core.io.file_rows import FileRows
from kbr.core.objectives import add_up, feature_sums, loss_from_sums
from kbr.training import MLP, LearnedFilter, SoftArgmaxCNN, workers
from kbr.training.data import training_rows
from kbr.training.modules.base import input_scaling
from kbr.training.modules.features import FeatureModule
from kbr.training.workers import loss_in_parts

ROWS = 120
pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:You are using `torch.load` with `weights_only=False`",
    "ignore:`lr_scheduler.step..` before",
    "ignore:.*does not have many workers.*",
)


@pytest.fixture
def folder(tmp_path):
    """x.npy of uint8 frames and z.npy: a spot whose place is the state."""
    generator = np.random.default_rng(0)
    z = np.cumsum(generator.normal(0, 0.2, (ROWS, 2)), 0)
    z = 2.5 + 2 * np.sin(z)
    u = np.arange(8)
    spot = np.exp(-((u - z[:, :1]) ** 2)[:, None, :] - ((u - z[:, 1:]) ** 2)[:, :, None])
    np.save(tmp_path / "x.npy", (250 * spot).astype(np.uint8))
    np.save(tmp_path / "z.npy", z)
    return tmp_path


@pytest.fixture
def few_at_once(monkeypatch):
    """No more than 30 rows of the file are ever read together."""
    monkeypatch.setattr(file_rows, "BLOCK", 30)
    monkeypatch.setattr("kbr.training.filters.trained.ENCODE_ROWS", 30)
    raw = FileRows.raw

    def checked(self):
        assert len(self) <= 30, f"{len(self)} rows read at once"
        return raw(self)

    monkeypatch.setattr(FileRows, "raw", checked)


def own(path, **settings):
    return OwnData(name="own", source=Source(path=str(path), **settings), splitting=Splitting())


def test_rows_are_those_of_the_file(folder):
    frames = np.load(folder / "x.npy")
    rows = FileRows(folder / "x.npy", layout=lambda x: x[:, None])
    assert rows.shape == (ROWS, 1, 8, 8)
    some = rows[10:40].part(np.array([3, 1, 20]))
    assert torch.equal(some.read(), torch.from_numpy(frames[[13, 11, 30]]).float()[:, None])
    mixed = rows[[0, 2, 1, 3]]  # the ends as far apart as those of a slice
    assert torch.equal(mixed, torch.from_numpy(frames[[0, 2, 1, 3]]).float()[:, None])
    assert torch.equal(rows[[5]], torch.from_numpy(frames[5:6]).float()[:, None])
    joined = FileRows.join([rows[:7], rows[50:60]])
    assert torch.equal(joined.read(), torch.cat([rows[:7].read(), rows[50:60].read()]))
    mean, scale = torch.tensor(3.0), torch.tensor(2.0)
    torch.testing.assert_close(rows.scaled(mean, scale).read(), (rows.read() - 3) / 2)
    assert [len(part) for part in rows.parts(50)] == [50, 50, 20]


def test_scaling_by_blocks_is_that_of_all_frames(folder, few_at_once, monkeypatch):
    in_file = own(folder)
    np.savez(folder / "all.npz", x=np.load(folder / "x.npy"), z=np.load(folder / "z.npy"))
    in_memory = own(folder / "all.npz")
    assert in_file.recording.file is not None
    assert in_memory.recording.file is None
    for name in ("mean", "scale"):
        found, truth = (getattr(o.filter_units.x, name) for o in (in_file, in_memory))
        torch.testing.assert_close(found, truth.double(), rtol=1e-6, atol=0)
    x = FileRows.join(in_file.data(0).x_train)
    whole = torch.cat(in_memory.data(0).x_train)
    for found, truth in zip(input_scaling(x), input_scaling(whole), strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)


def test_training_on_a_file_never_reads_it_whole(folder, few_at_once, tmp_path):
    problem = own(folder)
    data = problem.data(0)
    encoder = partial(SoftArgmaxCNN, channels=4, n_maps=4, hidden=8, n_features=6)
    filt = LearnedFilter(encoder=encoder, epochs=2, val_every=1, chunk=30, n_fourier=16)
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    filt.fit(data.x_train, data.z_train, folder=tmp_path, trainer=settings)
    result = filt.filter(data.x_test[0])
    assert result.mean.shape == (len(data.x_test[0]), 2)
    assert bool(result.mean.isfinite().all())
    loaded = LearnedFilter.load(tmp_path / "checkpoints" / "best.ckpt")
    assert torch.equal(loaded.filter(data.x_test[0]).mean, result.mean)
    assert problem.view(data, filt, filt.gaze).weights.shape == (30, 90)
    assert filt.training_in(tmp_path, data.x_train, data.z_train, seed=0) == "finished"


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_and_gradient_in_chunks_are_those_of_the_full_batch(dropout):
    """n = 50, chunks of 16, float64: the two-pass loss equals the full one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, dtype=torch.float64, generator=generator)
    z = torch.randn(50, 2, dtype=torch.float64, generator=generator)
    network = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 4)
    ).double()
    module = FeatureModule(
        encoder=lambda shape: network,
        shape=(3,),
        dz=2,
        lam=1e-3,
        n_fourier=16,
        chunk=16,
        noise=dropout,
    ).double()
    module.fit_scales(x, z)
    weights = list(network.parameters())
    loss, total = loss_in_parts(weights, lambda: module.parts(x, z), lam=1e-3)
    found = torch.autograd.grad(loss, weights)
    blocks = [slice(k, k + 16) for k in range(0, 50, 16)]
    psi = torch.cat([module.train_features(x[b], k) for k, b in enumerate(blocks, start=1)])
    full = loss_from_sums(feature_sums(psi, module.targets(z)), lam=1e-3)
    truth = torch.autograd.grad(full, weights)
    assert total.n == 50
    torch.testing.assert_close(loss, full, rtol=1e-10, atol=1e-12)
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_gradients_of_two_workers_average_to_that_of_all_points(monkeypatch):
    """Each takes its rows in chunks; the sums of both are added up."""
    generator = torch.Generator().manual_seed(0)
    x, phi = (torch.randn(50, k, dtype=torch.float64, generator=generator) for k in (3, 5))
    weight = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)

    def parts(rows):
        pairs = zip(torch.split(x[rows], 16), torch.split(phi[rows], 16), strict=True)
        return (feature_sums((some @ weight).tanh(), those) for some, those in pairs)

    full = loss_from_sums(feature_sums((x @ weight).tanh(), phi), lam=1e-2)
    (truth,) = torch.autograd.grad(full, weight)
    total = add_up(parts(slice(None))).detach()
    monkeypatch.setattr(workers.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(workers.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(workers, "sum_over_workers", lambda part: total)
    found = []
    for rows in (slice(0, 20), slice(20, 50)):
        loss, _ = loss_in_parts([weight], lambda rows=rows: parts(rows), lam=1e-2)
        torch.testing.assert_close(loss, full, rtol=1e-10, atol=1e-12)
        found += torch.autograd.grad(loss, weight)
    torch.testing.assert_close(sum(found) / 2, truth, rtol=1e-10, atol=1e-12)


def test_a_large_npz_is_unpacked_where_the_user_says(folder, tmp_path, capsys, monkeypatch):
    """Only if asked, and only once; a folder that is there is trusted only by its content."""
    packed, frames = folder / "packed.npz", np.load(folder / "x.npy")
    np.savez_compressed(packed, x=frames, z=np.ones((ROWS, 2)))
    before = set(folder.iterdir())
    with pytest.raises(KbrError, match=r"data\.max_gb=5e-06.*data\.unpack=<folder>"):
        _ = own(packed, max_gb=5e-6).recording
    assert set(folder.iterdir()) == before
    asked = {"max_gb": 5e-6, "unpack": str(tmp_path / "room")}
    first = own(packed, **asked).recording
    (made,) = (tmp_path / "room").iterdir()
    assert str(made) in capsys.readouterr().out
    assert isinstance(first.x, np.memmap)
    np.testing.assert_array_equal(first.file.raw()[:, 0], frames)
    again = own(packed, **asked).recording
    assert capsys.readouterr().out == ""
    assert first.digest() == again.digest() != own(folder).recording.digest()

    stamp = made.stat()
    content = bytearray(made.read_bytes())
    content[-1] ^= 255
    made.write_bytes(content)  # another content, of the same size and time
    os.utime(made, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert own(packed, **asked).recording.digest() == first.digest()
    made.unlink()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5))
    with pytest.raises(KbrError, match=r"free in data\.unpack"):
        _ = own(packed, **asked).recording


def test_frames_with_nan_are_missing(folder, few_at_once):
    frames = np.load(folder / "x.npy").astype(np.float32)
    frames[3, 0, 0] = np.nan
    np.save(folder / "x.npy", frames)
    recording = own(folder).recording
    assert recording.x_missing.nonzero()[0].tolist() == [3]
    assert 3 not in own(folder).parts.train_rows


def test_what_cannot_be_done_by_blocks_is_refused(folder, monkeypatch, tmp_path):
    data = own(folder)
    monkeypatch.setattr("kbr.core.io.memory.available_memory", lambda device=None: 10.0)
    with pytest.raises(KbrError, match="iw_nn"):
        data.trials([0])
    made = data.data(0)
    filt = LearnedFilter(encoder=partial(MLP, hidden=(4,), n_features=2), n_fourier=16)
    with pytest.raises(KbrError, match="encoder=cnn"):
        filt.fit(made.x_train, made.z_train, folder=tmp_path)
    with pytest.raises(KbrError, match="as many rows"):
        training_rows(made.x_train, [made.z_train[0][1:]], whole=False)
    ids = np.arange(ROWS) % 2
    np.save(folder / "sequence.npy", ids)
    with pytest.raises(KbrError, match="Sort its rows"):
        _ = own(folder).recording


def test_closed_forms_read_what_fits(folder):
    made = own(folder).trials([0])
    assert all(isinstance(piece, torch.Tensor) for piece in (*made.x_train, *made.x_test))


def test_pictures_take_few_frames_of_a_file(folder):
    problem = own(folder)
    view = problem.view(problem.data(0))
    assert view.x_train[[0, 5]].shape == (2, 1, 8, 8)
    assert view.x_test.shape[1:] == (1, 8, 8)
