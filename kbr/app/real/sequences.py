"""What a reader of a real recording gives: named columns of training and of test sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kbr.app.recordings.recording import Recording
from kbr.core.errors import KbrError

TRAIN, TEST = "train/", "test/"  # how the ids of sequences begin


@dataclass(frozen=True, kw_only=True, eq=False)
class RealRecording:
    """Observations, states and time, and u: what acted between the row before and this one."""

    recording: Recording

    @property
    def u(self) -> np.ndarray:
        """[T, du]; no columns where nothing is known to act."""
        found = self.recording
        return np.empty((len(found), 0)) if found.u is None else found.u

    @property
    def u_names(self) -> tuple[str, ...]:
        return self.recording.u_names

    @property
    def train(self) -> list[Mapping[str, np.ndarray]]:
        return self._parts(TRAIN)

    @property
    def test(self) -> list[Mapping[str, np.ndarray]]:
        return self._parts(TEST)

    def _parts(self, kind: str) -> list[Mapping[str, np.ndarray]]:
        """Columns by name [T] of every sequence whose id begins so, with its time."""
        found, all_rows = self.recording, np.arange(len(self.recording))
        assert found.ids is not None
        sequences = np.split(all_rows, np.flatnonzero(np.diff(found.sequence)) + 1)
        return [
            {
                **dict(zip(found.x_names, found.x[rows].T, strict=True)),
                **dict(zip(found.z_names, found.z[rows].T, strict=True)),
                **{name: found[name][rows] for name in found.u_names},
                **({} if found.time is None else {"time": found.time[rows]}),
            }
            for rows in sequences
            if str(found.ids[rows[0]]).startswith(kind)
        ]


def named(recording: Recording, tests: Sequence[str]) -> Recording:
    """The recording with ids train/<name> or test/<name>; `tests` are names of the latter."""
    assert recording.ids is not None
    ids = [f"{TEST if name in tests else TRAIN}{name}" for name in recording.ids]
    return replace(recording, ids=np.array(ids))


def folder_of(root: str | Path | None, name: str, source: str) -> Path:
    """The folder of a recording: root/name, or root itself."""
    if root is None:
        raise KbrError(f"data.root must name the folder of {name}. {source}")
    inner = Path(root) / name
    found = inner if inner.is_dir() else Path(root)
    if not found.is_dir():
        raise KbrError(f"data.root={root} is no folder (looked in {Path.cwd()}). {source}")
    return found


def file_of(folder: Path, source: str, *patterns: str) -> Path:
    """The one file that the first of these patterns with a match finds."""
    for pattern in patterns:
        if found := sorted(folder.glob(pattern)):
            return found[0]
    raise KbrError(f"data.root: {folder} has no {patterns[0]}. {source}")
