"""Data of one's own: read as written, cut where it must be, scaled on training rows, undone."""

import csv
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import numpy as np
import pytest
import torch

from kbr import KernelBayesFilter
from kbr.app.evaluation import _fresh
from kbr.app.own.findings import reading_notes
from kbr.app.own.new import read_recording
from kbr.app.own.problem import OwnData
from kbr.app.own.read import Source
from kbr.app.own.split import Splitting
from kbr.core.errors import KbrError
from kbr.core.filters.result import FilterResult

ROOT = Path(__file__).resolve().parent.parent
SPLIT = ("split", "test_share", "max_gap", "n_train", "n_test")
OWN = ("circular", "angle_unit", "units")


def own(path: Path, **keys) -> OwnData:
    """The problem that data=npz builds from these keys."""
    splitting = Splitting(**{k: keys.pop(k) for k in SPLIT if k in keys})
    rest = {k: keys.pop(k) for k in OWN if k in keys}
    return OwnData(name="npz", source=Source(path=str(path), **keys), splitting=splitting, **rest)


def turning(rows: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A noisy point on a circle: x [T, 2] and its angle in degrees [T, 1], in [0, 360)."""
    rng = np.random.default_rng(seed)
    angle = np.cumsum(0.3 + 0.1 * rng.normal(size=rows))
    x = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.2 * rng.normal(size=(rows, 2))
    return x, np.degrees(angle)[:, None] % 360


def saved(folder: Path, **arrays) -> Path:
    path = folder / "my.npz"
    np.savez(path, **arrays)
    return path


def table(folder: Path, text: str) -> Path:
    path = folder / "log.csv"
    path.write_text(text)
    return path


# Reading


@pytest.mark.parametrize(
    ("shape", "channels", "expected"),
    [
        ((), "auto", (1,)),
        ((3,), "auto", (3,)),
        ((8, 9), "auto", (1, 8, 9)),
        ((8, 9, 3), "auto", (3, 8, 9)),
        ((3, 8, 9), "auto", (3, 8, 9)),
        ((8, 9, 5), "last", (5, 8, 9)),
        ((2, 3), "auto", (6,)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_observations_of_any_kind_are_read(tmp_path, shape, channels, expected, dtype):
    x = np.random.default_rng(0).integers(0, 255, size=(40, *shape)).astype(dtype)
    recording = own(saved(tmp_path, x=x, z=np.arange(40.0)), channels=channels).recording
    assert recording.x.shape == (40, *expected)
    assert recording.z.shape == (40, 1)
    assert recording.x.sum() == pytest.approx(float(x.astype(float).sum()))
    if len(shape) == 3 and shape[-1] == 3:
        np.testing.assert_array_equal(recording.x[5, 2], x[5, :, :, 2])


def test_csv_columns_are_chosen_by_name(tmp_path):
    lines = [f"{t};{10 * t};;s{t // 25};{t % 25}" for t in range(50)]
    path = table(tmp_path, "b;a;empty;run;when\n" + "\n".join(lines) + "\n")
    recording = own(path, x=["a", "b"], z="b", sequence="run", time="when").recording
    np.testing.assert_array_equal(recording.x[:3], [[0, 0], [10, 1], [20, 2]])
    assert recording.z_names == ("b",)
    assert list(recording.sequence) == [0] * 25 + [1] * 25
    assert recording.starts().sum() == 2


def test_csv_time_may_be_dates(tmp_path):
    rows = [f"2024-05-01T12:00:{s:02d},{s},{s}" for s in [*range(30), *range(40, 59)]]
    recording = own(table(tmp_path, "time,a,b\n" + "\n".join(rows)), x=["a"], z=["b"]).recording
    assert recording.sampling().limit == 1.5
    assert recording.time_unit == "s"
    assert list(np.flatnonzero(recording.starts())) == [0, 30]


def test_large_time_stamps_keep_their_last_digits(tmp_path):
    """Nanoseconds since 1970 as whole numbers: float64 would see steps of 0 and 256."""
    stamps = 1_714_564_800_000_000_000 + 100 * np.arange(60)
    rows = "\n".join(f"{t},{k},{k}" for k, t in enumerate(stamps))
    written = table(tmp_path, f"time,a,b\n{rows}\n")
    arrays = {"x": np.arange(60.0), "z": np.arange(60.0)}
    for recording in (
        Source(path=str(written), x=["a"], z=["b"]).read(),
        Source(path=str(saved(tmp_path, **arrays, time=stamps))).read(),
        Source(path=str(saved(tmp_path, **arrays, time=stamps.astype(np.uint64)))).read(),
    ):
        np.testing.assert_array_equal(np.diff(recording.time), 100)
    days = (stamps[0] + 10**9 * np.arange(60)).astype("datetime64[ns]")
    recording = Source(path=str(saved(tmp_path, **arrays, time=days))).read()
    np.testing.assert_array_equal(recording.time, np.arange(60))
    assert recording.time_unit == "s"


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        (["2024-05-01T12:00:00Z", "2024-05-01T14:00:01+02:00"], [0, 1]),
        (["2024-05-01 12:00:00.25", "2024-05-01 12:00:01.5"], [0, 1.25]),
        (["2024-05-01", "2024-05-02"], [0, 86400]),
        (["2024-05-01T12:00:00Z", "2024-05-01T12:00:01"], "line 3 .* time zone"),
        (["2024-05-01T12:00:00", "yesterday"], "line 3 .*yesterday"),
        (["2024-05-01T12:00:00", ""], "line 3"),
        (["1", "nan"], "row 2 has none"),
        (["1", "1"], "row 2 has the time of the row before, 1"),
        (["1714564800.5", "1714564800.25"], "1714564800.25 after 1714564800.5"),
    ],
)
def test_dates_and_their_zones(tmp_path, stamps, expected):
    path = table(tmp_path, "time,a,b\n" + "".join(f"{stamp},1,2\n" for stamp in stamps))
    if isinstance(expected, str):
        with pytest.raises(KbrError, match=expected):
            Source(path=str(path), x=["a"], z=["b"]).read()
    else:
        assert Source(path=str(path), x=["a"], z=["b"]).read().time.tolist() == expected


def test_a_folder_of_frames_is_read(tmp_path):
    from PIL import Image

    rows = ["file,px,py"]
    for t in range(30):
        pixels = np.full((6, 5, 3), [t, 2 * t, 3 * t], dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{t}.png")
        rows.append(f"{t}.png,{t},{-t}")
    rows.append(",1,2")  # a frame that is missing
    (tmp_path / "states.csv").write_text("\n".join(rows))
    recording = own(tmp_path).recording
    assert recording.x.shape == (31, 3, 6, 5)
    assert recording.z_names == ("px", "py")
    np.testing.assert_array_equal(recording.x[7, :, 0, 0], [7, 14, 21])
    assert list(np.flatnonzero(recording.x_missing)) == [30]
    assert own(tmp_path, resize=[4, 8]).recording.x.shape == (31, 3, 4, 8)


# New recordings, whose state is not known


def test_a_recording_without_z_is_read_by_the_names_of_x(tmp_path):
    """Columns in any order, words among them; z where all of it is there."""
    path = table(tmp_path, "note,b,t,a\nok,2,0,1\n,4,1,3\n")
    found = read_recording(path, x=["a", "b"], z=["px", "py"], time="t")
    assert found.x.tolist() == [[1, 2], [3, 4]]
    assert found.z.shape == (2, 2)
    assert np.isnan(found.z).all()
    assert not found.has_truth
    assert found.z_missing.all()
    assert found.z_names == ("px", "py")
    assert found.unused == ("note",)
    path = table(tmp_path, "py,a,px\n5,1,6\n,2,8\n")
    found = read_recording(path, x=["a"], z=["px", "py"])
    assert found.has_truth
    np.testing.assert_array_equal(found.z, [[6, 5], [8, np.nan]])
    path = table(tmp_path, "py,a\n5,1\n7,2\n")
    found = read_recording(path, x=["a"], z=["px", "py"])
    assert not found.has_truth
    assert found.unused == ("py",)
    path = table(tmp_path, "a\n1\n\n3\n\n\n")  # in one column an empty line is a missing value
    np.testing.assert_array_equal(read_recording(path, x=["a"]).x, [[1], [np.nan], [3]])


def test_arrays_and_frames_without_z_are_read(tmp_path):
    from PIL import Image

    x = np.arange(20.0).reshape(10, 2)
    found = read_recording(saved(tmp_path, x=x, extra=x), x=["a", "b"], z=["px"])
    np.testing.assert_array_equal(found.x, x)
    assert (found.has_truth, found.z.shape, found.unused) == (False, (10, 1), ("extra",))
    with pytest.raises(KbrError, match="no array 'z'"):
        Source(path=str(tmp_path / "my.npz")).read()
    np.save(tmp_path / "x.npy", x)
    assert read_recording(tmp_path).x.shape == (10, 2)
    with pytest.raises(KbrError, match=r"x\.npy and no z\.npy"):
        Source(path=str(tmp_path)).read()
    folder = tmp_path / "frames"
    folder.mkdir()
    Image.fromarray(np.zeros((6, 5), dtype=np.uint8)).save(folder / "0.png")
    (folder / "states.csv").write_text("file\n0.png\n\n0.png\n")
    found = read_recording(folder, z=["px"])
    assert found.x.shape == (3, 1, 6, 5)
    assert found.x_missing.tolist() == [False, True, False]
    assert not found.has_truth
    (folder / "states.csv").write_text("file,px\n0.png,7\n")
    assert read_recording(folder, z=["px"]).z.tolist() == [[7]]


def test_missing_columns_are_named_with_those_that_are_close(tmp_path):
    path = table(tmp_path, "accel_x,accel_y,speed\n1,2,3\n")
    with pytest.raises(KbrError) as caught:
        read_recording(path, x=["acel_x", "accel_y", "Speed"])
    said = str(caught.value)
    assert "no column 'acel_x', 'Speed'" in said
    assert "Did you mean 'accel_x', 'speed'?" in said
    assert "There are: accel_x, accel_y, speed" in said


def test_rows_know_their_place_in_the_file(tmp_path):
    path = table(tmp_path, "sequence,a\nq,0\np,1\nq,2\np,3\n")
    found = read_recording(path, x=["a"])
    assert found.x[:, 0].tolist() == [0, 2, 1, 3]
    assert found.row.tolist() == [0, 2, 1, 3]


# Borders and parts


def jittered(kind: str, rows: int = 600) -> np.ndarray:
    rng = np.random.default_rng(1000)
    steps = {
        "none": np.ones(rows),
        "normal": np.abs(1 + 0.3 * rng.normal(size=rows)) + 1e-3,
        "uniform": 0.05 + 2 * rng.random(rows),
        "two rates": rng.choice([1.0, 2.0], size=rows),
        "exponential": rng.exponential(size=rows) + 1e-3,
    }
    return np.cumsum(steps[kind])


@pytest.mark.parametrize("kind", ["none", "normal", "uniform", "two rates"])
def test_jitter_in_time_cuts_nothing_and_true_gaps_do(tmp_path, kind):
    x, z = turning(600)
    time = jittered(kind)
    recording = own(saved(tmp_path, x=x, z=z, time=time)).recording
    assert recording.sampling().gaps == 0
    assert recording.sampling().irregular == (kind != "none")
    time[300:] += 50
    problem = own(saved(tmp_path, x=x, z=z, time=time))
    assert list(np.flatnonzero(problem.recording.starts())) == [0, 300]
    notes = reading_notes(problem.recording, problem.parts)
    assert "1 gap cuts it into 2 pieces" in notes[0]
    assert "data.max_gap" in notes[0]
    assert any("sampling is irregular" in note for note in notes) == (kind != "none")


def test_random_arrivals_are_not_shredded(tmp_path):
    x, z = turning(600)
    recording = own(saved(tmp_path, x=x, z=z, time=jittered("exponential"))).recording
    assert recording.sampling().gaps < 0.03 * 600


def test_many_cuts_are_said_with_what_to_do(tmp_path):
    """A tenth of the rows lost on an even grid: true gaps, and too many to keep quiet about."""
    x, z = turning(600)
    time = np.delete(np.arange(660.0), np.arange(5, 655, 11)[:59])[:600]
    problem = own(saved(tmp_path, x=x, z=z, time=time))
    (note,) = reading_notes(problem.recording, problem.parts)
    assert "into 60 pieces: steps of time longer than 1.5" in note
    assert "10% of the steps are cut: raise data.max_gap" in note
    wide = own(saved(tmp_path, x=x, z=z, time=time), max_gap=2.5)
    assert len(wide.parts.train) == 1
    (note,) = reading_notes(wide.recording, wide.parts)
    assert "sampling is irregular: steps of time from 1 to 2" in note


@pytest.mark.parametrize(
    ("keys", "words"), [({"max_gap": 3}, "no time stamps"), ({"max_gap": 0}, "greater than 0")]
)
def test_a_gap_that_cannot_be_is_refused(tmp_path, keys, words):
    x, z = turning(60)
    with pytest.raises(KbrError, match=words):
        _ = own(saved(tmp_path, x=x, z=z), **keys).parts


def test_what_was_left_out_is_said(tmp_path):
    x, z = turning(120)
    lines = [f"{a},{b},7,{c},{'word'},{9 if t else ''}" for t, (a, b, c) in enumerate(np.c_[x, z])]
    lines[3] = "inf,1,7,2,word,9"
    lines[50] = lines[51] = lines[52]
    path = table(tmp_path, "a,b,fixed,yaw,note,\n" + "\n".join(lines) + "\n")
    problem = own(path, x=["a", "b", "fixed"], z=["yaw"])
    notes = reading_notes(problem.recording, problem.parts)
    assert [note.split(":")[0] for note in notes] == [
        "1 rows have a missing or infinite x",
        "2 rows repeat an earlier row exactly (x and z)",
        "'fixed' of x is constant over the training rows",
        "columns not used",
    ]
    assert notes[-1] == "columns not used: note, (column 6, without a name)"
    both = own(path, x=["a", "yaw"], z=["yaw"])
    assert any("x holds the answer" in n for n in reading_notes(both.recording, both.parts))


def test_training_pieces_cross_no_sequence_gap_or_missing_row(tmp_path):
    x, z = turning(120)
    x[10], z[20] = np.nan, np.nan
    time = np.arange(120.0)
    time[30:] += 5
    sequence = np.repeat([7, 3], 60)
    problem = own(saved(tmp_path, x=x, z=z, time=time, sequence=sequence), split="time")
    pieces = [list(piece) for piece in problem.parts.train]
    assert pieces == [
        list(range(10)),
        list(range(11, 20)),
        list(range(21, 30)),
        list(range(30, 45)),
        list(range(60, 105)),
    ]
    assert [list(p) for p in problem.parts.test] == [list(range(45, 60)), list(range(105, 120))]
    data = problem.data(0)
    assert [len(part) for part in data.z_train] == [10, 9, 9, 15, 45]


def test_interleaved_sequences_are_taken_apart(tmp_path):
    x, z = turning(80)
    ids = np.tile(["b", "a"], 40)
    recording = own(saved(tmp_path, x=x, z=z, sequence=ids)).recording
    np.testing.assert_array_equal(recording.x[:40], x[::2])
    np.testing.assert_array_equal(recording.x[40:], x[1::2])
    assert list(np.flatnonzero(recording.starts())) == [0, 40]


@pytest.mark.parametrize(
    ("split", "sequences", "share", "first_test", "kind"),
    [
        ("time", 1, 0.25, [90], "time"),
        ("auto", 2, 0.5, [30, 90], "time"),
        ("auto", 4, 0.25, [90], "sequence"),
        ("sequence", 4, 0.3, [60, 90], "sequence"),
        ("sequence", 2, 0.9, [60], "sequence"),
    ],
)
def test_splits(tmp_path, split, sequences, share, first_test, kind):
    x, z = turning(120)
    ids = np.arange(120) // (120 // sequences)
    problem = own(saved(tmp_path, x=x, z=z, sequence=ids), split=split, test_share=share)
    assert [int(piece[0]) for piece in problem.parts.test] == first_test
    assert problem.parts.kind == kind
    assert not set(problem.parts.train_rows) & set(problem.parts.test_rows)


def test_the_numbers_of_rows_can_be_limited(tmp_path):
    x, z = turning(120)
    problem = own(saved(tmp_path, x=x, z=z), n_train=40, n_test=7)
    assert list(problem.parts.train_rows) == list(range(50, 90))
    assert list(problem.parts.test_rows) == list(range(90, 97))


# Scaling


def test_scaling_is_fitted_on_training_rows_alone(tmp_path):
    x, z = turning(100)
    first = own(saved(tmp_path, x=x, z=z)).data(0)
    assert torch.cat(first.x_train).mean(0).abs().max() < 1e-12
    assert torch.cat(first.z_train).std(0, correction=0) == pytest.approx(1.0)
    x[80:] *= 100
    z[80:] += 1e4
    again = own(saved(tmp_path, x=x, z=z)).data(0)
    torch.testing.assert_close(first.z_train, again.z_train)
    torch.testing.assert_close(first.x_train, again.x_train)


@pytest.mark.parametrize("size", [1e-200, 1e-3, 1e200])
def test_numbers_of_any_size_are_scaled(size):
    values = size * (1 + np.random.default_rng(0).random((50, 2)))
    scaling = Scaling.fit(values, ("a", "b"), (), 360.0)
    inner = scaling.apply(values)
    assert inner.mean(0).abs().max() < 1e-9
    torch.testing.assert_close(inner.std(0, correction=0), torch.ones(2).double())


def test_undoing_gives_moments_of_the_recorded_values():
    """Samples scaled, their moments undone, against moments of the samples themselves."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) * [1, 50, 1e-3] + [0, 7, 1]
    scaling = Scaling.fit(values[:200], ("a", "b", "c"), (), 360.0)
    inner = scaling.apply(values)
    result = scaling.undo(belief(inner))
    np.testing.assert_allclose(result.mean[0], values.mean(0), rtol=1e-9)
    np.testing.assert_allclose(result.cov[0], np.cov(values.T), rtol=1e-8)


@pytest.mark.parametrize(("turn", "unit"), [(360.0, 180 / np.pi), (2 * np.pi, 1.0)])
@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_an_angle_comes_back_with_its_mean_and_variance(turn, unit, spread):
    """A normal angle around the jump: wrapped, its mean and sd return (exact in the limit)."""
    rng = np.random.default_rng(1)
    angle = unit * (np.pi - 0.1 + spread * rng.normal(size=100_000))
    wrapped = (angle + turn / 2) % turn - turn / 2
    values = np.stack([rng.normal(size=len(angle)) + angle / unit, wrapped], 1)
    scaling = Scaling.fit(values, ("a", "yaw"), ("yaw",), turn)
    result = scaling.undo(belief(scaling.apply(values)))
    assert float(result.mean[0, 1]) / unit == pytest.approx(np.pi - 0.1, abs=0.02)
    assert float(result.cov[0, 1, 1]) ** 0.5 / unit == pytest.approx(spread, rel=0.02)
    if spread < 0.5:
        assert float(result.cov[0, 0, 1]) / unit == pytest.approx(spread**2, rel=0.1)
    assert torch.linalg.eigvalsh(result.cov[0]).min() > 0


def test_an_angle_nothing_is_known_about_has_the_variance_of_a_uniform_one():
    circle = np.linspace(-180, 179, 360)[:, None]
    scaling = Scaling.fit(circle, ("yaw",), ("yaw",), 360.0)
    cov = scaling.undo(belief(scaling.apply(circle))).cov
    assert float(cov[0, 0, 0]) == pytest.approx(180**2 / 3, rel=1e-6)


def test_errors_of_angles_are_wrapped_and_ranges_kept():
    scaling = Scaling.fit(np.array([[10.0], [350.0], [200.0]]), ("yaw",), ("yaw",), 360.0)
    mean = torch.tensor([[359.0], [1.0]]).double()
    truth = scaling.nearest(torch.tensor([[2.0], [358.0]]).double(), mean)
    assert (truth - mean).flatten().tolist() == [3.0, -3.0]
    inner = scaling.apply(np.array([[350.0]]))
    assert float(scaling.undo(belief(inner.expand(3, -1))).mean) == pytest.approx(350.0)


def belief(inner: torch.Tensor) -> FilterResult:
    """The moments of samples as a belief of one step."""
    cov = inner.mT.cov().reshape(1, inner.shape[1], inner.shape[1])
    return FilterResult(inner.mean(0, keepdim=True), cov, torch.ones(1, dtype=torch.bool))


def test_answers_and_errors_are_in_recorded_units(tmp_path):
    """Other units of x and z: the same answers in those units."""
    x, z = turning(160)
    z = np.concatenate([np.cos(np.radians(z)), np.sin(np.radians(z))], 1)
    found = []
    for scale, shift in ((1.0, 0.0), (1000.0, 5.0)):
        problem = own(saved(tmp_path, x=x * 3 * scale, z=z * scale + shift))
        data = problem.trials([0, 1])
        made = KernelBayesFilter(scales=(0.7, 1.4)).fit(data.x_train, data.z_train)
        result, truth = problem.test(made, data)
        assert result.mean.shape == (2, 40, 2)
        found.append(((result.mean - truth) / scale, result.cov / scale**2))
        np.testing.assert_allclose(truth[1], z[120:] * scale + shift)
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)
    assert found[0][0].square().sum(-1).mean() < 0.1


def test_missing_rows_of_the_test_are_predicted_or_not_scored(tmp_path):
    x, z = turning(160)
    x[130:133], z[140] = np.nan, np.nan
    problem = own(saved(tmp_path, x=x, z=z), circular=["z_1"])
    data = problem.data(0)
    made = KernelBayesFilter(scales=(1.0,)).fit(data.x_train, data.z_train)
    result, truth = problem.test(made, data)
    assert result.mean.shape == (39, 1)
    assert result.mean.isfinite().all()
    assert truth.isfinite().all()
    assert list(np.flatnonzero(~result.evidence)) == [10, 11, 12]
    assert (result.mean - truth)[10:13].abs().max() < 60


def test_pictures_show_recorded_values_at_the_rows_that_are_answered(tmp_path):
    """Several pieces, a missing state and a missing observation: weights belong to their rows."""
    x, angle = turning(160)
    z = np.column_stack([angle, 3 + x[:, 0]])
    x[125], z[130] = np.nan, np.nan
    path = saved(tmp_path, x=x, z=z, sequence=np.arange(160) // 20)
    problem = own(path, z=["yaw", "speed"], circular=["yaw"], units={"speed": "m/s"})
    data = problem.data(0)
    made = KernelBayesFilter(scales=(1.0,), lams=(1e-2,)).fit(data.x_train, data.z_train)
    view = problem.view(data, made)
    known = np.delete(np.arange(120, 160), 10)
    np.testing.assert_array_equal(view.x_test, x[known])
    np.testing.assert_array_equal(view.z_train, z[:120])
    assert view.names == ["yaw [deg]", "speed [m/s]"]
    assert not view.shows_x_as_z  # as many columns as z, of other quantities
    found = torch.cat([made.filter(piece).mean for piece in data.x_test])[known - 120]
    torch.testing.assert_close(view.weights @ torch.cat(data.z_train), found)


def test_pictures_of_frames_show_recorded_pixels(tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, size=(60, 1, 6, 5)).astype(np.uint8)
    problem = own(saved(tmp_path, x=frames, z=np.arange(60.0)))
    data, asked = problem.data(0), []
    view = problem.view(data, gaze=asked.append)
    assert view.has_images
    assert view.weights is None
    np.testing.assert_array_equal(view.x_test, frames[45:])
    view.gaze(view.x_test)  # encoders take scaled frames
    torch.testing.assert_close(asked[0], data.x_test[0])
    torch.testing.assert_close(problem.as_recorded(asked[0]), view.x_test)


def test_a_recording_has_no_fresh_test_sequence(tmp_path):
    x, z = turning(60)
    with pytest.raises(KbrError, match=r"recording.*Leave out data\.seed"):
        _fresh(own(saved(tmp_path, x=x, z=z)), 3)


# Bad input


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_objects_are_refused_and_never_run(tmp_path):
    mark = tmp_path / "executed"
    x, z = np.array([Bomb(mark)] * 40, dtype=object), np.arange(40.0)
    with pytest.raises(KbrError, match="Python objects"):
        _ = own(saved(tmp_path, x=x, z=z)).recording
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(KbrError, match=r"np\.savez"):
        _ = own(tmp_path / "bare.npz").recording
    assert not mark.exists()


X, Z = turning(100)
HALF = np.arange(100.0)


@pytest.mark.parametrize(
    ("arrays", "keys", "words"),
    [
        ({"x": X, "y": Z}, {}, ["'z'", "x, y"]),
        ({"x": X, "z": Z[:90]}, {}, ["x 100", "z 90"]),
        ({"x": X, "z": Z, "time": HALF[:7]}, {}, ["time 7"]),
        ({"x": X, "z": np.full_like(Z, np.nan)}, {}, ["every row of z"]),
        ({"x": np.full_like(X, np.nan), "z": Z}, {}, ["every row of x"]),
        ({"x": X, "z": np.ones_like(Z)}, {}, ["constant", "z_1"]),
        ({"x": np.ones_like(X), "z": Z}, {}, ["x is constant"]),
        ({"x": X.astype(str), "z": Z}, {}, ["real numbers", "<U"]),
        ({"x": X + 1j, "z": Z}, {}, ["complex"]),
        ({"x": X, "z": Z[:, :, None]}, {}, ["[T, dz]"]),
        ({"x": X[:0], "z": Z[:0]}, {}, ["rows"]),
        ({"x": np.full((100, 5, 5), 1e200), "z": Z}, {}, ["too large for float32"]),
        ({"x": X, "z": Z}, {"z": ["a", "b"]}, ["data.z", "2 columns"]),
        ({"x": X, "z": Z}, {"z": ["a"], "circular": ["yaw"]}, ["data.circular", "yaw", "(a)"]),
        ({"x": X, "z": Z}, {"units": {"px": "m"}}, ["data.units", "px"]),
        ({"x": X, "z": Z}, {"angle_unit": "grad"}, ["data.angle_unit", "radians"]),
        ({"x": X, "z": Z}, {"test_share": 0.9}, ["10 usable", "data.test_share"]),
        ({"x": X, "z": Z}, {"test_share": 1.5}, ["data.test_share", "1.5"]),
        ({"x": X, "z": Z}, {"test_share": 0.001}, ["no test row"]),
        ({"x": X, "z": Z}, {"split": "random"}, ["data.split", "random"]),
        ({"x": X, "z": Z}, {"split": "sequence"}, ["two sequences"]),
        ({"x": X, "z": Z}, {"sequence": "run"}, ["data.sequence=run", "x, z"]),
        ({"x": X, "z": Z, "time": HALF[::-1]}, {}, ["row 2", "98 after 99"]),
        ({"x": X, "z": Z, "time": np.where(HALF == 4, np.nan, HALF)}, {}, ["row 5"]),
        ({"x": X, "z": Z}, {"channels": "middle"}, ["data.channels"]),
        ({"x": X, "z": Z}, {"n_test": -1}, ["data.n_test", "-1"]),
        ({"x": X, "z": np.where(HALF[:, None] == 80, np.nan, Z)}, {"n_train": 0}, ["data.n_train"]),
        ({"x": np.where(HALF[:, None] % 2, X, np.nan), "z": Z}, {}, ["followed by the next"]),
        ({"x": X, "z": np.where(HALF[:, None] < 80, Z, np.nan)}, {"test_share": 0.2}, ["known z"]),
    ],
)
def test_a_bad_npz_is_named(tmp_path, arrays, keys, words):
    with pytest.raises(KbrError) as caught:
        _ = own(saved(tmp_path, **arrays), **keys).data(0)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        ("a,b\n1,2\n\n3,four\n", {"x": ["a"], "z": ["b"]}, ["'b'", "line 4", "'four'"]),
        ("a,b\n1,2\n", {"x": ["a"], "z": ["c"]}, ["'c'", "a, b"]),
        ("a,b\n1,2\n", {"x": ["a"]}, ["data.z", "a, b"]),
        ("a,b\n1,2,3\n", {"x": ["a"], "z": ["b"]}, ["line 2", "3 cells"]),
        ("a,b\n", {"x": ["a"], "z": ["b"]}, ["column names"]),
        ("a,a\n1,2\n", {"x": ["a"], "z": ["a"]}, ["2 columns 'a'"]),
        ("a,b,t\n1,2,noon\n", {"x": ["a"], "z": ["b"], "time": "t"}, ["line 2", "noon"]),
        ("a,b,s\n1,2,\n", {"x": ["a"], "z": ["b"], "sequence": "s"}, ["line 2", "data.sequence"]),
    ],
)
def test_a_bad_table_is_named(tmp_path, text, keys, words):
    with pytest.raises(KbrError) as caught:
        _ = own(table(tmp_path, text), **keys).recording
    for word in words:
        assert word in str(caught.value)


def test_bad_paths_and_frames_are_named(tmp_path):
    for path, word in ((tmp_path / "no.npz", "no file"), (tmp_path, "states.csv")):
        with pytest.raises(KbrError, match=word):
            _ = own(path).recording
    (tmp_path / "log.xls").touch()
    with pytest.raises(KbrError, match=r"\.npz or \.csv"):
        _ = own(tmp_path / "log.xls").recording
    (tmp_path / "states.csv").write_text("file,px\nno.png,1\n")
    with pytest.raises(KbrError, match=r"line 2 .*no\.png"):
        _ = own(tmp_path).recording
    (tmp_path / "no.png").write_bytes(b"not an image")
    with pytest.raises(KbrError, match="damaged or no image"):
        _ = own(tmp_path).recording


# The command line


def run(*arguments: str, script: str = "train.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"}
    )


def test_one_command_gives_a_run_in_recorded_units_that_evaluates_again(tmp_path):
    x, z = turning(200)
    path, folder = saved(tmp_path, x=x, z=z), tmp_path / "run"
    keys = ["data.z=[yaw]", "data.circular=[yaw]", "data.x=[a,b]", "data.units={a:V,b:V}"]
    done = run("data=npz", f"data.path={path}", *keys, "model=iw", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    assert "yaw [deg]" in done.stdout
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["test/rmse/yaw [deg]"] == pytest.approx(metrics["test/mse"] ** 0.5)
    assert metrics["test/mse"] < 0.05 * metrics["test/mse_of_mean"]
    with (folder / "results.csv").open() as file:
        row = next(csv.DictReader(file))
    assert float(row["rmse yaw [deg]"]) == pytest.approx(metrics["test/rmse/yaw [deg]"])
    assert row["n_train"] == "150"
    record = json.loads((folder / "data.json").read_text())
    assert record["labels"] == ["yaw [deg]"]
    again = run(f"run={folder}", script="evaluate.py")
    assert again.returncode == 0, again.stderr
    evaluated = json.loads((folder / "evaluation" / "metrics.json").read_text())
    assert evaluated["test/mse"] == pytest.approx(metrics["test/mse"], rel=1e-6)
    posterior = np.load(folder / "evaluation" / "posterior.npz")
    assert posterior["labels"].tolist() == ["yaw [deg]"]
    assert ((posterior["mean"] >= 0) & (posterior["mean"] < 360)).all()
    for place in (folder, folder / "evaluation"):
        drawn = {picture.stem for picture in (place / "figures").glob("*.png")}
        assert drawn == {"trajectory", "error", "weights", "coverage", "pit"}
    error = np.square(posterior["mean"] - posterior["truth"]).sum(-1).mean()
    assert error == pytest.approx(metrics["test/mse"], rel=1e-6)

    saved(tmp_path, x=x + 1, z=z)
    changed = run(f"run={folder}", script="evaluate.py")
    assert changed.returncode == 2
    assert "have changed" in changed.stderr


@pytest.mark.parametrize("model", ["iw_nn", "lstm"])
def test_networks_train_on_several_sequences_of_vectors(tmp_path, model):
    """The default encoder takes images; vectors get the MLP without being asked."""
    x, z = turning(120)
    x[15] = np.nan
    path = saved(tmp_path, x=x, z=z, sequence=np.arange(120) // 30)
    folder = tmp_path / "run"
    small = ["model.filter.epochs=4", "model.filter.val_every=2", "data.circular=[z_1]"]
    arguments = ["data=npz", f"data.path={path}", f"model={model}", *small]
    done = run(*arguments, f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    assert "encoder=mlp" in done.stdout
    again = run(f"run={folder}", script="evaluate.py")
    assert again.returncode == 0, again.stderr
    metrics, evaluated = (
        json.loads((place / "metrics.json").read_text())
        for place in (folder, folder / "evaluation")
    )
    assert evaluated["test/mse"] == pytest.approx(metrics["test/mse"], rel=1e-4)


def test_networks_train_on_images(tmp_path):
    x, z = turning(80)
    pixels = np.arange(12)
    spots = (pixels[None, None] - 6 - 3 * x[:, 0, None, None]) ** 2 + (
        pixels[None, :, None] - 6 - 3 * x[:, 1, None, None]
    ) ** 2
    frames = (255 * np.exp(-spots / 3)).astype(np.uint8)
    path = saved(tmp_path, x=frames, z=z)
    small = ["model.filter.epochs=2", "model.filter.val_every=1", "encoder=cnn"]
    done = run("data=npz", f"data.path={path}", *small, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "encoder=mlp" not in done.stdout
    drawn = {picture.stem for picture in (tmp_path / "run" / "figures").glob("*.png")}
    assert drawn >= {"weights", "observations", "contact_sheet", "encoder"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=ekf"], ["ekf", "model=iw"]),
        (["model=particle"], ["particle", "model=iw"]),
        (["model=iw_true_ratio"], ["iw_true_ratio", "model=iw"]),
        (["model=iw", "data.path=null"], ["data.path"]),
        (["model=iw", "data.circlar=[yaw]"], ["circlar"]),
        (["model=iw", "data.circular=[yaw]"], ["data.circular", "z_1"]),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing_behind(tmp_path, arguments, words):
    path, folder = saved(tmp_path, x=X, z=Z), tmp_path / "run"
    done = run("data=npz", f"data.path={path}", *arguments, f"hydra.run.dir={folder}")
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists()


# Trained filters on lists of sequences


def test_lstm_windows_stay_inside_their_sequence():
    from kbr.training.encoders import MLP
    from kbr.training.lstm_module import LSTMModule

    x, z = torch.randn(20, 3), torch.randn(20, 2)
    shared = {"epochs": 1, "lr": 0.1, "weight_decay": 0.0, "noise": 0.0, "seed": 0}
    module = LSTMModule(
        MLP(shape=(3,), n_features=4, hidden=(5,)),
        x,
        z,
        n_features=4,
        window=6,
        hidden=7,
        log_every=1,
        record={},
        **shared,
    )
    psi = torch.randn(20, 4)
    joined = module.predict_latents(psi, [12, 8])
    torch.testing.assert_close(joined[:12], module.predict_latents(psi[:12]))
    torch.testing.assert_close(joined[12:], module.predict_latents(psi[12:]))
    assert not torch.allclose(joined[12:], module.predict_latents(psi)[12:])


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_a_learned_filter_learns_no_step_between_sequences(tmp_path):
    from functools import partial

    from kbr.training.encoders import MLP
    from kbr.training.learned_filter import LearnedFilter

    x, z = (torch.from_numpy(part) for part in turning(90))
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    made = LearnedFilter(encoder=partial(MLP, hidden=(16,)), epochs=2, val_every=1)
    made.fit(x.split(30), z.split(30), folder=tmp_path, trainer=quiet)
    after = made.kernel_filter.operators.after
    assert sorted(set(range(90)) - set(after.tolist())) == [0, 30, 60]
    loaded = LearnedFilter.load(tmp_path / "checkpoints" / "best.ckpt")
    torch.testing.assert_close(loaded.kernel_filter.operators.after, after)
    torch.testing.assert_close(loaded.filter(x[:20]).mean, made.filter(x[:20]).mean)
