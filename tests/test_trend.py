"""Trends of rows: trailing means, their change since the start, and age."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from recordings import command, own, write_csv

from kbr import KbrError, Trend, load_filter, read_recording
from kbr.app.streaming.command import Options, stream

X, K = ["heat", "hum"], 5


def plain(x: np.ndarray, k: int) -> np.ndarray:
    """The same columns, number by number."""
    out = np.full((len(x), 2 * x.shape[1] + 1), np.nan)
    for t in range(len(x)):
        for j in range(x.shape[1]):
            last = [v for v in x[max(t - k + 1, 0) : t + 1, j] if np.isfinite(v)]
            first = [v for v in x[: t + 1, j] if np.isfinite(v)][:k]
            if np.isfinite(x[t, j]):
                out[t, j] = sum(last) / len(last)
                out[t, x.shape[1] + j] = out[t, j] - sum(first) / len(first)
        out[t, -1] = t
    return out


@pytest.mark.parametrize("rows", [1, 4, 30])
def test_columns_equal_a_plain_loop_and_a_stream(rows):
    x = np.random.default_rng(1000).normal(1000.0, 1.0, (rows, 3))
    x[2:3, 0] = x[8:15, 1] = x[:2, 2] = np.nan
    trend, memory, rows_of = Trend(K), None, []
    np.testing.assert_allclose(trend(x), plain(x, K), rtol=0, atol=1e-9)
    for row in x:
        memory, columns = trend.step(memory, row)
        rows_of.append(columns)
    np.testing.assert_allclose(np.stack(rows_of), plain(x, K), rtol=0, atol=1e-9)


def machines(names, seed, rows=40):
    """Machines that wear down at their own pace, from a level of their own."""
    rng = np.random.default_rng(seed)
    table: dict[str, list] = {name: [] for name in ("run", *X, "left")}
    for name in names:
        life = int(rng.uniform(0.7, 1.3) * rows)
        worn, level = np.linspace(0, 3, life) ** 2, rng.normal(50, 5, 2)
        for t in range(life):
            heat, hum = level + [worn[t], -worn[t]] + 0.3 * rng.normal(size=2)
            for key, value in zip(table, (name, heat, hum, life - 1.0 - t), strict=True):
                table[key].append(value)
    return table


def test_a_recording_is_turned_sequence_by_sequence(tmp_path):
    found = machines("abcde", 1000)
    path = write_csv(tmp_path / "log.csv", found, list(found))
    keys = {"x": X, "z": ["left"], "sequence": "run"}
    rows, problem = own(path, **keys).recording, own(path, **keys, trend=K)
    names = ("heat mean", "hum mean", "heat change", "hum change", "age")
    assert problem.recording.x_names == problem.filter_units.x_names == names
    for sequence in range(5):
        of = rows.sequence == sequence
        expected = plain(rows.x[of], K)
        np.testing.assert_allclose(problem.recording.x[of], expected, rtol=0, atol=1e-9)
    assert "means of the last 5 rows" in problem.notes[0]
    kept = Trend.of_source(problem.filter_units.source)
    assert kept == Trend(K, tuple(X))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"trend": 1}, "at least 2; got 1"),
        ({"circular": ["heat"]}, "'heat' of x is an angle"),
        ({"parted": True, "sensors": "each"}, "no data.sensors"),
        ({"rename": {"heat": "age"}, "x": ["age", "hum"]}, "column 'age'"),
    ],
)
def test_trends_that_cannot_be_are_refused(tmp_path, keys, words):
    found = machines("abcde", 1000)
    path = write_csv(tmp_path / "log.csv", found, list(found))
    keys = {"x": X, "z": ["left"], "sequence": "run", "trend": K, **keys}
    with pytest.raises(KbrError, match=words):
        _ = own(path, **keys).recording


def test_new_rows_are_answered_everywhere_alike(tmp_path, monkeypatch):
    """evaluate, kbr-filter on a file and on a pipe, and Python make trends as training did."""
    monkeypatch.chdir(tmp_path)
    found = machines("abcdefgh", 1000)
    write_csv(Path("log.csv"), found, list(found))
    words = ["data=recording", "data.path=log.csv", "data.x=[heat,hum]", "data.z=[left]"]
    words += ["data.sequence=run", f"data.trend={K}", "model=iw", "hydra.run.dir=run"]
    command(monkeypatch, "train", *words)
    filt, later = load_filter("run"), machines("xyz", 1001)
    later["heat"][7] = None
    write_csv(Path("new.csv"), later, ["run", *X])
    recording = read_recording("new.csv", filt)
    out = filt.filter(recording)
    assert len(out.mean) == len(later["run"])
    command(monkeypatch, "evaluate", "run=run", "data.path=new.csv")
    saved = np.load("run/evaluation/new/posterior.npz")
    np.testing.assert_allclose(saved["mean"][0], out.mean, atol=1e-9)
    lines = [
        json.dumps(dict(zip(("run", *X), row, strict=True)))
        for row in zip(*(later[name] for name in ("run", *X)), strict=True)
    ]
    for source, content in (("csv", Path("new.csv").read_text()), ("jsonl", "\n".join(lines))):
        monkeypatch.setattr("sys.stdin", io.StringIO(content))
        stream(Options(run="run", source=source, output=f"{source}.jsonl"))
    stream(Options(run="run", input="new.csv", output="file.jsonl"))
    for name in ("csv", "jsonl", "file"):
        answers = [json.loads(line) for line in Path(f"{name}.jsonl").read_text().splitlines()]
        np.testing.assert_allclose([row["mean"] for row in answers], out.mean, atol=1e-6)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    for source in ("-", "new.csv"):
        with pytest.raises(KbrError, match=r"data\.trend.*Leave state out"):
            stream(Options(run="run", input=source, output="x.jsonl", state="belief.ckpt"))
    trend, memory = Trend.of_source(filt.units.source), None
    belief = filt.init()
    for heat, hum in list(zip(later["heat"], later["hum"], strict=True))[:6]:
        memory, row = trend.step(memory, np.array([heat, hum]))
        belief = filt.step(belief, row)
    np.testing.assert_allclose(belief.mean, out.mean[5], atol=1e-6)
