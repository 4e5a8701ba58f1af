"""What may be wrong with a recording, found before training: one sentence each."""

import re
from collections.abc import Iterator

import numpy as np

from kbr.app.own.problem import OwnData

FEW = 100  # training rows below which results vary a lot
SHIFT = 1.0  # of a mean between the parts, in standard deviations, that is called drift
OUTSIDE = 0.1  # share of test rows outside the training range that is called drift
COPY = 0.9999  # correlation from which a column is called a copy
ANGLE = re.compile(r"(^|_)(yaw|heading|bearing|azimuth|angle|theta|course|direction)(_|$|\d)", re.I)


def findings(problem: OwnData) -> list[str]:
    """All warnings about this recording and its split."""
    checks = (_few, _missing, _duplicates, _constant, _drift, _leakage, _angles)
    return [found for check in checks for found in check(problem)]


def _few(problem: OwnData) -> Iterator[str]:
    count = len(problem.parts.train_rows)
    if count < FEW:
        yield f"only {count} usable training rows; a few hundred make a better filter"
    steps = sum(len(piece) - 1 for piece in problem.parts.train)
    if steps < count / 2:
        yield (
            f"only {steps} of {count} training rows are followed by the next one: gaps and "
            "missing rows cut the sequences short"
        )


def _missing(problem: OwnData) -> Iterator[str]:
    recording = problem.recording
    for name, rows in (("x", recording.x_missing), ("z", recording.z_missing)):
        lost = int(rows.sum())
        if lost:
            use = "predicted in the test" if name == "x" else "not scored in the test"
            yield f"{lost} rows have a missing {name}: left out of training, {use}"


def _duplicates(problem: OwnData) -> Iterator[str]:
    recording, parts = problem.recording, problem.parts
    keys = _row_keys(recording.x, recording.z)
    repeats = len(keys) - len(np.unique(keys))
    if repeats:
        yield f"{repeats} rows repeat an earlier row exactly (x and z)"
    shared = int(np.isin(keys[parts.test_rows], keys[parts.train_rows]).sum())
    if shared:
        yield f"leakage: {shared} test rows are also in the training part"
    same = (np.diff(_row_keys(recording.x)) == 0) & ~recording.x_missing[1:]
    stuck = int((same & (np.diff(recording.sequence) == 0)).sum())
    if stuck > len(keys) / 100:
        yield f"{stuck} observations equal the one just before: is the sensor stuck?"


def _constant(problem: OwnData) -> Iterator[str]:
    recording = problem.recording
    if not recording.has_images:
        rows = recording.x[problem.parts.train_rows]
        for name, width in zip(recording.x_names, np.ptp(rows, axis=0), strict=True):
            if width == 0:
                yield f"column '{name}' of x is constant over the training rows"


def _drift(problem: OwnData) -> Iterator[str]:
    """Columns whose test part does not look like the training part."""
    for name, values in _columns(problem):
        if name in problem.circular:
            continue
        train, test = values[problem.parts.train_rows], values[problem.parts.test_rows]
        test, spread = test[np.isfinite(test)], train.std()
        if spread == 0 or len(test) == 0:
            continue
        shift = (test.mean() - train.mean()) / spread
        outside = float(((test < train.min()) | (test > train.max())).mean())
        if abs(shift) > SHIFT or outside > OUTSIDE:
            yield (
                f"drift: '{name}' of the test part lies {shift:+.1f} sd from the training mean, "
                f"{outside:.0%} of it outside the training range"
            )


def _leakage(problem: OwnData) -> Iterator[str]:
    recording = problem.recording
    if recording.has_images:
        return
    rows = ~(recording.x_missing | recording.z_missing)
    for i, x_name in enumerate(recording.x_names):
        for j, z_name in enumerate(recording.z_names):
            a, b = recording.x[rows, i], recording.z[rows, j]
            if a.std() == 0 or b.std() == 0:
                continue
            if abs(np.corrcoef(a, b)[0, 1]) > COPY:
                yield f"leakage: '{x_name}' of x is (nearly) a copy of '{z_name}' of z"


def _angles(problem: OwnData) -> Iterator[str]:
    """Columns that jump by a full turn, or are named like angles, and are not declared."""
    sequence = problem.recording.sequence
    for name, values in _columns(problem):
        if name in problem.circular:
            continue
        steps = np.abs(np.diff(values)[np.diff(sequence) == 0])
        span = np.nanmax(values) - np.nanmin(values)
        for unit, turn in (("degrees", 360.0), ("radians", 2 * np.pi)):
            jumps = int((steps > 0.8 * turn).sum())
            if 0.9 * turn < span < 1.01 * turn and 0 < jumps < len(steps) / 10:
                yield (
                    f"'{name}' jumps by a full turn {jumps} times: an angle in {unit}? Declare it: "
                    f"circular=[{name}] angle_unit={unit}"
                )
                break
        else:
            if ANGLE.search(name):
                yield f"'{name}' is named like an angle; if it is one, declare circular=[{name}]"


def _columns(problem: OwnData) -> Iterator[tuple[str, np.ndarray]]:
    recording = problem.recording
    if not recording.has_images:
        yield from zip(recording.x_names, recording.x.T, strict=True)
    yield from zip(recording.z_names, recording.z.T, strict=True)


def _row_keys(*arrays: np.ndarray) -> np.ndarray:
    """One number for each row, equal for equal rows."""
    flat = [np.ascontiguousarray(array).reshape(len(array), -1) for array in arrays]
    return np.array([hash(tuple(part[i].tobytes() for part in flat)) for i in range(len(flat[0]))])
