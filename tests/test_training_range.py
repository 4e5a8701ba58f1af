"""Recordings that leave the range of training: said once, by name, in the units of the data."""

import csv
import json

import numpy as np
import pytest
import torch
from command_line import call
from recordings import own, saved, turning

import kbr
from kbr import ImportanceWeightedRule, KernelBayesFilter, MovingFilter
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.units.outside import ADVICE, SHARE
from kbr.core.units.ranges import MARGIN, MOST, Range, Ranges
from kbr.core.units.units import Units

FIXED = {"rule": ImportanceWeightedRule(lam=1e-2), "eta": 1e-3, "scales": (1.0,)}
MOVING = {
    "n_particles": 20,
    "sensing": "shows",
    "temper": 1.0,
    "inflate": 1.0,
    "outliers": 0.01,
    "jitter": 0.0,
}
QUICK = ["model=iw", "model.scales=[1.0]", "model.lams=[0.01]"]
NAMES = ["east", "north", "push", "yaw", "at"]


def walk(rows, seed=0, shift=0.0):
    """Two sensors of a turning point, a push, an angle and a state; `shift` moves one sensor."""
    rng = np.random.default_rng(seed)
    push = rng.uniform(0, 1, rows)
    turn = np.cumsum(0.3 * push + 0.05 * rng.normal(size=rows))
    x = np.stack([np.cos(turn), np.sin(turn)], 1) + 0.1 * rng.normal(size=(rows, 2))
    x[:, 0] += shift
    return {
        "east": x[:, 0],
        "north": x[:, 1],
        "push": push,
        "yaw": np.degrees(turn) % 360,
        "at": np.cos(turn) + shift,
    }


def write(path, table, names=NAMES):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(names)
        rows.writerows(zip(*(table[name] for name in names), strict=True))


def fitted(rows=120, kind=KernelBayesFilter, **about):
    table = walk(rows)
    x = {name: table[name] for name in ("east", "north")}
    return kind(**(FIXED if kind is KernelBayesFilter else MOVING)).fit(
        x, {"at": table["at"]}, **about
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A run on own data, and new recordings inside and outside of its range."""
    folder = tmp_path_factory.mktemp("desk")
    write(folder / "train.csv", walk(160))
    write(folder / "like.csv", walk(60, seed=1))
    write(folder / "far.csv", walk(60, seed=1, shift=4.0))
    write(folder / "blind.csv", walk(60, seed=1, shift=4.0), ["push", "north", "east"])
    keys = ["data.x=[east,north]", "data.z=[yaw,at]", "data.u=[push]", "data.circular=[yaw]"]
    done = call("data=recording", "data.path=train.csv", *keys, *QUICK, "hydra.run.dir=run",
                folder=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


class TestFromAFile:
    """The whole journey, in a folder that holds nothing but the recordings."""

    def evaluated(self, desk, name):
        done = call("run=run", f"data.path={name}.csv", script="evaluate.py", folder=desk)
        assert done.returncode == 0, done.stderr
        lines = [line.strip() for line in done.stdout.splitlines()]
        return [line for line in lines if line.startswith("range:")], desk / "run/evaluation" / name

    def test_evaluation_says_which_columns_leave_the_range(self, desk):
        lines, folder = self.evaluated(desk, "far")
        table = walk(160)
        low, high = (table["east"][:120].min(), table["east"][:120].max())
        most = walk(60, seed=1, shift=4.0)["east"].max()
        assert lines[0] == (
            f"range: 'east' is outside of training ({low:.4g} to {high:.4g}) in 60 of 60 rows, "
            f"up to {most:.4g}"
        )
        assert lines[1].startswith("range: 'at' of z is outside of training")
        assert lines[2:] == [f"range: {ADVICE}"]
        kept = json.loads((folder / "data.json").read_text())["outside_training"]
        assert [(one["column"], one["rows"]) for one in kept] == [("east", 60), ("at", 60)]
        metrics = json.loads((folder / "metrics.json").read_text())
        assert metrics["test/rows_outside/east"] == metrics["test/rows_outside/z/at"] == 60

    def test_it_does_so_without_truths_too(self, desk):
        lines, folder = self.evaluated(desk, "blind")
        assert len(lines) == 2
        assert "'east'" in lines[0]
        assert json.loads((folder / "data.json").read_text())["outside_training"]

    def test_it_says_nothing_of_rows_like_those_of_training(self, desk):
        lines, folder = self.evaluated(desk, "like")
        assert lines == []
        assert json.loads((folder / "data.json").read_text())["outside_training"] == []

    def test_a_stream_says_it_at_first_and_at_last_and_not_in_its_output(self, desk):
        done = call("run=run", "input=blind.csv", script="kbr-filter", folder=desk)
        assert done.returncode == 0
        assert len([json.loads(line) for line in done.stdout.splitlines()]) == 60
        first, last = (line for line in done.stderr.splitlines() if "range:" in line)
        assert first.startswith("kbr: range: 'east' is outside of training")
        assert "in 1 of 1 rows" in first
        assert "in 60 of 60 rows" in last
        assert last.endswith(ADVICE)
        quiet = call("run=run", "input=like.csv", script="kbr-filter", folder=desk)
        assert "range:" not in quiet.stderr

    def test_a_stream_counts_controls_but_for_those_of_first_rows(self, desk):
        table = walk(60, seed=1)
        table["push"] = np.where(np.arange(60) < 20, 7.0, table["push"])
        write(desk / "pushed.csv", table, ["push", "north", "east"])
        done = call("run=run", "input=pushed.csv", script="kbr-filter", folder=desk)
        assert "in 19 of 60 rows, up to 7: " in done.stderr.splitlines()[-1]
        filt = kbr.load_filter(desk / "run")
        (push,) = filt.filter(table).outside.columns
        assert (push.column, push.rows, push.of, push.most) == ("push", 19, 60, 7.0)

    def test_python_says_it_when_the_result_is_printed(self, desk):
        filt = kbr.load_filter(desk / "run")
        out = filt.filter(kbr.read_recording(desk / "far.csv", filt))
        assert "\n  range: 'east' is outside of training" in repr(out)
        assert "range" not in repr(filt.filter(kbr.read_recording(desk / "like.csv", filt)))
        truth = walk(60, seed=1, shift=4.0)
        assert "'at' of z is outside" in repr(out.score(truth))


@pytest.mark.parametrize("kind", [KernelBayesFilter, MovingFilter])
def test_ranges_are_kept_in_files(tmp_path, kind):
    filt, far = fitted(kind=kind), walk(60, seed=1, shift=4.0)
    filt.save(tmp_path / "filter.ckpt")
    loaded = kbr.load_filter(tmp_path / "filter.ckpt")
    assert str(loaded.filter(far).outside) == str(filt.filter(far).outside)
    assert [one.column for one in loaded.filter(far).outside.columns] == ["east"]
    if kind is KernelBayesFilter:
        assert loaded.smooth(far).outside


def test_networks_keep_ranges_and_more_rows_widen_them(tmp_path):
    from kbr.training import MLP, GRUFilter, LearnedFilter

    table, far = walk(120), walk(60, seed=1, shift=1.0)
    near, away = (np.stack([t["east"], t["north"]], 1) for t in (table, far))
    z = table["at"][:, None]
    for kind in (GRUFilter, LearnedFilter):
        filt = kind(encoder=MLP, epochs=2, val_every=2).fit(near, z)
        filt.save(tmp_path / "filter.ckpt")
        out = kbr.load_filter(tmp_path / "filter.ckpt").filter(away)
        assert [one.column for one in out.outside.columns] == ["x_1"]
    filt.partial_fit(away, far["at"][:, None])
    assert filt.filter(away).outside is not None
    assert not filt.filter(away).outside
    with pytest.warns(UserWarning, match="rows have missing values"):  # too large to be taken
        filt.partial_fit(np.concatenate([near, 1e3 * near]), np.concatenate([z, z]))
    assert filt.filter(1e3 * near).outside


def test_older_files_load_and_nothing_is_claimed():
    filt = fitted()
    state = filt.state()
    del state["units"]["ranges"]
    old = KernelBayesFilter.from_state(state)
    assert old.filter(walk(60, shift=4.0)).outside is None
    assert "range" not in repr(old.filter(walk(60, shift=4.0)))
    old.partial_fit(walk(60, seed=2), {"at": walk(60, seed=2)["at"]})
    assert old.units.ranges is None  # the first rows reached where nobody knows


def test_damaged_ranges_are_refused():
    record = Ranges(x=Range(torch.zeros(1), torch.ones(1))).record()
    record["x"]["low"] += 5
    units = {**Units.none(torch.zeros(1)).record(), "ranges": record}
    with pytest.raises(kbr.KbrError, match="ranges of its training data are damaged"):
        Units.from_record(units)


def test_more_rows_widen_the_range():
    filt, far = fitted(), walk(60, seed=1, shift=4.0)
    assert filt.filter(far).outside
    with pytest.warns(UserWarning, match="new rows"):
        filt.partial_fit(far, {"at": far["at"]})
    out = filt.filter(far)
    assert out.outside is not None
    assert not out.outside


def test_files_are_looked_at_row_by_row(tmp_path):
    """A row that no sample of evenly spaced ones holds counts too."""
    table = walk(300)
    x = np.stack([table["east"], table["north"]], 1)
    x[151, 0] = 50.0
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "z.npy", table["at"][:, None])
    filt = KernelBayesFilter(**FIXED).fit_files(tmp_path, n_landmarks=30, resume=False)
    assert float(filt.units.ranges.x.high[0]) == 50.0


class TestWhatCounts:
    def columns(self, filt, x, **about):
        return [one.column for one in filt.filter(x, **about).outside.columns]

    def test_angles_have_no_range(self):
        x, z = turning(120)
        some = z[:, 0] < 200
        both = np.column_stack([x, z])
        pieces = np.split(np.arange(120), np.flatnonzero(np.diff(some)) + 1)
        pieces = [piece for piece in pieces if some[piece[0]] and len(piece) > 1]
        filt = KernelBayesFilter(**FIXED).fit(
            [both[piece] for piece in pieces],
            [z[piece] for piece in pieces],
            circular=["x_3", "z_1"],
        )
        assert "x_3" not in self.columns(filt, both)
        assert filt.filter(both).score(z).outside.columns == ()

    def test_missing_and_infinite_values_are_not_outside(self):
        filt, table = fitted(), walk(60, seed=1)
        table["east"][:20] = np.nan
        table["north"][30:40] = np.inf
        assert self.columns(filt, table) == []

    def test_absent_sensors_have_the_range_of_what_was_there(self):
        table = walk(160)
        x = np.stack([table["east"], table["north"]], 1)
        x[np.arange(160) % 3 == 0, 0] = np.nan
        filt = KernelBayesFilter(**FIXED).fit(x, table["at"][:, None], sensors="each")
        assert filt.units.ranges.x.high[0] == np.nanmax(x[:, 0])
        x[np.arange(160) % 3 == 1, 0] += 9
        (one,) = filt.filter(x).outside.columns
        assert (one.column, one.rows) == ("x_1", 53)

    def test_a_margin_and_a_few_rows_are_nothing(self):
        table = walk(120)
        filt, high = fitted(), float(table["east"].max())
        width = high - float(table["east"].min())
        inside = {**table, "east": np.where(np.arange(120) < 60, high + 0.99 * MARGIN * width, 0)}
        assert self.columns(filt, inside) == []
        few = {**table, "east": np.where(np.arange(120) < 2, 90.0, table["east"])}
        assert self.columns(filt, few) == []
        enough = {**table, "east": np.where(np.arange(120) < 3, 90.0, table["east"])}
        assert self.columns(filt, enough) == ["east"]
        many = {name: np.tile(values, 10) for name, values in table.items()}
        many["east"][: int(SHARE * 1200) - 1] = 90.0
        assert self.columns(filt, many) == []

    def test_wide_rows_and_frames_have_none(self):
        rows = torch.zeros(5, MOST + 1)
        assert Range.of(rows) is None
        assert Range.of(rows, [True] + [False] * MOST) is not None
        frames = torch.rand(60, 1, 4, 4)
        filt = KernelBayesFilter(**FIXED).fit(frames, frames.mean((1, 2, 3))[:, None])
        assert filt.filter(9 + frames).outside is None

    def test_several_sequences_are_counted_together_and_each_by_itself(self):
        filt = fitted()
        x = torch.zeros(2, 50, 2)
        x[1, :20, 0] = 30.0
        out = filt.filter(x)
        (one,) = out.outside.columns
        assert (one.rows, one.of) == (20, 100)
        assert not out.sequence(0).outside
        assert "in 20 of 50 rows" in repr(out.sequence(1))

    def test_data_sets_fitted_together_have_ranges_of_their_own(self):
        data = [Rotation().generate(n_train=60, n_test=40, seed=k) for k in range(2)]
        x, z = (torch.stack([getattr(d, f"{k}_train") for d in data]) for k in "xz")
        x[1] += 100
        filt = KernelBayesFilter(**FIXED).fit(x, z)
        assert not filt.filter(x).outside
        (first, second) = filt.filter(x.flip(0)).outside.columns
        assert first.of == second.of == 60
        assert filt.units.member(1).ranges.x.low.min() > 50

    def test_the_first_row_of_a_control_is_not_used(self):
        table = walk(120)
        filt = fitted(u={"push": table["push"]})
        table["push"][0] = 1e6
        assert self.columns(filt, table) == []
        table["push"][40:60] = -3.0
        assert self.columns(filt, table) == ["push"]

    def test_own_data_have_the_range_of_their_training_rows(self, tmp_path):
        x, z = turning(160)
        x[130] = 40.0
        units = own(saved(tmp_path, x=x, z=z), circular=["z_1"]).filter_units
        np.testing.assert_array_equal(units.ranges.x.high, x[:120].max(0))
        assert bool(units.ranges.z.high.isnan().all())

    def test_simulated_tasks_stay_inside(self):
        for kind in (Oscillatory, Rotation):
            for seed in range(5):
                data = kind().generate(n_train=300, n_test=200, seed=seed)
                known = Range.of(data.x_train)
                assert not known.outside(data.x_test, ["a", "b"])


class TestWords:
    def said(self, train, new):
        known = Range.of(torch.tensor(train, dtype=torch.float64)[:, None])
        return str(known.outside(torch.tensor(new, dtype=torch.float64)[:, None], ["east"]))

    def test_numbers_can_be_told_apart_at_any_offset_and_unit(self):
        text = self.said([1e6, 1e6 + 1e-5], [1e6 + 3e-5] * 3)
        assert "(1000000 to 1000000.00001) in 3 of 3 rows, up to 1000000.00003:" in text
        text = self.said([-2e-5, 1.5e-5], [-7e-5] * 3)
        assert "(-2e-05 to 1.5e-05) in 3 of 3 rows, down to -7e-05:" in text

    def test_both_ends_and_constant_columns(self):
        assert "(0 to 1) in 4 of 4 rows, from -3 to 9:" in self.said([0, 1], [-3, 9, 9, 9])
        assert "(always 5) in 3 of 3 rows, up to 6:" in self.said([5, 5], [6, 6, 6])
        assert self.said([5, 5], [5 + 1e-9] * 3) == "range: as in training"

    def test_three_columns_are_named_the_worst_first(self):
        known = Range.of(torch.rand(50, 5))
        rows = torch.rand(100, 5)
        for k in range(5):
            rows[: 10 * (k + 1), k] = 7.0
        found = known.outside(rows, list("abcde"))
        assert [line.split()[0] for line in found.lines] == ["'e'", "'d'", "'c'", "and"]
        assert found.lines[-1] == "and 2 more columns"
        assert str(found).endswith(f"and 2 more columns: {ADVICE}")
