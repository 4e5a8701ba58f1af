"""uwb_plaza: where a mowing robot is, from distances to four radio beacons that answer in turn.

A row for each time at which a range came. x: one column for each beacon, NaN where it did not
answer. A range may count for some time after it came; then x also has the way moved since. u: the
way moved since the row before. Ways are by dead reckoning: steps of the wheels along a heading that
adds up the turns; its start, and its drift with time (a third of a turn in Plaza2), are fitted to
the training rows. z: the position, m, between two fixes of its reference. The first 60 % of the
rows train, the others test. The beacons stand elsewhere in Plaza2 than in Plaza1: these are two
recordings, never one.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kbr.app.real.sequences import TEST, TRAIN, RealRecording, file_of, folder_of
from kbr.app.recordings.kinds.mat import variable
from kbr.app.recordings.recording import Recording
from kbr.core.errors import KbrError

SOURCE = (
    "Get it from GitHub: gtrll/gpslam (BSD licence), folder matlab/data: Plaza1.mat and "
    "Plaza2.mat; data of Djugash et al. 2009."
)
SITES = ("Plaza1", "Plaza2")
TRAIN_SHARE = 0.6
MAX_BYTES = 10**8
U = ("moved_1", "moved_2")  # m
SINCE = " since_"  # columns of the way moved since the range of a beacon came
LOOK = 8  # rows, over which reckoned and true ways are compared


def uwb_plaza(root: str | Path | None, *, site: str = "Plaza1", hold: float = 0.0) -> RealRecording:
    """One sequence to train on and one to test on; a range counts for `hold` seconds."""
    if site not in SITES:
        raise KbrError(f"data.site must be {' or '.join(SITES)}; got {site!r}.")
    if not hold >= 0:
        raise KbrError(f"data.hold must be at least 0 seconds; got {hold}.")
    path = file_of(folder_of(root, "uwb_plaza", SOURCE), SOURCE, f"{site}.mat")
    ranges, odometry, reference = (variable(path, name, MAX_BYTES) for name in ("TD", "DR", "GT"))
    time = np.unique(ranges[:, 0])  # sorted: some ranges are written late
    beacons = np.unique(ranges[:, 2]).astype(int)
    rows = len(time)
    test = np.arange(rows) >= round(TRAIN_SHARE * rows)
    z = _at(time, reference[:, 0], reference[:, 1:3])
    way = _at(time, odometry[:, 0], _dead_reckoned(odometry))
    way = _at(time, odometry[:, 0], _dead_reckoned(odometry, *_drift(time[~test], way, z)))
    u = np.diff(way, axis=0, prepend=np.nan)
    u[np.append(True, np.diff(test))] = 0.0  # nothing is known of the way to a first row
    x, came = _held(time, [ranges[ranges[:, 2] == k] for k in beacons], hold)
    names = [f"beacon {k}" for k in beacons]
    if hold:
        since = np.where(np.isnan(x)[..., None], np.nan, way[:, None] - way[came])
        x = np.hstack([x, since.reshape(rows, -1)])
        names += [f"{name}{SINCE}{k}" for name in names for k in (1, 2)]
    recording = Recording(
        kind="mat",
        x=x,
        z=z,
        x_names=tuple(names),
        z_names=("position_1", "position_2"),
        sequence=test.astype(int),
        row=np.arange(rows),
        time=time,
        dtypes=("float64", "float64"),
        ids=np.where(test, f"{TEST}{site}", f"{TRAIN}{site}"),
        stamps=time,
        notes=(f"ranges count for {hold:g} s after they came",) if hold else (),
        u=u,
        u_names=U,
    )
    return RealRecording(recording=recording)


def places(root: str | Path | None, *, site: str = "Plaza1") -> dict[str, np.ndarray]:
    """Where the beacons stand, m; for pictures."""
    path = file_of(folder_of(root, "uwb_plaza", SOURCE), SOURCE, f"{site}.mat")
    return {f"{row[0]:g}": row[1:3] for row in variable(path, "TL", MAX_BYTES)}


def _at(time: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values [T, d] at other times, linearly between the known ones."""
    return np.stack([np.interp(time, known, column) for column in values.T], axis=1)


def _dead_reckoned(odometry: np.ndarray, drift: float = 0.0, start: float = 0.0) -> np.ndarray:
    """Positions [T, 2] after steps of (time, way, turn), each along the middle of its turn."""
    time, way, turn = odometry[:, :3].T
    heading = np.cumsum(turn) - turn / 2 + start + drift * time
    steps = way[:, None] * np.stack([np.cos(heading), np.sin(heading)], 1)
    return np.cumsum(steps, axis=0)


def _drift(time: np.ndarray, way: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Drift (radians a second) and start of the heading, by the training rows, which come first.

    Math: line through the angles between true and reckoned ways of LOOK rows, weighted by both.
    """
    reckoned, true = (
        (part[LOOK : len(time)] - part[: len(time) - LOOK]) @ [1, 1j] for part in (way, z)
    )
    some = np.abs(reckoned) > 0.2 * np.abs(reckoned).max()  # of a short way the angle is noise
    angle = np.unwrap(np.angle(true * reckoned.conj())[some])
    return np.polyfit(time[LOOK:][some], angle, 1, w=np.abs(reckoned)[some])


def _held(
    time: np.ndarray, several: Sequence[np.ndarray], hold: float
) -> tuple[np.ndarray, np.ndarray]:
    """The last range of each beacon at every time [T, k], NaN where it is older than `hold`
    seconds, and the row [T, k] at which it came."""
    held, rows = [], []
    for one in several:
        ranges = one[np.argsort(one[:, 0], kind="stable")]
        last = np.searchsorted(ranges[:, 0], time, side="right") - 1
        fresh = (last >= 0) & (time - ranges[last, 0] <= hold)
        held.append(np.where(fresh, ranges[last, 3], np.nan))
        rows.append(np.searchsorted(time, ranges[last.clip(0), 0]))
    return np.stack(held, 1), np.stack(rows, 1)
