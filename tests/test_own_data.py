"""Recordings of one's own are read as written; what cannot be read is named."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from recordings import own, saved, table, turning

from kbr.app.recordings.new import read_recording
from kbr.app.recordings.read import Source
from kbr.core.errors import KbrError


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
    """Columns in any order, with words among them; z if all its columns are there."""
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
        _ = own(saved(tmp_path, **arrays), **keys).filter_units
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
