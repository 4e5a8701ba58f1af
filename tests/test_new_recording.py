"""From a run to a new recording: every way gives the same beliefs, in the units of the file."""

import io
import json
import sys
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import numpy as np
import pytest
import torch
from recordings import X, Z, command, drives, spots, write_csv

import kbr
from kbr.app.streaming.command import Options, stream
from kbr.core.units.units import Units

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with torch's pytrees
    "ignore:You are using `torch.load` with `weights_only=False`",
    "ignore:`lr_scheduler.step..` before",
)
MODELS = ["iw", "iw_nn", "iw_paired", "iw_refined", "moving", "lstm", "gru"]
LEARNED = ("iw_nn", "iw_paired")
FEW = ["model.filter.epochs=2", "model.filter.val_every=2"]
SMALL = {
    "vectors": ["encoder=mlp", "encoder.hidden=[16]", "encoder.n_features=8"],
    "frames": ["encoder=cnn", "encoder.channels=4", "encoder.n_maps=4", "encoder.hidden=16"],
}
QUICK = ["model.scales=[1.0]", "model.lams=[0.01]"]
MOVING = ["model.filter.n_particles=100", "model.filter.inflate=1.0", "model.filter.temper=1.0"]
GRIDS = ["+model.filter.scales=[0.5]", "+model.filter.lams=[0.01]", "model.filter.n_fourier=64"]
NEW = drives(["q", "r"], seed=1001, rows=40)
SHUFFLED = ["note", "bearing", "speed", "t", "loud", "run", "yaw", "faint"]
ROWS = [dict(zip(NEW, row, strict=True)) for row in zip(*NEW.values(), strict=True)]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Recordings to train on, and new ones in every form."""
    folder = tmp_path_factory.mktemp("desk")
    trained = drives([f"d{k}" for k in range(5)], seed=1000)
    write_csv(folder / "train.csv", trained, list(trained))
    borders = {"run": np.array(trained["run"]), "t": np.array(trained["t"])}
    z = np.stack([trained[name] for name in Z], 1)
    np.savez(folder / "train.npz", x=spots(trained), z=z, **borders)
    write_csv(folder / "new.csv", NEW, SHUFFLED)
    write_csv(folder / "blind.csv", NEW, [name for name in SHUFFLED if name not in Z])
    borders = {"run": np.array(NEW["run"]), "t": np.array(NEW["t"])}
    z = np.stack([NEW[name] for name in Z], 1)
    np.savez(folder / "frames.npz", x=spots(NEW), z=z, **borders)
    x = np.array([[np.nan if row[n] is None else row[n] for n in X] for row in ROWS])
    np.savez(folder / "new.npz", x=x, **borders)
    return folder


@pytest.fixture(scope="module", params=[(m, k) for k in ("vectors", "frames") for m in MODELS])
def trained(desk, request):
    """A run of each model on vectors and on frames."""
    model, kind = request.param
    folder = desk / f"{model}_{kind}"
    file = "train.csv" if kind == "vectors" else "train.npz"
    keys = [f"data.path={desk / file}", "data.z=[yaw,speed]", "data.sequence=run", "data.time=t"]
    if kind == "vectors":
        keys += ["data.x=[faint,loud,bearing]", "data.circular=[yaw,bearing]"]
    else:
        keys += ["data.circular=[yaw]"]
    small = [*FEW, *SMALL[kind]] if model in (*LEARNED, "lstm", "gru") else QUICK
    small = [*small, "model.steps=2"] if model == "iw_refined" else small
    small = MOVING if model == "moving" else small
    small = [*small, "model.compare_raw=false", *GRIDS] if model in LEARNED else small
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kbr.app.run.train.run_figures", lambda *_, **__: [], raising=False)
        words = [
            "data=recording",
            *keys,
            f"model={model}",
            *small,
            "logger=csv",
            "data.units={speed:m}",
        ]
        command(patch, "train", *words, f"hydra.run.dir={folder}")
    return folder, kind


def streamed(desk, run, **options):
    target = desk / "out.jsonl"
    stream(Options(run=str(run), output=str(target), **options))
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    return [np.array([line[key] for line in lines]) for key in ("mean", "cov")], lines


def assert_same(found, expected, run):
    """To 1e-9 of the spread of each column; covariances to that of themselves.

    The second filter of iw_paired is tuned on what a regression tells, here to ridges of 1e-7 and
    1e-9: one row and many then agree to fewer digits of the covariance.
    """
    mean, cov = (np.asarray(part) for part in expected)
    width = np.stack([NEW[name] for name in Z], 1).std(0)
    assert (np.abs(np.asarray(found[0]) - mean) <= 1e-9 * width).all()
    sd = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
    near = (1e-6 if "iw_paired" in str(run) else 1e-9) * sd[..., None] * sd[..., None, :]
    assert (np.abs(np.asarray(found[1]) - cov) <= near).all()


def test_every_way_gives_the_same_beliefs(desk, trained, monkeypatch, capsys):
    run, kind = trained
    filt = kbr.load_filter(str(run))
    frames = kind == "frames"
    table = {"run": NEW["run"], "t": NEW["t"], "x": spots(NEW)} if frames else NEW
    whole = filt.filter(table)
    expected = whole.mean, whole.cov
    sizes = np.abs(np.asarray(whole.mean) - np.stack([NEW[n] for n in Z], 1)).mean(0)
    assert sizes[1] < 1e4  # the column of 1e6 is answered in its own units
    assert [not seen for seen in whole.evidence.tolist()][10:12] == [True, True]

    belief, beliefs = filt.init(), []
    for at, row in enumerate(ROWS):
        given = {"run": row["run"], "t": row["t"], "x": spots(NEW)[at]} if frames else row
        belief = filt.step(belief, given)
        beliefs.append(belief)
    assert_same(
        [torch.stack([getattr(b, n) for b in beliefs]) for n in ("mean", "cov")], expected, run
    )
    assert [b.steps for b in beliefs] == [*range(1, 26), *range(1, 16)] * 2  # anew after the gap

    file = desk / ("frames.npz" if frames else "new.csv")
    assert_same(_moments(filt.filter(kbr.read_recording(file, filt))), expected, run)
    inputs = [desk / "frames.npz"] if frames else [desk / "new.csv", desk / "new.npz"]
    objects = [_json(row, spots(NEW)[at] if frames else None) for at, row in enumerate(ROWS)]
    (desk / "new.jsonl").write_text("\n".join(objects))
    for path in (*inputs, desk / "new.jsonl"):
        found, lines = streamed(desk, run, input=str(path))
        assert_same(found, expected, run)
        assert lines[0]["names"] == ["yaw [deg]", "speed [m]"]
        assert (lines[45]["sequence"], float(lines[45]["time"])) == ("r", NEW["t"][45])
    if not frames:
        monkeypatch.setattr(sys, "stdin", io.StringIO((desk / "blind.csv").read_text()))
        found, lines = streamed(desk, run, source="csv")
        assert_same(found, expected, run)
        assert "columns not used: note" in capsys.readouterr().err
        raw, _ = streamed(desk, run, input=str(desk / "new.csv"), cov="raw")
        assert_same(raw, (whole.mean, whole.raw_cov), run)

    if run.name != "iw_vectors":  # pictures are looked at once
        monkeypatch.setattr("kbr.app.evaluate.recording.run_figures", lambda *_: [])
    command(monkeypatch, "evaluate", f"run={run}", f"data.path={file}")
    said = capsys.readouterr().out
    assert "yaw [deg]" in said
    assert "test/mse_standardised" in said
    target = run / "evaluation" / file.stem
    with np.load(target / "posterior.npz") as file:
        found = dict(file)
    assert_same((found["mean"][0], found["cov"][0]), expected, run)
    assert found["sequence"].tolist() == NEW["run"]
    np.testing.assert_allclose(found["time"], NEW["t"])
    assert found["labels"].tolist() == ["yaw [deg]", "speed [m]"]
    assert (np.abs((found["mean"] - found["truth"])[..., 0]) <= 180).all()
    metrics = json.loads((target / "metrics.json").read_text())
    rmse = np.sqrt(np.square(found["mean"] - found["truth"])[0].mean(0))
    assert metrics["test/rmse/speed [m]"] == pytest.approx(rmse[1])
    if run.name == "iw_vectors":
        drawn = {picture.stem for picture in (target / "figures").glob("*.png")}
        assert drawn == {"trajectory", "error", "coverage", "pit", "ellipses"}


def _moments(result):
    return result.mean, result.cov


def _json(row, frame):
    if frame is None:
        return json.dumps({key: row[key] for key in SHUFFLED})
    pixels = None if np.isnan(frame).any() else frame.astype(float)[None].tolist()
    return json.dumps({"t": row["t"], "x": pixels, "run": row["run"]})


@pytest.fixture(scope="module")
def vectors(desk, tmp_path_factory):
    """A run on vectors with a grid of one point."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    keys = ["data.x=[faint,loud,bearing]", "data.z=[yaw,speed]", "data.circular=[yaw,bearing]"]
    keys += [f"data.path={desk / 'train.csv'}", "data.sequence=run", "data.time=t", "logger=csv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kbr.app.run.train.run_figures", lambda *_, **__: [], raising=False)
        command(
            patch, "train", "data=recording", "model=iw", *keys, *QUICK, f"hydra.run.dir={folder}"
        )
    return folder


def test_a_recording_without_truth_gives_beliefs_and_pictures(desk, vectors, monkeypatch, capsys):
    command(monkeypatch, "evaluate", f"run={vectors}", f"data.path={desk / 'blind.csv'}")
    said = capsys.readouterr().out
    assert "no truth" in said
    assert "columns not used: note" in said
    target = vectors / "evaluation" / "blind"
    with np.load(target / "posterior.npz") as file:
        found = dict(file)
    assert sorted(found) == sorted(
        ["mean", "cov", "raw_cov", "evidence", "row", "sequence", "time", "labels"]
    )
    assert found["mean"].shape == (1, 80, 2)
    assert found["row"].tolist() == list(range(80))
    assert [path.name for path in (target / "figures").iterdir()] == ["trajectory.png"]
    assert not (target / "metrics.json").exists()


def test_an_evaluation_of_other_data_is_kept(desk, vectors, monkeypatch, tmp_path):
    """The same file may be evaluated again; another one of its name gets a folder of its own."""
    monkeypatch.setattr("kbr.app.evaluate.recording.run_figures", lambda *_: [])
    path = write_csv(tmp_path / "again.csv", NEW, SHUFFLED)
    for _ in range(2):
        command(monkeypatch, "evaluate", f"run={vectors}", f"data.path={path}")
    other = drives(["s"], seed=1002)
    write_csv(path, other, list(other))
    command(monkeypatch, "evaluate", f"run={vectors}", f"data.path={path}")
    made = sorted(folder.name for folder in (vectors / "evaluation").glob("again*"))
    assert made == ["again", "again_2"]


def test_interleaved_sequences_are_taken_apart_or_refused(vectors, tmp_path):
    """A whole table is filtered sequence by sequence, rows stay in place; a stream cannot do so."""
    filt = kbr.load_filter(vectors)
    order = np.argsort(np.arange(80) % 40, kind="stable")
    mixed = {name: [NEW[name][k] for k in order] for name in NEW}
    expected = filt.filter(NEW)
    found = filt.filter(mixed)
    torch.testing.assert_close(found.mean, expected.mean[order], rtol=1e-9, atol=1e-9)
    path = write_csv(tmp_path / "mixed.csv", mixed, SHUFFLED)
    with pytest.raises(kbr.KbrError, match="line 4: sequence 'q' comes back"):
        stream(Options(run=str(vectors), input=str(path), output=str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data.path=nowhere.csv"], ["nowhere.csv", "no file"]),
        (["data.decimal=comma"], ["data.path"]),
        (["data.path=new.csv", "data.seed=3"], ["data.seed"]),
        (["data.path=new.csv", "data.sequence=drive"], ["drive", "There are"]),
        (["data.path=lost.csv"], ["'loud'", "Did you mean 'lout'"]),
        (["data.path=dates.csv"], ["time must be a number, as in training"]),
    ],
)
def test_a_mistake_is_one_line(desk, vectors, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(desk)
    write_csv(desk / "lost.csv", {**NEW, "lout": NEW["loud"]}, ["faint", "lout", "bearing"])
    days = [f"2024-05-01T12:00:{k % 60:02d}.{k}" for k in range(80)]
    write_csv(desk / "dates.csv", {**NEW, "t": days, "run": list(range(80))}, SHUFFLED)
    with pytest.raises(SystemExit):
        command(monkeypatch, "evaluate", f"run={vectors}", *arguments)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in words:
        assert word in said


def test_a_changed_file_is_described(desk, vectors, monkeypatch, capsys):
    path = desk / "train.csv"
    before = path.read_text()
    path.write_text("\n".join(before.splitlines()[:-3]) + "\n")
    with pytest.raises(SystemExit):
        command(monkeypatch, "evaluate", f"run={vectors}")
    path.write_text(before)
    said = capsys.readouterr().err
    assert "rows 225 then, 222 now" in said
    assert f"data.path={path}" in said


def test_times_of_every_kind_are_compared_without_loss():
    """Nanoseconds as whole numbers, dates at a change of the clock, the longest step allowed."""
    units = replace(Units.none(torch.zeros(1)), max_gap=150.0)
    first = 1_714_564_800_000_000_000
    places = [units.place({"time": first + step, "sequence": 7}) for step in (0, 100, 250, 401)]
    found = [units.starts_anew(a, b) for a, b in pairwise(places)]
    assert found == [False, False, True]
    assert not units.starts_anew(units.place({"sequence": "7"}), units.place({"sequence": 7.0}))
    hour = replace(units, max_gap=3600.0, source={"dates": True, "time": "when"})
    texts = ["2024-03-31T01:30:00", "2024-03-31T02:30:00", "2024-03-31 03:30:00.1"]
    kinds = [lambda t: t, datetime.fromisoformat, np.datetime64]
    for kind in kinds:
        places = [hour.place({"when": kind(text)}) for text in texts]
        found = [hour.starts_anew(a, b) for a, b in pairwise(places)]
        assert found == [False, True]
        whole = {"when": [kind(text) for text in texts]}
        assert [len(part) for part in hour.sequences(whole, 3)[0]] == [2, 1]


def test_rows_that_do_not_say_where_they_stand_are_refused(vectors):
    filt = kbr.load_filter(vectors)
    row = dict(ROWS[0])
    for change, words in [
        ({"run": None}, "no id"),
        ({"run": float("nan")}, "no id"),
        ({"t": float("nan")}, "no time"),
        ({"t": "2024-05-01"}, "must be a number, as in training"),
        ({"loud": "much"}, "column 'loud' must hold numbers"),
    ]:
        with pytest.raises(kbr.KbrError, match=words):
            filt.step(filt.init(), {**row, **change})
    belief = filt.step(filt.init(), row)
    with pytest.raises(kbr.KbrError, match="time must grow"):
        filt.step(belief, row)
    with pytest.raises(kbr.KbrError, match=r"has 3 column\(s\)"):
        filt.step(belief, 7.0)  # would be repeated for every column
