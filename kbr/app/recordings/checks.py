"""What may be wrong with a recording, found before training: one sentence each."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kbr.app.recordings.recording import Recording
from kbr.app.recordings.split import Split
from kbr.core.units.sampling import Sampling

if TYPE_CHECKING:
    from kbr.app.recordings.task import OwnData

FEW = 100  # training rows below which results vary a lot
SHIFT = 1.0  # of a mean between the parts, in standard deviations, that is called drift
OUTSIDE = 0.1  # share of test rows outside the training range that is called drift
COPY = 0.9999  # correlation from which a column is called a copy
NAMED = 8  # unused columns that are named
OFTEN = 3  # times that a number comes which may mark what is missing
FAR = 3.0  # widths of the middle half that it is away from all others
ANGLE = re.compile(r"(^|_)(yaw|heading|bearing|azimuth|angle|theta|course|direction)(_|$|\d)", re.I)


def warnings_about(problem: "OwnData") -> list[str]:
    """All warnings about this recording and its split."""
    recording, split = problem.recording, problem.parts
    many_gaps = split.sampling is not None and split.sampling.many_gaps
    checks = (*((_gaps,) if many_gaps else ()), *TRAPS, _few, _leaked_rows, _stuck, _leakage)
    return [
        *(said for check in checks for said in check(recording, split)),
        *(said for check in (_drift, _angles) for said in check(problem)),
    ]


def reading_notes(recording: Recording, split: Split) -> tuple[str, ...]:
    """What every run on this recording must say: what was cut, left out or not used."""
    said = (note for check in (_gaps, *TRAPS) for note in check(recording, split))
    return (*recording.notes, *said, *unused_note(recording))


def gap_summary(sampling: Sampling, sequences: int, unit: str = "") -> str:
    """How a recording is cut by its steps of time, at which limit, and by which setting."""
    unit = f" {unit}" if unit else ""
    limit = f"{sampling.limit:.4g}{unit} (data.max_gap{'' if sampling.given else ', by default'})"
    if not sampling.gaps:
        return f"no step of time is longer than {limit}: no gaps"
    gaps = "1 gap cuts" if sampling.gaps == 1 else f"{sampling.gaps} gaps cut"
    return (
        f"{gaps} it into {sampling.gaps + sequences} pieces: steps of time longer than {limit}, "
        f"the longest {sampling.longest:.4g}{unit}"
    )


def _gaps(recording: Recording, split: Split) -> Iterator[str]:
    sampling = split.sampling
    if sampling is None or not sampling.gaps:
        return
    advice = "raise data.max_gap, or write lost steps as rows with an empty x"
    many = f". {sampling.gaps / sampling.steps:.0%} of the steps are cut: {advice}"
    words = gap_summary(sampling, int(recording.sequence[-1]) + 1, recording.time_unit)
    yield words + (many if sampling.many_gaps else "")


def _irregular(recording: Recording, split: Split) -> Iterator[str]:
    sampling, unit = split.sampling, f" {recording.time_unit}" if recording.time_unit else ""
    if sampling is not None and sampling.irregular:
        longest = min(sampling.longest, sampling.limit)
        yield (
            f"sampling is irregular: steps of time from {sampling.shortest:.3g} to {longest:.3g}"
            f"{unit}, usually {sampling.usual:.3g}; {sampling.uneven:.0%} differ by over 20 % from "
            "that. Every row counts as one step: data.resample makes equal steps"
        )


def _missing(recording: Recording, split: Split) -> Iterator[str]:
    x_lost, z_lost = (int(rows.sum()) for rows in (recording.x_missing, recording.z_missing))
    if recording.parted:
        shares = {name: np.isfinite(part).all(1).mean() for name, part in recording.parts}
        there = [f"{name} {share:.0%}" for name, share in shares.items()]
        yield f"of x are there: {some_of(there)}; in {x_lost} rows nothing, which is predicted"
    elif x_lost:
        what = f"{x_lost} rows have a missing or infinite x"
        yield f"{what}: left out of training, predicted in the test{_parts_of(recording, x_lost)}"
    if z_lost:
        what = f"{z_lost} rows have a missing or infinite z"
        yield f"{what}: left out of training, not scored in the test"


def _parts_of(recording: Recording, lost: int) -> str:
    """Advice where most of the rows that lack a number have others."""
    if recording.has_images or recording.x.shape[1] < 2:
        return ""
    partly = int((recording.x_missing & np.isfinite(recording.x).any(1)).sum())
    advice = ". data.sensors=each, or groups of columns, would use what is there of them"
    return advice if 2 * partly > lost else ""


def _repeated(recording: Recording, split: Split) -> Iterator[str]:
    keys = _pair_keys(recording)
    if repeats := len(keys) - len(np.unique(keys)):
        what = "row repeats" if repeats == 1 else "rows repeat"
        yield f"{repeats} {what} an earlier row exactly (x and z)"


def _constant(recording: Recording, split: Split) -> Iterator[str]:
    rows = split.train_rows
    names = [repr(name) for name, values in recording.numbers if np.ptp(values[rows]) == 0]
    if names:
        be = "is" if len(names) == 1 else "are"
        yield f"{some_of(names)} of x {be} constant over the training rows: leave out of data.x"


def _markers(recording: Recording, split: Split) -> Iterator[str]:
    """Extreme numbers that come often, far from all others: 0 or -999 for a missing value?"""
    markers = []
    for name, values in _columns(recording):
        there = np.sort(values[np.isfinite(values)])
        for end, side in ((0, "below"), (-1, "above")):
            others = there[there != there[end]]
            often = len(there) - len(others)
            if often < OFTEN or often > len(others):
                continue
            low, high = np.quantile(others, (0.25, 0.75))
            away = np.abs(there[end] - others).min()
            if high > low and away > FAR * (high - low):
                markers.append(f"'{name}' is {there[end]:g} in {often} rows, far {side} all others")
    if markers:
        yield f"{some_of(markers, 3)}: if it marks missing values, leave those cells empty"


def _in_both(recording: Recording, split: Split) -> Iterator[str]:
    both = [name for name in recording.x_names if name in recording.z_names]
    if both and recording.kind in ("csv", "parquet"):
        yield f"leakage: {', '.join(both)} is in data.x and in data.z: x holds the answer"


def unused_note(recording: Recording) -> Iterator[str]:
    if recording.unused:
        what = "columns" if recording.kind in ("csv", "frames", "parquet") else "arrays"
        yield f"{what} not used: {some_of(recording.unused)}"


def some_of(names: Sequence[str], most: int = NAMED) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


TRAPS = (_irregular, _missing, _markers, _repeated, _constant, _in_both)


def _few(recording: Recording, split: Split) -> Iterator[str]:
    count = len(split.train_rows)
    if count < FEW:
        yield f"only {count} usable training rows; a few hundred make a better filter"
    steps = count - len(split.train)
    if steps < count / 2:
        yield (
            f"only {steps} of {count} training rows are followed by the next one: gaps and "
            "missing rows cut the sequences short"
        )


def _leaked_rows(recording: Recording, split: Split) -> Iterator[str]:
    keys = _pair_keys(recording)
    if shared := int(np.isin(keys[split.test_rows], keys[split.train_rows]).sum()):
        yield f"leakage: {shared} test rows are also in the training part"


def _stuck(recording: Recording, split: Split) -> Iterator[str]:
    keys = np.array([_key(row) for row in recording.x])
    same = (np.diff(keys) == 0) & ~recording.x_missing[1:]
    stuck = int((same & (np.diff(recording.sequence) == 0)).sum())
    if stuck > len(recording) / 100:
        yield f"{stuck} observations equal the one just before: is the sensor stuck?"


def _drift(problem: "OwnData") -> Iterator[str]:
    """Columns whose test part does not look like the training part."""
    for name, values in _columns(problem.recording):
        if name in problem.circular:
            continue
        values = _of_size_one(values)
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


def _leakage(recording: Recording, split: Split) -> Iterator[str]:
    rows = ~(recording.x_missing | recording.z_missing)
    for x_name, values in recording.numbers:
        for j, z_name in enumerate(recording.z_names):
            a, b = _of_size_one(values[rows]), _of_size_one(recording.z[rows, j])
            if a.std() == 0 or b.std() == 0:
                continue
            if abs(np.corrcoef(a, b)[0, 1]) > COPY:
                yield f"leakage: '{x_name}' of x is (nearly) a copy of '{z_name}' of z"


def _angles(problem: "OwnData") -> Iterator[str]:
    """Columns that jump by a full turn, or are named like angles, and are not declared."""
    sequence = problem.recording.sequence
    for name, values in _columns(problem.recording):
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


def _columns(recording: Recording) -> Iterator[tuple[str, np.ndarray]]:
    yield from recording.numbers
    yield from zip(recording.z_names, recording.z.T, strict=True)


def _of_size_one(values: np.ndarray) -> np.ndarray:
    """The same column in units in which its squares neither overflow nor vanish."""
    peak = np.nanmax(np.abs(values))
    return values / peak if peak > 0 else values


def _pair_keys(recording: Recording) -> np.ndarray:
    """A number for each row, equal for equal pairs; x, which may be large, only where z repeats."""
    states = [_key(row) for row in recording.z]
    count = Counter(states)
    keys = [
        hash((state, _key(recording.x[row]) if count[state] > 1 else 0))
        for row, state in enumerate(states)
    ]
    return np.array(keys)


def _key(row: np.ndarray) -> int:
    return hash(np.ascontiguousarray(row).tobytes())
