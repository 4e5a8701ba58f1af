"""kbr-inspect: what was understood is said in 80 columns, and every trap is warned of."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from kbr.app.inspect_data import main
from kbr.app.recordings.checks import warnings_about
from kbr.app.recordings.read import Source
from kbr.app.recordings.split import Splitting
from kbr.app.recordings.task import OwnData


def clean(rows: int = 400) -> dict[str, np.ndarray]:
    """A recording with nothing wrong."""
    rng = np.random.default_rng(0)
    turn = np.cumsum(0.3 + 0.1 * rng.normal(size=rows))
    z = np.stack([np.cos(turn), np.sin(turn)], 1)
    return {"x": z + 0.2 * rng.normal(size=z.shape), "z": z}


def warnings_of(folder: Path, arrays: dict[str, np.ndarray], **keys) -> str:
    path = folder / "my.npz"
    np.savez(path, **arrays)
    circular = keys.pop("circular", ())
    source = Source(path=str(path), **keys)
    made = OwnData(name="npz", source=source, splitting=Splitting(), circular=circular)
    return "\n".join(warnings_about(made))


def test_a_clean_recording_has_no_warnings(tmp_path):
    assert warnings_of(tmp_path, clean()) == ""


def with_repeats(data):
    data["x"][50:60], data["z"][50:60] = data["x"][40:50], data["z"][40:50]


def with_leaked_rows(data):
    data["x"][350:], data["z"][350:] = data["x"][:50], data["z"][:50]


def with_a_stuck_sensor(data):
    data["x"][100:130] = data["x"][100]


def with_a_constant(data):
    data["x"][:, 1] = 4.0


def with_drift(data):
    data["x"][:, 0] += np.linspace(0, 10, 400)


def with_a_copy(data):
    data["x"][:, 1] = 3 * data["z"][:, 0] + 1


def with_missing(data):
    data["x"][5:12, 0], data["z"][30] = np.nan, np.nan


def with_gaps(data):
    data["x"][:260:2] = np.nan


def with_markers(data):
    data["x"][7:90:9, 1] = -999


def with_a_copy_of_any_size(data):
    data["x"][:, 1] = 1e300 * data["z"][:, 0]


def with_degrees(data):
    data["z"] = np.degrees(np.arctan2(data["z"][:, 1:], data["z"][:, :1]))


def with_radians(data):
    data["z"] = np.arctan2(data["z"][:, 1:], data["z"][:, :1]) % (2 * np.pi)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (with_repeats, ["10 rows repeat"]),
        (with_leaked_rows, ["leakage: 50 test rows"]),
        (with_a_stuck_sensor, ["29 observations equal", "stuck"]),
        (with_a_constant, ["'x_2' of x is constant"]),
        (with_drift, ["drift: 'x_1'"]),
        (with_a_copy, ["leakage: 'x_2'", "'z_1'"]),
        (
            with_missing,
            ["7 rows have a missing or infinite x", "1 rows have a missing or infinite z"],
        ),
        (with_markers, ["'x_2' is -999 in 10 rows, far below all others", "cells empty"]),
        (with_a_copy_of_any_size, ["leakage: 'x_2'", "'z_1'"]),
        (with_gaps, ["40 of 170 training rows are followed"]),
        (with_degrees, ["'z_1' jumps", "circular=[z_1] angle_unit=degrees"]),
        (with_radians, ["'z_1' jumps", "circular=[z_1] angle_unit=radians"]),
    ],
)
def test_a_trap_is_warned_of(tmp_path, spoil, words):
    data = clean()
    spoil(data)
    found = warnings_of(tmp_path, data)
    for word in words:
        assert word in found


def test_few_rows_and_names_of_angles_are_warned_of(tmp_path):
    found = warnings_of(tmp_path, clean(60), z=["yaw", "speed"])
    assert "only 45 usable training rows" in found
    assert "'yaw' is named like an angle" in found
    assert "speed" not in found


def test_a_declared_angle_is_no_trap(tmp_path):
    data = clean()
    with_degrees(data)
    assert warnings_of(tmp_path, data, circular=["z_1"]) == ""


@pytest.mark.parametrize("images", [False, True])
def test_the_command_says_what_it_understood(tmp_path, capsys, images):
    data = clean(200)
    if images:
        data["x"] = (255 * np.random.default_rng(0).random((200, 8, 9, 3))).astype(np.uint8)
    data["time"] = np.arange(200.0) + 9 * (np.arange(200) > 49)
    path, plots = tmp_path / "my.npz", tmp_path / "plots"
    np.savez(path, **data)
    main([str(path), "z=[px,py]", "data.units={px:m,py:m}", "test_share=0.2", f"output={plots}"])
    out = capsys.readouterr().out
    shape = "[200, 3, 8, 9], uint8" if images else "[200, 2], float64"
    for word in (
        shape,
        "1 gap cuts it into 2 pieces",
        "160 rows in 2 pieces",
        "40 rows in 1",
        "px [m]",
        "no warnings",
    ):
        assert word in out
    assert max(len(line) for line in out.replace(str(tmp_path), "").splitlines()) <= 80
    pictures = {picture.name for picture in plots.glob("*.png")}
    assert pictures == {"columns.png", "parts.png", *(["frames.png"] if images else [])}
    command = shlex.split(re.search(r"train: (.*)", out.replace("\\\n", ""), re.DOTALL)[1])
    assert command[:3] == ["python", "train.py", "data=recording"]
    assert command[3:] == [
        f"data.path={path}",
        "data.z=[px,py]",
        "data.units={px:m,py:m}",
        "data.test_share=0.2",
    ]


def test_a_difficult_table_fits_a_narrow_screen(tmp_path, capsys):
    """Units far apart, an offset, an angle, words, jitter, a gap, missing and infinite values."""
    rng = np.random.default_rng(1000)
    time = 1_714_564_800 + np.cumsum(0.1 * (0.2 + 1.6 * rng.random(300)))
    time[200:] += 30
    yaw = np.cumsum(8 + rng.normal(size=300)) % 360
    sine = np.sin(np.radians(yaw)) + 0.1 * rng.normal(size=300)
    lines = ["state,time,current [A],force [N],pressure [Pa],yaw,note"]
    for k in range(300):
        force = "inf" if k == 60 else f"{1e6 * sine[k]:.1f}"
        current = "" if k in (20, 21) else f"{1e-6 * sine[k]:.4e}"
        pressure = f"{1e6 + sine[k]:.3f}"
        lines.append(f'ok,{time[k]:.6f},{current},{force},{pressure},{yaw[k]:.2f},"a, b"')
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines))
    names = "x=['current [A]','force [N]','pressure [Pa]']"
    main([str(path), names, "z=[yaw]", "circular=[yaw]", f"output={tmp_path / 'plots'}"])
    out = capsys.readouterr().out
    for word in ("1 gap cuts it into 2 pieces", "state, note", "sampling is irregular", "(span "):
        assert word in out
    assert "3 rows have a missing or infinite x" in " ".join(out.split())
    assert re.search(r"pressure \[Pa\] +99999\d\.\d+ ", out)  # not 1e+06 for all
    assert max(len(line) for line in out.replace(str(tmp_path), "").splitlines()) <= 80
    command = shlex.split(re.search(r"train: (.*)", out.replace("\\\n", ""), re.DOTALL)[1])
    assert f"data.{names}" in command


def test_numbers_too_close_to_draw_are_drawn(tmp_path):
    data = clean(100)
    data["x"] = np.stack([1e16 + 2.0 * (data["x"][:, 0] > 0), 1e300 * data["x"][:, 1]], 1)
    path = tmp_path / "my.npz"
    np.savez(path, **data)
    main([str(path), f"output={tmp_path}"])
    assert (tmp_path / "parts.png").is_file()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["zz=[a]"], ["'zz=[a]'", "test_share"]),
        (["z"], ["'z'", "key=value"]),
        (["test_share=2"], ["data.test_share"]),
        (["circular=[yaw]"], ["data.circular", "yaw"]),
        (["x=[a"], ["x=[a"]),
    ],
)
def test_a_mistake_is_named(tmp_path, capsys, settings, words):
    path = tmp_path / "my.npz"
    np.savez(path, **clean(100))
    with pytest.raises(SystemExit) as stopped:
        main([str(path), *settings])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    for word in words:
        assert word in said


def test_what_training_refuses_is_refused_after_the_table(tmp_path, capsys):
    data = clean(100)
    data["z"][:, 1] = 2.0
    path = tmp_path / "my.npz"
    np.savez(path, **data)
    with pytest.raises(SystemExit):
        main([str(path), f"output={tmp_path}"])
    captured = capsys.readouterr()
    assert "z: z_2" in captured.out
    assert "constant" in captured.err


def test_help_is_the_manual(capsys):
    main(["--help"])
    assert "kbr-inspect my.npz" in capsys.readouterr().out
