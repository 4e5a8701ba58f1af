"""model=moving from the command line: a log with everything that logs have, and a new one."""

import csv
import json

import numpy as np
import pytest
from recordings import command, write_csv

import kbr
from kbr.app.streaming.command import Options, stream

X, Z = ["east", "north", "bearing"], ["yaw", "height"]
KEYS = ["data.z=[yaw,height]", "data.x=[east,north,bearing]", "data.circular=[yaw,bearing]"]
KEYS += ["data.sequence=run", "data.time=t", "data.sensors=each"]
FEW = ["model.filter.n_particles=150", "model.filter.inflate=1.0", "model.filter.temper=1.0"]


def log(runs, seed, rows=60):
    """Sensors of 1e-3 and about 1e6 and in degrees, each often empty; z an angle and about 1e6."""
    rng = np.random.default_rng(seed)
    table = {name: [] for name in ["run", "t", *X, *Z, "note"]}
    for run in runs:
        yaw, t = rng.uniform(0, 360), 0.0
        for k in range(rows):
            yaw = (yaw + 10 + 2 * rng.normal()) % 360
            t += 9.0 if k == 40 else 0.1
            c, s = np.cos(np.radians(yaw)), np.sin(np.radians(yaw))
            noise = 0.15 * rng.normal(size=3)
            x = [1e-3 * (c + noise[0]), 1e6 + 50 * (s + noise[1]), (yaw + 60 * noise[2]) % 360]
            gone = (rng.uniform(size=3) < 0.4) | (k in (20, 21, 22))
            seen = [None if absent else float(v) for v, absent in zip(x, gone, strict=True)]
            values = [run, round(t, 6), *seen, yaw, 1e6 + 20 * s, "a, b" if k % 2 else ""]
            for name, value in zip(table, values, strict=True):
                table[name].append(value)
    return table


NEW = log(["q", "r"], seed=7)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    trained = log([f"d{k}" for k in range(5)], seed=6)
    write_csv(folder / "train.csv", trained, list(trained))
    write_csv(folder / "new.csv", NEW, ["note", *reversed(X), "t", *Z, "run"])
    write_csv(folder / "blind.csv", NEW, ["t", "run", *X])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kbr.app.run.train.run_figures", lambda *_, **__: [], raising=False)
        words = ["data=recording", f"data.path={folder / 'train.csv'}", *KEYS, "model=moving", *FEW]
        command(patch, "train", *words, "logger=csv", f"hydra.run.dir={folder / 'run'}")
    return folder


def same(found, expected):
    """To 1e-9 of the spread of each column."""
    width = np.stack([NEW[name] for name in Z], 1).std(0)
    assert (np.abs(np.asarray(found) - np.asarray(expected)) <= 1e-9 * width).all()


def test_a_new_log_is_answered_alike_in_every_way(desk, monkeypatch, capsys):
    run, file = desk / "run", desk / "new.csv"
    filt = kbr.load_filter(str(run))
    assert isinstance(filt, kbr.MovingFilter)
    assert filt.model.sensing.kind == "shows"
    whole = filt.filter(NEW)
    mean, truth = whole.mean.numpy(), np.stack([NEW[name] for name in Z], 1)
    turned = (mean[:, 0] - truth[:, 0] + 180) % 360 - 180
    assert np.sqrt(np.square(turned).mean()) < 15
    assert np.sqrt(np.square(mean[:, 1] - truth[:, 1]).mean()) < 5
    there = np.array([[value is not None for value in NEW[name]] for name in X]).any(0)
    assert not whole.evidence.numpy()[~there].any()
    assert whole.evidence.numpy()[there].mean() > 0.95

    belief, means = filt.init(), []
    for row in zip(*NEW.values(), strict=True):
        belief = filt.step(belief, dict(zip(NEW, row, strict=True)))
        means.append(belief.mean.numpy())
    same(means, mean)
    same(filt.filter(kbr.read_recording(file, filt)).mean, mean)
    for name in ("new.csv", "blind.csv"):
        target = desk / "out.jsonl"
        stream(Options(run=str(run), input=str(desk / name), output=str(target)))
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        same([line["mean"] for line in lines], mean)

    monkeypatch.setattr("kbr.app.evaluate.recording.run_figures", lambda *_: [])
    capsys.readouterr()
    command(monkeypatch, "evaluate", f"run={run}", f"data.path={file}")
    said = capsys.readouterr().out
    assert "columns not used: note" in said
    assert max(map(len, said.replace(str(desk), "").splitlines())) <= 80
    with np.load(run / "evaluation" / "new" / "posterior.npz") as content:
        same(content["mean"][0], mean)
        np.testing.assert_allclose(content["truth"][0][:, 1], truth[:, 1])


def test_a_run_says_what_was_chosen_and_evaluates_to_the_same(desk, monkeypatch):
    run = desk / "run"
    metrics = json.loads((run / "metrics.json").read_text())
    filt = kbr.load_filter(str(run))
    with (run / "results.csv").open() as file:
        row = next(csv.DictReader(file))
    assert float(row["outliers"]) == filt.chosen["outliers"]
    assert float(row["temper"]) == 1.0
    assert 0.75 < metrics["test/coverage_90"] <= 1
    monkeypatch.setattr("kbr.app.evaluate.recording.run_figures", lambda *_: [], raising=False)
    command(monkeypatch, "evaluate", f"run={run}")
    again = json.loads((run / "evaluation" / "metrics.json").read_text())
    assert again["test/mse"] == pytest.approx(metrics["test/mse"], rel=1e-9)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.filter.temper=2", "model.filter.temper must be a number in (0, 1] or auto; got 2"),
        ("model.filter.n_particles=0", "n_particles"),
        ("model.filter.n_particles=1.5", "model.filter.n_particles"),
        ("model.filter.sensing=smells", "sensing"),
        ("model.filter.particles=9", "Did you mean model.filter.n_particles?"),
        ("model.scales=[1.0]", "model.scales is no key of model=moving"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path, monkeypatch, capsys, key, words):
    with pytest.raises(SystemExit):
        command(
            monkeypatch, "train", "data=rotation", "model=moving", key, f"hydra.run.dir={tmp_path}"
        )
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
