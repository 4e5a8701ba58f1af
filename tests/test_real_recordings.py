"""The four real recordings: sizes, splits, columns. They are not part of kbr: KBR_TEST_DATA."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from recordings import command

from kbr.app.real import tasks
from kbr.app.real.battery import battery
from kbr.app.real.rtt_canteen import rtt_canteen
from kbr.app.real.turbofan import turbofan
from kbr.app.real.uwb_plaza import uwb_plaza
from kbr.core.errors import KbrError

ROOT = Path(os.environ.get("KBR_TEST_DATA", "")) / "real"
THERE = pytest.mark.skipif(
    not (os.environ.get("KBR_TEST_DATA") and ROOT.is_dir()),
    reason="KBR_TEST_DATA names no folder with the real recordings (docs/real_data.md)",
)
READERS = {"rtt_canteen": rtt_canteen, "battery": battery, "turbofan": turbofan}
READERS["uwb_plaza"] = uwb_plaza
WAYS = {"resample": None, "controls": True}
SETTINGS = {
    "rtt_canteen": {"missing": False, "resample": None},
    "battery": {"step": 30.0, "controls": True},
    "turbofan": {"truth": "last"},
    "uwb_plaza": {"site": "Plaza1", "hold": 6.0, "sensors": False} | WAYS,
}


def rows(sequences) -> int:
    return sum(len(next(iter(one.values()))) for one in sequences)


def table(sequences, names) -> np.ndarray:
    return np.concatenate([np.stack([one[name] for name in names], 1) for one in sequences])


@pytest.mark.parametrize("name", READERS)
def test_a_recording_that_is_not_there_says_where_to_get_it(name, tmp_path):
    for root, word in (
        (None, "data.root must name"),
        (tmp_path, "has no"),
        ("nowhere", "no folder"),
    ):
        with pytest.raises(KbrError, match=word) as caught:
            READERS[name](root)
        assert "Get " in str(caught.value)
        assert "\n" not in str(caught.value)


@THERE
def test_rtt_canteen():
    found = rtt_canteen(ROOT)
    names = found.recording.x_names
    assert len(names) == 30
    assert not any("True" in name for name in names)
    assert (len(found.train), len(found.test)) == (12, 4)
    assert (rows(found.train), rows(found.test)) == (11306, 3785)
    tests = {str(i) for i in found.recording.ids if i.startswith("test/")}
    assert tests == {f"test/walk_{k}_{path}.csv" for k in (7, 9) for path in (13, 24)}
    z = table(found.train, ["position_1", "position_2"])
    assert np.isfinite(z).all()
    assert np.isfinite(table(found.train, names)).all()
    assert (np.abs(z) < 30).all()
    for column in table(found.train, names).T:  # no column of x gives the position away
        for latent in z.T:
            assert abs(np.corrcoef(column, latent)[0, 1]) < 0.97
    assert all((np.diff(one["time"]) > 0).all() for one in (*found.train, *found.test))
    with_gaps = rtt_canteen(ROOT, missing=True).recording.x
    lost = np.isnan(with_gaps)
    np.testing.assert_array_equal(lost[:, 0], lost[:, 2])
    assert int(lost[:, 2:18:3].sum()) == 2848
    assert not lost[:, 18:].any()


@THERE
def test_battery():
    found = battery(ROOT)
    assert found.recording.x_names == ("Voltage [V]", "Current [A]", "Temperature [degC]")
    assert found.u_names == ("Current [A]",)
    assert (len(found.train), len(found.test)) == (8, 3)
    assert (rows(found.train), rows(found.test)) == (2073, 1004)
    for one in (*found.train, *found.test):
        np.testing.assert_allclose(np.diff(one["time"]), 30)
        soc = one["SOC [-]"]
        assert 0.9 < soc[0] < 1.01
        assert 0 < soc[-1] < 0.2
        spent = -np.cumsum(one["Current [A]"]) * 30 / 3600  # Ah
        assert np.corrcoef(spent, soc)[0, 1] < -0.999  # u moves the state
    raw = battery(ROOT, step=None)
    assert (rows(raw.train), rows(raw.test)) == (62056, 30065)
    assert raw.u.shape == (92121, 1)


@THERE
def test_turbofan():
    found = turbofan(ROOT)
    assert len(found.recording.x_names) == 14
    assert (len(found.train), len(found.test)) == (100, 100)
    assert (rows(found.train), rows(found.test)) == (20631, 13096)
    assert np.isfinite(found.recording.x).all()
    for one in found.train:
        left = one["remaining"]
        assert left[-1] == 0
        assert left.max() <= 125
        np.testing.assert_array_equal(left, np.minimum(np.arange(len(left))[::-1], 125))
    answers = np.loadtxt(ROOT / "turbofan_fd001" / "RUL_FD001.txt")
    last = np.array([one["remaining"][-1] for one in found.test])
    np.testing.assert_array_equal(last, np.minimum(answers, 125))
    assert all(np.isnan(one["remaining"][:-1]).all() for one in found.test)
    whole = turbofan(ROOT, truth="all").test[3]["remaining"]
    np.testing.assert_array_equal(whole[-3:], np.minimum(answers[3] + np.array([2, 1, 0]), 125))


@THERE
@pytest.mark.parametrize(("site", "counts"), [("Plaza1", (2116, 1410)), ("Plaza2", (1090, 726))])
def test_uwb_plaza(site, counts):
    found = uwb_plaza(ROOT, site=site)
    (train,), (test,) = found.train, found.test
    assert (len(train["time"]), len(test["time"])) == counts
    assert train["time"][-1] < test["time"][0]
    x, z = found.recording.x, found.recording.z
    assert x.shape[1] == 4
    there = np.isfinite(x).sum(1)
    assert (there >= 1).all()
    assert (there == 1).mean() > 0.99  # beacons answer one at a time
    assert np.isfinite(z).all()
    assert np.isfinite(found.u).all()
    assert (np.diff(train["time"]) > 0).all()
    beacons = beacon_places(site)
    names = found.recording.x_names
    away = np.stack([np.hypot(*(z - beacons[name]).T) for name in names], 1)[np.isfinite(x)]
    assert np.corrcoef(x[np.isfinite(x)], away)[0, 1] > 0.99  # ranges fit these positions
    moved = np.stack([train["moved_1"], train["moved_2"]], 1)[1:]
    steps = np.diff(np.stack([train["position_1"], train["position_2"]], 1), axis=0)
    assert np.square(moved - steps).sum() < 0.1 * np.square(steps).sum()
    whole = uwb_plaza(ROOT, site=site, hold=3.0).recording
    held, since = whole.x[:, :4], whole.x[:, 4:].reshape(-1, 4, 2)
    assert whole.x_names[4:6] == ("beacon 0 since_1", "beacon 0 since_2") or site == "Plaza2"
    assert (since[np.isfinite(x)] == 0).all()  # a range that came just now
    np.testing.assert_array_equal(np.isnan(since).all(-1), np.isnan(held))
    beacon = np.flatnonzero(np.isfinite(x[:, 0]))[:2]  # its first two answers
    np.testing.assert_allclose(
        since[beacon[1] - 1, 0], found.u[beacon[0] + 1 : beacon[1]].sum(0), atol=1e-9
    )
    np.testing.assert_array_equal(held[np.isfinite(x)], x[np.isfinite(x)])
    assert np.isfinite(held).mean() > 0.6


def beacon_places(site: str) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    places = loadmat(ROOT / "uwb_plaza" / f"{site}.mat")["TL"]
    return {f"beacon {int(row[0])}": row[1:3] for row in places}


@THERE
@pytest.mark.parametrize("name", READERS)
def test_each_is_a_task(name):
    """The task splits as the reader does, and its notes say what was done."""
    gap = {"max_gap": 10.0} if name == "uwb_plaza" else {}
    problem = getattr(tasks, name)(name=name, root=str(ROOT), **SETTINGS[name], **gap)
    held_out, ids = problem.parts.held_out, problem.recording.ids
    assert (held_out == np.char.startswith(ids, "test/")).all()
    assert problem.parts.kind == "documented"
    assert len(problem.parts.test_rows) == held_out.sum()
    assert problem.info()["test/mse_of_mean"] > 0
    assert problem.filter_units.x_names == problem.recording.x_names
    assert problem.parts.train_rows.size > 0.9 * (~held_out).sum()
    moved = {"battery": ("Current [A]",), "uwb_plaza": ("moved_1", "moved_2")}.get(name, ())
    assert problem.recording.u_names == moved
    other = problem.suited(SimpleNamespace(name="lstm"))
    assert other.filter_units.u is None
    if name == "uwb_plaza":  # further columns, and it is said; absent sensors, or whole rows
        keys = {**SETTINGS[name], **gap, "sensors": True}
        parted = tasks.uwb_plaza(name=name, root=str(ROOT), **keys)
        sensors = parted.filter_units.sensors
        assert sensors is not None
        assert len(sensors.names) == 4
        assert parted.parts.train_rows.size >= problem.parts.train_rows.size
        np.testing.assert_array_equal(
            parted.suited(SimpleNamespace(name="lstm")).recording.x, other.recording.x
        )
        assert other.recording.x_names[-2:] == moved
        assert "this model takes no control inputs: moved_1, moved_2 further" in other.notes[1]
    if name == "battery":
        assert other.recording.x_names == problem.recording.x_names
    if name == "turbofan":
        few = tasks.turbofan(name=name, root=str(ROOT), truth="last", n_test=10)
        with pytest.raises(KbrError, match=r"known z\. Raise data\.n_test"):
            _ = few.parts
        result = problem.recording.z[problem.parts.test_rows]
        assert int(np.isfinite(result).sum()) == 100


@pytest.mark.slow
@THERE
@pytest.mark.parametrize("name", ["battery", "uwb_plaza"])
def test_a_run_trains_and_is_evaluated_again(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["data.n_train=150", "data.n_test=40", f"hydra.run.dir={tmp_path}/run"]
    command(monkeypatch, "train", f"data={name}", f"data.root={ROOT}", "model=iw", *few)
    said = capsys.readouterr().out
    assert "averaged into" in said if name == "battery" else "of x are there: beacon" in said
    command(monkeypatch, "evaluate", "run=run")
    if name == "battery":  # a new file is averaged as the training rows were
        path = ROOT / "battery_25degC" / "551_US06.csv"
        command(monkeypatch, "evaluate", "run=run", f"data.path={path}")
        saved = np.load("run/evaluation/551_US06/posterior.npz")
        assert saved["mean"].shape == (1, 34, 1)


@THERE
def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).resolve().parent.parent / "docs" / "real_data.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").symlink_to(ROOT)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, page.name, "exec"), {})
    assert "beacon 0" in capsys.readouterr().out
