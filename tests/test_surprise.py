"""Error bars that listen to the sensor: further off than on held-out rows, they are wider."""

import copy
import csv
import json

import pytest
import torch
from command_line import call
from test_moving import SMALL, circle
from test_moving_parts import normal

from kbr import KbrError, MovingFilter
from kbr.core.filters.moving.surprise import KEPT, averages, surprise, usual_of

NAN = torch.nan
OFFSET = torch.tensor([0.6, -0.6], dtype=torch.float64)  # twice the sensor's noise


@pytest.fixture(scope="module", params=["shows", "tells"])
def fitted(request):
    made = [circle(60, seed) for seed in range(8)]
    x, z = (list(part) for part in zip(*made, strict=True))
    return MovingFilter(**{**SMALL, "sensing": request.param}).fit(x, z)


def several(count, offset=0.0, steps=100):
    made = [circle(steps, 200 + seed) for seed in range(count)]
    x, z = (torch.stack(part) for part in zip(*made, strict=True))
    return x + offset, z


def test_the_average_forgets_by_a_thirtieth_a_row():
    errors = normal(5, 40, 2, seed=2)
    found = averages(errors)
    powers = KEPT ** torch.arange(39, -1, -1, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(found[:, -1], ((1 - KEPT) * powers * errors).sum(-2))
    torch.testing.assert_close(found[0, 0], (1 - KEPT) * errors[0, 0])


def test_a_gross_error_counts_as_five():
    assert float(averages(torch.full((1, 1), 1e9, dtype=torch.float64))) == pytest.approx(5 / 30)


def test_nine_tenths_of_usual_averages_widen_nothing():
    known = normal(1000, 3, seed=1) * torch.tensor([1.0, 10.0, 0.01], dtype=torch.float64)
    usual = usual_of(known)
    factor = surprise(known, usual)
    assert float((factor > 1).double().mean()) == pytest.approx(0.1, abs=0.002)
    assert factor.min() == 1
    # In proportion: errors twice as far off have four times the variance.
    torch.testing.assert_close(surprise(6 * usual, usual), 4 * surprise(3 * usual, usual))


def test_regions_hold_the_truth_where_the_sensor_has_an_offset_of_its_own(fitted):
    x, z = several(30)
    usual = fitted.filter(x)
    assert usual.surprise.mean() < 1.5
    inside = fitted.credible_region(usual).contains(z)[:, 5:].double().mean()
    assert 0.85 < inside < 0.97
    x, z = several(30, OFFSET)
    moved = fitted.filter(x)
    assert moved.surprise[:, 40:].mean() > 2 * usual.surprise[:, 40:].mean()
    region = fitted.credible_region(moved)
    narrow = region.distance(z) <= region.radius2 / moved.surprise
    apart = region.contains(z)[:, 40:].double().mean() - narrow[:, 40:].double().mean()
    assert apart > 0.1
    share = region.radius2 / fitted.calibration.radius2(0.9)[fitted.calibration.rows(moved.since)]
    torch.testing.assert_close(share, moved.surprise)


def test_covariances_are_multiplied_by_it(fitted):
    out = fitted.filter(several(1, OFFSET)[0][0])
    plain = fitted.calibration.cov(out.raw_cov, out.since)
    torch.testing.assert_close(out.cov, plain * out.surprise[:, None, None])
    assert out.surprise.max() > 1.5


def test_a_sensor_that_is_far_off_is_told(fitted):
    usual, moved = (fitted.filter(several(10, offset)[0]) for offset in (0.0, 3 * OFFSET))
    assert "direction" not in repr(usual)
    rows = int((moved.surprise > 4).sum())
    most = float(moved.surprise.max().sqrt())
    assert f"in {rows} of 1000 rows the sensor is off" in repr(moved)
    assert f"up to {most:.1f} times as wide. Train on" in repr(moved)


def test_a_stream_a_file_and_a_sequence_are_surprised_alike(fitted, tmp_path):
    x = several(1, OFFSET, 60)[0][0]
    x[20:26] = NAN
    out, belief = fitted.filter(x), fitted.init()
    fitted.save(tmp_path / "filter.pt")
    again = MovingFilter.load(tmp_path / "filter.pt")
    for k, row in enumerate(x):
        belief = again.step(belief, row)
        torch.testing.assert_close(belief.surprise, out.surprise[k])
        torch.testing.assert_close(belief.cov, out.cov[k])
    assert out.sequence().surprise.shape == (60,)


def test_it_fades_where_nothing_is_seen(fitted):
    belief = fitted.init()
    for row in several(1, 2 * OFFSET, 60)[0][0]:
        belief = fitted.step(belief, row)
    ahead = fitted.forecast(belief, 40, path=True).surprise
    assert bool((ahead.diff() <= 0).all())
    assert belief.surprise > ahead[0] > ahead[-1]
    torch.testing.assert_close(fitted.forecast(belief, 40).surprise, ahead[-1])


def test_after_a_gap_of_time_a_sequence_begins_without_it():
    x, _ = several(2, 2 * OFFSET, 40)
    time = torch.arange(80.0)
    time[40:] += 1000
    made = [circle(60, seed) for seed in range(8)]
    trained, z = (torch.cat(part) for part in zip(*made, strict=True))
    moments = torch.arange(480.0) + 1000 * (torch.arange(480.0) // 60)
    with pytest.warns(UserWarning, match="7 longer one"):
        filt = MovingFilter(**SMALL).fit(trained, z, time=moments)
    out = filt.filter(x.flatten(0, 1), time=time)
    assert out.surprise.shape == (80,)
    assert out.surprise[40] < out.surprise[39]
    torch.testing.assert_close(out.surprise[40:], filt.filter(x[1]).surprise)


def test_adaptive_regions_begin_where_it_ends(fitted):
    """A truth outside of the wider region stretches it further."""
    x, z = several(1, OFFSET, 80)
    out = fitted.filter(x[0], adapt=True, truth=z[0])
    plain = fitted.filter(x[0])
    torch.testing.assert_close(out.surprise, plain.surprise)
    torch.testing.assert_close(out.cov, plain.cov * out.stretch[:, None, None])


def test_a_file_from_before_answers_without_it(fitted):
    state = copy.deepcopy(fitted.state())
    del state["model"]["usual"]
    old, x = MovingFilter.from_state(state), several(1)[0][0]
    out, new = old.filter(x), fitted.filter(x)
    assert out.surprise is None
    torch.testing.assert_close(out.mean, new.mean)
    belief = old.step(old.init(), x[0])
    assert belief.surprise is None
    assert old.forecast(belief, 2, path=True).surprise is None


def test_blocks_of_one_recording_say_nothing_of_other_recordings():
    """They lie between known rows, where a sensor is less far off than elsewhere."""
    filt = MovingFilter(**SMALL).fit(*circle(300, 3))
    assert filt.model.usual is None
    assert filt.filter(several(1)[0][0]).surprise is None
    assert "as in blocks held out" in str(filt.summary())


@pytest.mark.parametrize("usual", [torch.ones(5), torch.zeros(2), torch.full((2,), NAN)])
def test_a_damaged_file_is_refused(fitted, usual):
    state = copy.deepcopy(fitted.state())
    state["model"]["usual"] = usual
    with pytest.raises(KbrError, match="file"):
        MovingFilter.from_state(state)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A run on own recordings, and a new one whose sensor has an offset."""
    folder = tmp_path_factory.mktemp("desk")
    for name, seeds, offset in (
        ("train", range(9), 0.0),
        ("like", (50,), 0.0),
        ("off", (50,), 2 * OFFSET),
    ):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["walk", "a", "b", "east", "north"])
            for seed in seeds:
                x, z = circle(60, seed)
                for line in torch.cat([x + offset, z], -1).tolist():
                    rows.writerow([seed, *line])
    keys = ["data.x=[a,b]", "data.z=[east,north]", "data.sequence=walk", "model=moving"]
    fixed = [f"model.filter.{k}={v}" for k, v in SMALL.items()]
    done = call("data=recording", "data.path=train.csv", *keys, *fixed, "hydra.run.dir=run",
                folder=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


class TestFromAFile:
    """The whole journey, in a folder that holds nothing but the recordings."""

    def test_evaluation_says_so(self, desk):
        said = {}
        for name in ("like", "off"):
            done = call("run=run", f"data.path={name}.csv", script="evaluate.py", folder=desk)
            assert done.returncode == 0, done.stderr
            said[name] = [line for line in done.stdout.splitlines() if "sensor:" in line]
        assert said["like"] == []
        (line,) = said["off"]
        assert "of 60 rows the sensor is off in one direction" in line

    def test_a_stream_says_so_at_its_end_and_goes_on_from_its_state(self, desk):
        whole = call("run=run", "input=off.csv", script="kbr-filter", folder=desk)
        assert "kbr: sensor: in" in whole.stderr
        lines = (desk / "off.csv").read_text().splitlines(keepends=True)
        found = []
        for name, part in (("first", lines[:31]), ("last", lines[:1] + lines[31:])):
            (desk / f"{name}.csv").write_text("".join(part))
            done = call("run=run", f"input={name}.csv", "state=now.pt", script="kbr-filter",
                        folder=desk)  # fmt: skip
            assert done.returncode == 0, done.stderr
            found += [json.loads(line) for line in done.stdout.splitlines()]
        expected = [json.loads(line) for line in whole.stdout.splitlines()]
        for one, other in zip(found, expected, strict=True):
            for row, same in zip(one["cov"], other["cov"], strict=True):
                assert row == pytest.approx(same, rel=1e-6)
        quiet = call("run=run", "input=like.csv", script="kbr-filter", folder=desk)
        assert "sensor:" not in quiet.stderr
