"""Which rows train and which test; pieces never cross a sequence, a gap or a missing row."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kbr.app.recordings.recording import Recording
from kbr.core.errors import KbrError
from kbr.core.units.sampling import Sampling

FEWEST = 20  # usable training rows
SEVERAL = 4  # sequences from which split=auto goes by sequence


@dataclass(frozen=True, eq=False)
class Split:
    """Rows [T] of each part; `train` holds usable pairs only, `test` missing observations too."""

    kind: str
    train: list[np.ndarray]  # row numbers of consecutive pairs, one array for each piece
    test: list[np.ndarray]
    held_out: np.ndarray  # [T] bool: belongs to the test part
    sampling: Sampling | None = None  # steps of time and the gaps that cut them

    @property
    def train_rows(self) -> np.ndarray:
        return np.concatenate(self.train)

    @property
    def test_rows(self) -> np.ndarray:
        return np.concatenate(self.test)


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """split: time (the end of every sequence is test), sequence (the last sequences are), or auto:
    sequence where there are four or more. n_train, n_test: at most so many rows.
    """

    split: str = "auto"
    test_share: float = 0.25
    max_gap: float | None = None
    n_train: int | None = None
    n_test: int | None = None

    more_train: ClassVar[str] = "Lower data.test_share"  # what gives more rows, for messages
    more_test: ClassVar[str] = "Raise data.test_share"

    def __post_init__(self) -> None:
        if self.split not in ("auto", "time", "sequence"):
            raise KbrError(f"data.split must be auto, time or sequence; got {self.split!r}.")
        if not 0 < self.test_share < 1:
            raise KbrError(
                f"data.test_share must lie between 0 and 1; got {self.test_share}. It is the share "
                "of rows kept for the test."
            )
        for key in ("n_train", "n_test"):
            if getattr(self, key) is not None and getattr(self, key) < 1:
                raise KbrError(f"data.{key} must be at least 1 or null; got {getattr(self, key)}.")
        if self.max_gap is not None and not self.max_gap > 0:
            raise KbrError(f"data.max_gap must be greater than 0 or null; got {self.max_gap}.")

    def __call__(self, recording: Recording) -> Split:
        if self.max_gap is not None and recording.time is None:
            raise KbrError(
                f"data.max_gap={self.max_gap:g} is a step of time, and there are no time stamps. "
                "Name them (data.time), or leave data.max_gap out."
            )
        kind, held_out = self.held_out(recording)
        starts = recording.starts(self.max_gap)
        usable = ~(recording.x_missing | recording.z_missing) & ~held_out
        train = _pieces(usable, starts, self.n_train, last=True)
        test = _pieces(held_out, starts, self.n_test, last=False)
        known = sum(int((~recording.z_missing[piece]).sum()) for piece in test)
        self._check(train, known, kind)
        return Split(kind, train, test, held_out, recording.sampling(self.max_gap))

    def held_out(self, recording: Recording) -> tuple[str, np.ndarray]:
        """How the recording is split, and which rows [T] are for the test."""
        count = int(recording.sequence[-1]) + 1
        kind = self.split
        if kind == "auto":
            kind = "sequence" if count >= SEVERAL else "time"
        if kind == "sequence" and count < 2:
            raise KbrError(
                "data.split=sequence needs at least two sequences; there is one. Name the "
                "sequences (data.sequence), or set data.split=time."
            )
        chosen = self._last_sequences if kind == "sequence" else self._ends
        return kind, chosen(recording)

    def _ends(self, recording: Recording) -> np.ndarray:
        """The last rows of every sequence."""
        lengths = np.bincount(recording.sequence)
        left = np.cumsum(lengths)[recording.sequence] - np.arange(len(recording))  # with this row
        held_out: np.ndarray = left <= np.round(self.test_share * lengths)[recording.sequence]
        return held_out

    def _last_sequences(self, recording: Recording) -> np.ndarray:
        """The fewest last sequences that hold the share of rows; the first one always trains."""
        lengths = np.bincount(recording.sequence)
        from_end = np.cumsum(lengths[::-1])
        needed = int(np.searchsorted(from_end, self.test_share * len(recording))) + 1
        first = max(1, len(lengths) - needed)
        held_out: np.ndarray = recording.sequence >= first
        return held_out

    def _check(self, train: list[np.ndarray], known: int, kind: str) -> None:
        rows = sum(map(len, train))
        if rows < FEWEST:
            raise KbrError(
                f"data.split={kind} leaves {rows} usable training rows; at least {FEWEST} are "
                f"needed. {self.more_train}, or record more (rows with a missing x or z do not "
                "count)."
            )
        steps = rows - len(train)
        if steps < FEWEST // 2:
            raise KbrError(
                f"only {steps} of {rows} training rows are followed by the next one, too few to "
                "learn the dynamics from. Raise data.max_gap, or fill missing rows; where columns "
                "are missing one by one, data.sensors keeps their rows."
            )
        if known < 1:
            raise KbrError(
                f"data.split={kind} leaves no test row with a known z. {self.more_test}."
            )


def _pieces(
    wanted: np.ndarray, starts: np.ndarray, limit: int | None, *, last: bool
) -> list[np.ndarray]:
    """Runs of consecutive wanted rows, cut where a piece starts."""
    rows = np.flatnonzero(wanted)
    if limit is not None:
        rows = rows[max(0, len(rows) - limit) :] if last else rows[:limit]
    cuts = np.flatnonzero((np.diff(rows) > 1) | starts[rows[1:]]) + 1
    return [piece for piece in np.split(rows, cuts) if len(piece)]
