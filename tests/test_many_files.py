"""Several files, folders, patterns, parquet, mat and video as recordings; even steps of time."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from recordings import command, drives, own, table, write_csv

from kbr import load_filter, read_recording
from kbr.app.building.default_model import default_model
from kbr.app.inspect_data import main
from kbr.app.recordings.new import read_new
from kbr.app.recordings.read import Source
from kbr.app.recordings.resample import resampled
from kbr.app.run.record import data_files
from kbr.app.streaming.command import Options, stream
from kbr.core.errors import KbrError

X, Z = ["faint", "bearing"], ["yaw"]
NAMES = ["t", *X, *Z, "note"]


@pytest.fixture
def logs(tmp_path) -> Path:
    """Three files in logs/, of which the last has its columns in another order, and more."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for k, name in enumerate(("walk_2.csv", "walk_10.csv", "walk_1.csv")):
        names = NAMES if k < 2 else [*NAMES[::-1], "loud"]
        write_csv(folder / name, drives(["a"], seed=k), names)
    return folder


def read(path, **keys):
    return Source(path=path, **{"x": X, "z": Z, "time": "t", **keys}).read()


def test_folder_pattern_and_list_are_the_same(logs):
    files = [str(logs / f"walk_{k}.csv") for k in (1, 2, 10)]  # in the order of their numbers
    alone = [read(file) for file in files]
    for path in (str(logs), str(logs / "*.csv"), files, [str(logs / "walk_[12].csv"), files[2]]):
        found = read(path)
        assert found.files == ("walk_1.csv", "walk_2.csv", "walk_10.csv")
        assert [str(i) for i in np.unique(found.ids)] == sorted(found.files)
        np.testing.assert_array_equal(found.x, np.concatenate([one.x for one in alone]))
        np.testing.assert_array_equal(found.time, np.concatenate([one.time for one in alone]))
        assert np.flatnonzero(np.diff(found.sequence)).tolist() == [44, 89]
        assert "3 files" in found.notes[0]
    assert not found.has_ids
    assert "loud" in found.unused


def test_a_file_may_have_sequences_of_its_own(tmp_path):
    for name in ("a.csv", "b.csv"):
        write_csv(tmp_path / name, drives(["one", "two"], seed=1), ["run", *NAMES])
    found = read(str(tmp_path), sequence="run")
    assert found.has_ids
    assert int(found.sequence[-1]) == 3
    assert list(dict.fromkeys(found.ids)) == ["a.csv:one", "a.csv:two", "b.csv:one", "b.csv:two"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("z.csv", "", ["z.csv", "got 0 lines", "leave a file out"]),
        ("z.csv", "t,faint,yaw\n1,2,3\n", ["z.csv", "'bearing'", "leave a file out"]),
        ("z.csv", "faint,bearing,yaw\n1,2,3\n", ["z.csv", "'t'"]),
        ("z.csv", "t,faint,bearing,yaw\n2024-05-01,2,3,4\n", ["agree in time", "dates", "numbers"]),
        ("z.csv", "t,faint,bearing,yaw\n2,2,3,4\n1,2,3,4\n", ["z.csv", "time must grow"]),
    ],
)
def test_a_file_that_does_not_fit_is_named(logs, name, content, words):
    (logs / name).write_text(content)
    with pytest.raises(KbrError) as caught:
        read(str(logs))
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_paths_that_name_nothing_or_twice_are_refused(logs):
    with pytest.raises(KbrError, match=r"no file matches"):
        read(str(logs / "*.tsv"))
    with pytest.raises(KbrError, match=r"walk_1.csv twice"):
        read([str(logs), str(logs / "walk_1.csv")])
    for ending, word in {".h5": "np.savez", ".pkl": "never unpickled", ".zip": "Unpack"}.items():
        (logs / f"a{ending}").touch()
        with pytest.raises(KbrError, match=word):
            read(str(logs / f"a{ending}"))
    assert len(read(str(logs))) == 135  # other files in a folder are let be


def test_one_file_with_time_and_one_without_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("time,a,b\n1,2,3\n2,3,4\n")
    (tmp_path / "b.csv").write_text("a,b\n2,3\n3,4\n")
    with pytest.raises(KbrError, match=r"a.csv has a column of time.* and .*b.csv has none"):
        Source(path=str(tmp_path), x=["a"], z=["b"]).read()


def test_columns_of_several_numbers_and_of_other_names(tmp_path):
    """Positions in one cell, under a name that differs between the files."""
    for k in (1, 2):
        cells = [f'{t},{t * k},"[{t}, {-t}.5]"' for t in range(30)]
        cells[3] = "3,3,"
        (tmp_path / f"{k}.csv").write_text(f"time,a,M{k} Truth\n" + "\n".join(cells))
    keys = {"x": ["a"], "rename": {"M1 Truth": "at", "M2 Truth": "at"}}
    found = Source(path=str(tmp_path), z=["at"], **keys).read()
    assert found.z_names == ("at_1", "at_2")
    np.testing.assert_array_equal(found.z[[2, 3, 31]], [[2, -2.5], [np.nan] * 2, [1, -1.5]])
    assert found.unused == ()
    alone = Source(path=str(tmp_path), z=["at_2"], **keys).read()
    np.testing.assert_array_equal(alone.z[:, 0], found.z[:, 1])
    with pytest.raises(KbrError, match="no column 'at_3'"):
        Source(path=str(tmp_path), z=["at_3"], **keys).read()
    (tmp_path / "2.csv").write_text('time,a,M2 Truth\n0,1,"[1, 2]"\n1,2,"[1, 2, 3]"\n')
    with pytest.raises(KbrError, match=r"2 numbers in every cell.*line 3"):
        Source(path=str(tmp_path), z=["at"], **keys).read()


def test_parquet_is_read_like_csv(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    write_table = pytest.importorskip("pyarrow.parquet").write_table
    rows = drives(["a", "b"], seed=0)
    columns = {**rows, "run": pa.array(rows["run"]).dictionary_encode(), "flag": [True] * 90}
    columns["both"] = [[a, b] for a, b in zip(rows["faint"], rows["yaw"], strict=True)]
    write_table(pa.table(columns), tmp_path / "log.parquet")
    write_csv(tmp_path / "log.csv", rows, list(rows))
    keys = {"x": ["faint", "loud"], "sequence": "run"}
    a, b = (read(str(tmp_path / f"log.{kind}"), **keys) for kind in ("parquet", "csv"))
    for name in ("x", "z", "time", "sequence"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert read(str(tmp_path / "log.parquet"), **keys | {"x": ["both", "flag"]}).x.shape == (90, 3)
    with pytest.raises(KbrError, match="say which columns"):
        Source(path=str(tmp_path / "log.parquet")).read()
    with pytest.raises(KbrError, match=r"'note' .* must hold numbers"):
        read(str(tmp_path / "log.parquet"), **keys | {"x": ["note"]})
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(KbrError, match=r"pip install .*kbr\[parquet\]"):
        read(str(tmp_path / "log.parquet"))


def test_parquet_keeps_dates(tmp_path):
    pa = pytest.importorskip("pyarrow")
    write_table = pytest.importorskip("pyarrow.parquet").write_table
    when = np.datetime64("2024-05-01T12:00:00") + np.arange(40) * np.timedelta64(2, "s")
    path = tmp_path / "log.parquet"
    write_table(pa.table({"time": when, "a": range(40), "b": range(40)}), path)
    found = Source(path=str(path), x=["a"], z=["b"]).read()
    assert found.time_unit == "s"
    np.testing.assert_array_equal(found.time, 2.0 * np.arange(40))


def test_mat_files_hold_arrays_or_columns(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "my.mat"
    x, z, t = rng.normal(size=(40, 3)), rng.normal(size=(40, 2)), np.arange(40.0)
    scipy.io.savemat(path, {"x": x, "z": z, "time": t, "sequence": np.repeat([1, 2], 20)})
    found = Source(path=str(path)).read()
    np.testing.assert_array_equal(found.x, x)
    assert int(found.sequence[-1]) == 1
    assert found.time is not None
    scipy.io.savemat(path, {"TD": x, "GT": z, "stamp": t[:, None], "name": "words"})
    found = Source(path=str(path), x=["TD"], z=["GT_2"], time="stamp").read()
    assert found.x_names == ("TD_1", "TD_2", "TD_3")
    np.testing.assert_array_equal(found.z[:, 0], z[:, 1])
    np.testing.assert_array_equal(found.time, t)


def test_a_video_has_its_states_beside_it(tmp_path):
    av = pytest.importorskip("av")
    path, rng = tmp_path / "clip.mp4", np.random.default_rng(0)
    with av.open(str(path), "w") as clip:
        stream = clip.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for level in rng.integers(0, 255, 30):
            shown = np.full((16, 32, 3), level, dtype=np.uint8)
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        clip.mux(stream.encode())
    with pytest.raises(KbrError, match=r"needs clip\.csv"):
        Source(path=str(path)).read()
    levels = np.random.default_rng(0).integers(0, 255, 30)
    (tmp_path / "clip.csv").write_text("level\n" + "\n".join(map(str, levels)))
    found = Source(path=str(path), resize=[8, 16]).read()
    assert found.x.shape == (30, 3, 8, 16)
    assert np.corrcoef(found.x.mean((1, 2, 3)), levels)[0, 1] > 0.99
    assert default_model(["data=recording", f"data.path={path}"]) == "iw_nn"
    (tmp_path / "clip.csv").write_text("level\n1\n2\n")
    with pytest.raises(KbrError, match="x 30, z 2"):
        Source(path=str(path)).read()


# Even steps of time


def test_rows_are_averaged_into_even_steps(tmp_path):
    """Angles as angles, sequences and gaps apart, what is missing left out of the mean."""
    text = "run,time,a,yaw\n" + "\n".join(
        ["p,0,1,350", "p,1,3,10", "p,2,,20", "p,3,5,20", "p,30,7,90", "p,31,9,100", "q,0,1,5"]
    )
    keys = {"x": ["a"], "z": ["yaw"], "sequence": "run"}
    found = Source(path=str(table(tmp_path, text)), **keys).read()
    even = resampled(found, 2, angles=["yaw"])
    np.testing.assert_allclose(even.x[:, 0], [2, 5, 8, 1])
    np.testing.assert_allclose((even.z[:, 0] + 90) % 360, [90, 110, 185, 95])
    assert even.time.tolist() == [0, 2, 30, 0]
    assert even.stamps.tolist() == [0, 2, 30, 0]
    assert even.sequence.tolist() == [0, 0, 0, 1]
    assert even.ids.tolist() == ["p", "p", "p", "q"]
    assert even.starts().tolist() == [True, False, True, True]
    assert even.notes == ("7 rows averaged into 4 steps of 2",)
    bridged = resampled(found, 2, max_gap=100.0)
    assert len(bridged) == 17
    assert int(np.isnan(bridged.x).sum()) == 13
    assert "13 of them without rows" in bridged.notes[0]


def test_even_steps_stay_as_they_are(logs):
    once = resampled(read(str(logs)), 0.7, angles=["bearing", "yaw"])
    again = resampled(once, 0.7, angles=["bearing", "yaw"])
    for name in ("x", "z", "time", "sequence"):
        np.testing.assert_allclose(getattr(again, name), getattr(once, name))


def test_dates_are_resampled_by_units(tmp_path):
    rows = [f"2024-05-01T12:{s // 60:02d}:{s % 60:02d}+02:00,{s},{s}" for s in range(120)]
    path = table(tmp_path, "time,a,b\n" + "\n".join(rows))
    problem = own(path, x=["a"], z=["b"], resample="0.5min")
    assert len(problem.recording) == 4
    np.testing.assert_allclose(problem.recording.x[:, 0], [14.5, 44.5, 74.5, 104.5])
    assert problem.recording.stamps[1] == "2024-05-01T12:00:30+02:00"


@pytest.mark.parametrize(
    ("step", "keys", "words"),
    [
        ("30s", {}, "has a unit"),
        ("soon", {}, "must be a number above 0"),
        (0, {}, "must be a number above 0"),
        (0.1, {}, "less than the usual step"),
        (4, {"max_gap": 2}, "data.max_gap=2 is shorter"),
        (4, {"time": None}, "needs time stamps"),
    ],
)
def test_steps_that_cannot_be_are_refused(logs, step, keys, words):
    with pytest.raises(KbrError, match=words):
        _ = own(logs, **{"x": X, "z": Z, "time": "t", "resample": step, **keys}).recording


def test_a_run_on_many_files_answers_new_ones_everywhere_alike(logs, tmp_path, monkeypatch, capsys):
    """train, kbr-inspect, evaluate, kbr-filter and Python read the same files at the same steps."""
    monkeypatch.chdir(tmp_path)
    keys = ["x=[faint,bearing]", "z=[yaw]", "time=t", "circular=[bearing,yaw]", "resample=1"]
    main([*map(str, sorted(logs.iterdir())), *keys])
    said = capsys.readouterr().out
    assert "3 files" in said
    assert "135 rows averaged into" in said
    settings = [f"data.{key}" for key in keys]
    command(
        monkeypatch, "train", "data=recording", "data.path=logs/*.csv", *settings, "model=iw",
        "hydra.run.dir=run",
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "3 files" in said
    assert "steps of 1" in said
    filt = load_filter("run")
    new = tmp_path / "new"
    new.mkdir()
    for k in (0, 1):
        write_csv(new / f"{k}.csv", drives(["a"], seed=7 + k), [*X, "t"])
    recording = read_recording("new", filt)
    assert len(recording) < 60
    out = filt.filter(recording)
    command(monkeypatch, "evaluate", "run=run", "data.path=new/*.csv")
    saved = np.load("run/evaluation/new/posterior.npz")
    np.testing.assert_allclose(saved["mean"][0], out.mean, atol=1e-9)
    steps = stream(Options(run="run", input="new/*.csv", output="out.jsonl"))
    assert steps == len(recording)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([line["mean"] for line in lines], out.mean, atol=1e-6)
    assert lines[0]["sequence"] == "0.csv"
    one = read_new(filt.units, "new/0.csv", {})
    np.testing.assert_allclose(filt.filter(one).mean, out.mean[: len(one)], atol=1e-9)
    stream(Options(run="run", input="new/0.csv", output="one.jsonl"))
    assert len(Path("one.jsonl").read_text().splitlines()) == len(one)
    with pytest.raises(KbrError, match="leave x, z and resample out"):
        read_recording("new", filt, resample=2)


def test_the_mark_of_a_run_sees_every_file(logs):
    from omegaconf import OmegaConf

    for path in (str(logs), str(logs / "*.csv"), [str(logs / "walk_1.csv")]):
        found = data_files(OmegaConf.create({"path": path}))
        assert len(found) == (1 if isinstance(path, list) else 3)
