"""Steps of time: what is usual in a recording, and from where on a step is a gap."""

from dataclasses import dataclass

import numpy as np

GAP = 1.5  # a step longer than this many usual steps is a gap where time runs evenly
FENCE = 3.0  # where it does not: this many times the middle half's width above that half
UNEVEN = 0.2  # of the usual step, by which a step may differ from it
FEW_UNEVEN = 0.05  # share of steps that may differ by more in a regular recording
ROUNDING = 4.0  # units in the last place by which a difference of two stamps may be off
FEW_CUTS = 0.01  # share of steps that may be gaps before they are called many


@dataclass(frozen=True)
class Sampling:
    """Steps of `time` within sequences, and those of them that cut the recording.

    `given` says that `limit` is data.max_gap; else it is max(1.5 median, q75 + 3 (q75 - q25)), so
    that jitter alone cuts nothing.
    """

    usual: float  # the median step
    shortest: float
    longest: float
    limit: float  # longer steps are gaps
    given: bool
    gaps: int
    steps: int
    uneven: float  # share of steps within the limit that differ from the usual one by over 20 %

    @property
    def irregular(self) -> bool:
        return self.uneven > FEW_UNEVEN

    @property
    def many_gaps(self) -> bool:
        return self.gaps > FEW_CUTS * self.steps


def longer(steps: np.ndarray, limit: float, near: np.ndarray) -> np.ndarray:
    """Which steps of time exceed the limit, by more than the rounding of the stamps near them."""
    exact = np.asarray(near).dtype.kind in "iu"
    slack = 0.0 if exact else ROUNDING * np.spacing(np.abs(np.asarray(near, dtype=np.float64)))
    exceeds: np.ndarray = steps > limit + slack
    return exceeds


def sampling_of(
    time: np.ndarray, sequence: np.ndarray, max_gap: float | None = None
) -> Sampling | None:
    """Of a recording's time stamps [T]; None where no two rows belong to one sequence."""
    within = np.diff(sequence) == 0
    steps = np.diff(time)[within]
    if not len(steps):
        return None
    low, usual, high = np.quantile(steps, (0.25, 0.5, 0.75))
    limit = max(GAP * usual, high + FENCE * (high - low)) if max_gap is None else max_gap
    kept = steps[~longer(steps, limit, time[1:][within])]
    uneven = np.abs(kept - usual) > UNEVEN * usual
    return Sampling(
        usual=float(usual),
        shortest=float(steps.min()),
        longest=float(steps.max()),
        limit=float(limit),
        given=max_gap is not None,
        gaps=len(steps) - len(kept),
        steps=len(steps),
        uneven=float(uneven.mean()) if len(kept) else 0.0,
    )
