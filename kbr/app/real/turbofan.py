"""turbofan: how many cycles an engine has left, from 14 of its sensors (NASA C-MAPSS, FD001).

x: the sensors that are not constant; z: min(remaining cycles, 125), as is usual: a new engine shows
nothing of its end. 100 engines run to failure train. 100 others are cut off at some cycle and test:
their remaining cycles are known at the last row, and scored there.
"""

from pathlib import Path

import numpy as np

from kbr.app.real.sequences import TEST, TRAIN, RealRecording, file_of, folder_of
from kbr.app.recordings.recording import Recording
from kbr.core.errors import KbrError

SOURCE = (
    "Get CMAPSSData of Saxena et al. 2008 from the NASA prognostics data repository (public "
    "domain): train_FD001.txt, test_FD001.txt, RUL_FD001.txt."
)
SENSORS = (2, 3, 4, 7, 8, 9, 11, 12, 13, 14, 15, 17, 20, 21)  # of 21; the others are constant
BEFORE = 5  # columns: engine, cycle and three settings
MOST = 125  # cycles


def turbofan(root: str | Path | None, *, truth: str = "last") -> RealRecording:
    """Whole lives, then cut ones with z at their last row alone, or at every row (truth=all)."""
    if truth not in ("last", "all"):
        raise KbrError(f"data.truth must be last or all; got {truth!r}.")
    folder = folder_of(root, "turbofan_fd001", SOURCE)
    whole, cut, left = (
        _numbers(file_of(folder, SOURCE, f"{name}_FD001.txt")) for name in ("train", "test", "RUL")
    )
    engines = np.unique(cut[:, 0]).astype(int)
    if len(left) != len(engines):
        raise KbrError(f"{folder}: RUL_FD001.txt must have {len(engines)} rows; got {len(left)}.")
    after = dict(zip(engines, left[:, 0], strict=True))
    remaining = [_remaining(whole, {}), _remaining(cut, after)]
    if truth == "last":
        is_last = np.append(np.diff(cut[:, 0]) != 0, True)
        remaining[1] = np.where(is_last, remaining[1], np.nan)
    rows = np.concatenate([whole, cut])
    kinds = np.repeat([TRAIN, TEST], [len(whole), len(cut)])
    ids = np.array([f"{kind}{int(k)}" for kind, k in zip(kinds, rows[:, 0], strict=True)])
    recording = Recording(
        kind="csv",
        x=rows[:, [BEFORE + k - 1 for k in SENSORS]],
        z=np.minimum(np.concatenate(remaining), MOST)[:, None],
        x_names=tuple(f"sensor {k}" for k in SENSORS),
        z_names=("remaining",),
        sequence=np.cumsum(np.append(0, ids[1:] != ids[:-1])),
        row=np.arange(len(rows)),
        time=rows[:, 1],
        dtypes=("text", "text"),
        ids=ids,
        stamps=rows[:, 1],
    )
    return RealRecording(recording=recording)


def _numbers(path: Path) -> np.ndarray:
    try:
        found = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise KbrError(f"{path} must hold rows of numbers: {error}. {SOURCE}") from None
    if len(found) < 1 or found.shape[1] not in (1, BEFORE + 21):
        raise KbrError(f"{path} must have {BEFORE + 21} columns; got {list(found.shape)}. {SOURCE}")
    return found


def _remaining(rows: np.ndarray, after: dict[int, float]) -> np.ndarray:
    """Cycles that are left in every row; an engine goes on for `after` cycles behind its last."""
    engine = rows[:, 0].astype(int)
    last = {k: rows[engine == k, 1].max() + after.get(k, 0.0) for k in np.unique(engine)}
    left: np.ndarray = np.array([last[k] for k in engine]) - rows[:, 1]
    return left
