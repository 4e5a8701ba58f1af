"""Recordings for tests: units far apart, an angle, missing rows, words, sequences and gaps."""

import csv
import sys
from pathlib import Path

import numpy as np
from command_line import undrawn

from kbr.app import cli
from kbr.app.recordings.read import Source
from kbr.app.recordings.split import Splitting
from kbr.app.recordings.task import OwnData

SPLIT = ("split", "test_share", "max_gap", "n_train", "n_test")
OWN = ("circular", "angle_unit", "units", "resample", "trend", "sensors")


def own(path: Path, **keys) -> OwnData:
    """The problem that data=recording builds from these keys."""
    splitting = Splitting(**{k: keys.pop(k) for k in SPLIT if k in keys})
    rest = {k: keys.pop(k) for k in OWN if k in keys}
    return OwnData(name="npz", source=Source(path=str(path), **keys), splitting=splitting, **rest)


def turning(rows: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A noisy point on a circle: x [T, 2] and its angle in degrees [T, 1], in [0, 360)."""
    rng = np.random.default_rng(seed)
    angle = np.cumsum(0.3 + 0.1 * rng.normal(size=rows))
    x = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.2 * rng.normal(size=(rows, 2))
    return x, np.degrees(angle)[:, None] % 360


def saved(folder: Path, **arrays) -> Path:
    path = folder / "my.npz"
    np.savez(path, **arrays)
    return path


def table(folder: Path, text: str) -> Path:
    path = folder / "log.csv"
    path.write_text(text)
    return path


X, Z = ["faint", "loud", "bearing"], ["yaw", "speed"]
GAP = 25  # a step of time, in rows, after which there is a gap


def drives(runs: list[str], seed: int, rows: int = 45) -> dict[str, list]:
    """A table by columns: x of 1e-4, of 1e6 about 1e6, and in degrees; z in degrees and about 1e6.

    None is missing. Every drive has a gap of time, and two rows in a row without `loud`.
    """
    rng = np.random.default_rng(seed)
    names = ["run", "t", *X, *Z, "note"]
    table: dict[str, list] = {name: [] for name in names}
    for run in runs:
        yaw, t = rng.uniform(0, 360), 100.0
        for k in range(rows):
            yaw = (yaw + 12 + 2 * rng.normal()) % 360
            c, s = np.cos(np.radians(yaw)), np.sin(np.radians(yaw))
            t += 0.5 if k != GAP else 20.0
            noise = 0.2 * rng.normal(size=3)
            loud = None if k in (10, 11) else 1e6 * (s + noise[1]) + 1e6
            x = [1e-4 * (c + noise[0]), loud, float((yaw + 50 * noise[2]) % 360)]
            z = [yaw, 1e6 + 300 * s]
            values = [run, round(t, 6), *x, *z, 'it said "go, on"' if k % 3 else ""]
            for name, value in zip(names, values, strict=True):
                table[name].append(value)
    return table


def write_csv(path: Path, table: dict[str, list], names: list[str]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(names)
        for values in zip(*(table[name] for name in names), strict=True):
            rows.writerow(["" if v is None else v for v in values])
    return path


def spots(table: dict[str, list]) -> np.ndarray:
    """A noisy frame [8, 8] for each row: a spot at the heading; NaN where `loud` is missing."""
    yaw = np.radians(np.array(table["yaw"]))
    at = np.arange(8)
    u, v = (4 + 2.5 * part[:, None, None] for part in (np.cos(yaw), np.sin(yaw)))
    frames = 255 * np.exp(-((at[None, None] - u) ** 2 + (at[None, :, None] - v) ** 2) / 3)
    frames += np.random.default_rng(0).normal(0, 10, frames.shape)
    frames[[value is None for value in table["loud"]]] = np.nan
    return frames.astype(np.float32)


def command(monkeypatch, name: str, *arguments: str) -> None:
    """`python train.py` or `evaluate.py` in this process, without drawing the pictures."""
    monkeypatch.setenv("KBR_RUN_ID", "test")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with undrawn():
        getattr(cli, name)()
