"""Control inputs of recordings: train.py, evaluate.py, kbr-filter and Python give one answer."""

import json

import numpy as np
import pytest
from recordings import command, write_csv

import kbr
from kbr.app.recordings.read import Source
from kbr.app.recordings.recording import Recording
from kbr.app.recordings.resample import resampled
from kbr.app.streaming.command import Options, stream
from kbr.core.errors import KbrError

QUICK = ["model.scales=[0.5]", "model.lams=[0.01]"]
FEW = ["model.filter.epochs=2", "model.filter.val_every=1", "encoder=mlp", "encoder.hidden=[16]"]


def rides(rows, seed):
    """A point that u turns along a ring; the first push of a ride leads nowhere: it is empty."""
    rng = np.random.default_rng(seed)
    table = {name: [] for name in ("ride", "east", "north", "place", "push")}
    for ride in ("a", "b"):
        push = rng.uniform(-1.5, 1.5, rows)
        angle = np.cumsum(0.4 + push + 0.1 * rng.normal(size=rows))
        x = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.4 * rng.normal(size=(rows, 2))
        table["ride"] += [ride] * rows
        table["east"] += x[:, 0].tolist()
        table["north"] += x[:, 1].tolist()
        table["place"] += np.cos(angle).tolist()
        table["push"] += [None, *push[1:].tolist()]
    return table


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rides")
    for name, rows, seed in (("train", 120, 1000), ("new", 15, 1001)):
        table = rides(rows, seed)
        write_csv(folder / f"{name}.csv", table, list(table))
        arrays = {key: np.array(table[key], dtype=float) for key in ("place", "push")}
        x = np.stack([table["east"], table["north"]], 1)
        ids = np.array(table["ride"])
        np.savez(folder / f"{name}.npz", x=x, z=arrays["place"], push=arrays["push"], ride=ids)
    return folder


def train(patch, desk, file, run, *words):
    keys = [f"data.path={desk / file}", "data.u=[push]", "data.sequence=ride", "logger=csv", *words]
    if file.endswith("csv"):
        keys += ["data.x=[east,north]", "data.z=[place]"]
    patch.setattr("kbr.app.run.train.run_figures", lambda *_, **__: [], raising=False)
    command(patch, "train", "data=recording", "data.split=time", *keys, f"hydra.run.dir={run}")
    return run


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.parametrize(
    ("kind", "words"),
    [("csv", ["model=iw", *QUICK]), ("npz", ["model=iw", *QUICK]), ("csv", ["model=gru", *FEW])],
)
def test_every_way_takes_the_controls(desk, kind, words, monkeypatch, capsys):
    name = f"{words[0].removeprefix('model=')}_{kind}"
    run = train(monkeypatch, desk, f"train.{kind}", desk / name, *words)
    filt, file = kbr.load_filter(str(run)), desk / f"new.{kind}"
    assert filt.units.u is not None
    table = rides(15, 1001)
    x = np.stack([table["east"], table["north"]], 1)
    push = np.array(table["push"], dtype=float)[:, None]
    pieces = [filt.filter(x[rows], u=push[rows]).mean for rows in (slice(15), slice(15, None))]
    expected = np.concatenate([piece.numpy() for piece in pieces])
    found = filt.filter(kbr.read_recording(file, filt)).mean.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-9)
    capsys.readouterr()
    stream(Options(run=str(run), input=str(file), output=str(desk / "out.jsonl")))
    assert "not used" not in capsys.readouterr().err.replace("not used: place", "")
    lines = [json.loads(line) for line in (desk / "out.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([line["mean"] for line in lines], expected, atol=1e-9)
    monkeypatch.setattr("kbr.app.evaluate.recording.run_figures", lambda *_: [])
    command(monkeypatch, "evaluate", f"run={run}", f"data.path={file}")
    with np.load(run / "evaluation" / "new" / "posterior.npz") as answer:
        np.testing.assert_allclose(answer["mean"][0], expected, atol=1e-9)
    command(monkeypatch, "evaluate", f"run={run}")  # its own test rows come out the same


def test_json_lines_hold_controls(desk, monkeypatch):
    run = train(monkeypatch, desk, "train.csv", desk / "run_json", "model=iw", *QUICK)
    filt, table = kbr.load_filter(str(run)), rides(15, 1001)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    (desk / "new.jsonl").write_text("\n".join(map(json.dumps, rows)))
    stream(Options(run=str(run), input=str(desk / "new.jsonl"), output=str(desk / "j.jsonl")))
    lines = [json.loads(line) for line in (desk / "j.jsonl").read_text().splitlines()]
    expected = filt.filter(table).mean
    np.testing.assert_allclose([line["mean"] for line in lines], expected, atol=1e-9)


def test_models_that_take_none_and_files_that_have_none_are_refused(desk, monkeypatch, capsys):
    with pytest.raises((KbrError, SystemExit)):
        train(monkeypatch, desk, "train.csv", desk / "refused", "model=iw_refined", *QUICK)
    assert "takes no control inputs; model=iw, " in capsys.readouterr().err
    run = train(monkeypatch, desk, "train.csv", desk / "run_lost", "model=iw", *QUICK)
    table = rides(15, 1001)
    path = write_csv(desk / "lost.csv", table, ["ride", "east", "north"])
    with pytest.raises(KbrError, match="has no column 'push'"):
        kbr.read_recording(path, kbr.load_filter(str(run)))


def test_several_files_keep_their_controls(desk, tmp_path):
    for name, seed in (("one", 1000), ("two", 1001)):
        table = rides(15, seed)
        write_csv(tmp_path / f"{name}.csv", table, list(table))
    found = Source(path=str(tmp_path), x=["east"], z=["place"], u=["push"], sequence="ride").read()
    expected = [np.array(rides(15, seed)["push"], dtype=float) for seed in (1000, 1001)]
    np.testing.assert_allclose(found.u[:, 0], np.concatenate(expected))


def test_longer_steps_have_the_moves_between_their_middles():
    """z = the sum of u: its mean over a step moves by exactly what the longer step's u says."""
    rng = np.random.default_rng(1000)
    rows = [23, 31]
    time = np.concatenate([1e6 + np.cumsum(rng.uniform(0.5, 1.5, n)) for n in rows])
    time[:23] = np.where(np.arange(23) > 10, time[:23] + 4.0, time[:23])  # steps without rows
    u = np.stack([rng.normal(size=54), np.linspace(1, 3, 54)], 1)
    u[[0, 23]] = np.nan  # nothing leads to a first row
    z = np.concatenate([np.nancumsum(part, 0) for part in np.split(u, [23])])
    both = {"x_names": ("x",), "z_names": ("a", "b"), "u_names": ("way", "level")}
    found = resampled(
        Recording(
            kind="npz",
            x=z[:, :1],
            z=z,
            u=u,
            sequence=np.repeat([0, 1], rows),
            row=np.arange(54),
            time=time,
            **both,
        ),
        3.0,
        max_gap=20.0,
        added=["way"],
    )
    starts = np.flatnonzero(found.starts(20.0))
    assert np.isfinite(found.u[starts]).all()
    moved = np.diff(found.z, axis=0, prepend=np.nan)
    known = np.isfinite(moved).all(1) & ~np.isin(np.arange(len(found)), starts)
    np.testing.assert_allclose(found.u[known, 0], moved[known, 0], atol=1e-9)
    whole = ~np.isin(np.arange(len(found)), starts)
    assert np.isfinite(found.u[whole]).all()  # also where a step has no rows
    level = found.u[whole, 1]
    assert ((level > 1) & (level < 3)).all()  # averaged: a level stays one


def test_a_missing_control_is_missing_in_the_longer_step():
    u = np.arange(12.0)[:, None]
    u[7] = np.nan
    found = resampled(
        Recording(
            kind="npz",
            x=u * 0,
            z=u * 0,
            u=u,
            x_names=("x",),
            z_names=("z",),
            u_names=("u",),
            sequence=np.zeros(12, dtype=int),
            row=np.arange(12),
            time=np.arange(12.0),
        ),
        2.0,
    )
    np.testing.assert_array_equal(np.isnan(found.u[:, 0]), [0, 0, 0, 1, 1, 0])
    np.testing.assert_allclose(found.u[[1, 2, 5], 0], [2.0, 4.0, 10.0], atol=1e-9)
