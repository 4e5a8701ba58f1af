"""rtt_canteen: a phone carried through a canteen, and its distances to six access points.

x: distance by round-trip time, its sd and the signal strength of six access points, acceleration,
turn rate, magnetic field, azimuth, pitch and roll: 30 columns. The columns "True Distance" are
computed from the position, which they would give away: they are never read. z: the position, m.
Walks 1 to 6 train, 7 and 9 test; every walk was made on two paths (13 and 24).
"""

import csv
from pathlib import Path

import numpy as np

from kbr.app.real.sequences import RealRecording, file_of, folder_of, named
from kbr.app.recordings.read import Source

SOURCE = (
    "Get it from GitHub: haiyaoyu/RTT-Indoor-localization-data-set (MIT licence), folder Canteen "
    "of raw_data: circle<n>_.../M1_13_mod.csv and M2_24_mod.csv."
)
SIGNALS = ("RTT Distance (m)", "RTT std (m)", "RSS (dBm)")
POINTS = 6
RANGES = tuple(f"AP{k} {signal}" for k in range(1, POINTS + 1) for signal in SIGNALS)
INERTIAL = tuple(f"{sensor}{axis}" for sensor in ("Acc", "Gyro", "Mag") for axis in "XYZ")
X = (*RANGES, *INERTIAL, "Azimuth", "Pitch", "Roll")
TRAIN_WALKS, TEST_WALKS = (1, 2, 3, 4, 5, 6), (7, 9)
PATHS = {"13": "M1", "24": "M2"}
TIME = "Time Stamp (ms)"
RENAME = {  # the same columns have other names in the files of the two paths
    **{f"{m} Ground Truth": "position" for m in PATHS.values()},
    **{f"{m} Time Stamp (ms)": TIME for m in PATHS.values()},
}


def rtt_canteen(root: str | Path | None, *, missing: bool = False) -> RealRecording:
    """12 walks to train on and 4 to test on.

    The files have 0 in all three columns of an access point that did not answer; `missing` makes
    NaN of these zeros.
    """
    folder = folder_of(root, "rtt_canteen", SOURCE)
    paths = [
        file_of(folder, SOURCE, f"walk_{walk}_{path}.csv", f"circle{walk}_*/{m}_{path}_mod.csv")
        for walk in (*TRAIN_WALKS, *TEST_WALKS)
        for path, m in PATHS.items()
    ]
    found = Source(path=paths, x=X, z=["position"], time=TIME, rename=RENAME).read()
    if missing:
        silent = found.x[:, len(SIGNALS) - 1 : len(RANGES) : len(SIGNALS)] == 0
        found.x[:, : len(RANGES)][np.repeat(silent, len(SIGNALS), axis=1)] = np.nan
    return RealRecording(recording=named(found, found.files[len(PATHS) * len(TRAIN_WALKS) :]))


def places(root: str | Path | None) -> dict[str, np.ndarray]:
    """Where the access points are, m, for pictures: of access_points.csv, none without it."""
    path = folder_of(root, "rtt_canteen", SOURCE) / "access_points.csv"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {name: np.array([float(x), float(y)]) for name, x, y in rows}
