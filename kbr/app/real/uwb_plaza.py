"""uwb_plaza: where a mowing robot is, from distances to four radio beacons that answer in turn.

A row for each time at which a range came. x: one column for each beacon, NaN where it did not
answer; u: the way driven and the turn since the row before, from its wheels; z: the position, m,
between two fixes of its reference. The first 60 % of the rows train, the others test. The beacons
stand elsewhere in Plaza2 than in Plaza1: these are two recordings, never one.
"""

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
U = ("distance", "turn")  # m, radians


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
    driven = np.cumsum(odometry[:, 1:3], axis=0)
    u = np.diff(_at(time, odometry[:, 0], driven), axis=0, prepend=np.nan)
    u[np.append(True, np.diff(test))] = 0.0  # nothing is known of the way to a first row
    recording = Recording(
        kind="mat",
        x=np.stack([_held(time, ranges[ranges[:, 2] == k], hold) for k in beacons], axis=1),
        z=_at(time, reference[:, 0], reference[:, 1:3]),
        x_names=tuple(f"beacon {k}" for k in beacons),
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


def _held(time: np.ndarray, ranges: np.ndarray, hold: float) -> np.ndarray:
    """The last range of a beacon at every time [T]; NaN where it is older than `hold` seconds."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    last = np.searchsorted(ranges[:, 0], time, side="right") - 1
    fresh = (last >= 0) & (time - ranges[last, 0] <= hold)
    return np.where(fresh, ranges[last, 3], np.nan)
