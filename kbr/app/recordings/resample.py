"""Even steps of time: the rows of every step averaged into one."""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from kbr.app.recordings.recording import Recording
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory
from kbr.core.units.sampling import GAP

SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
ROUNDING = 1e-6  # of a step, by which a stamp may be early


def resampled(
    recording: Recording,
    step: str | float,
    *,
    angles: Collection[str] = (),
    turn: float = 360.0,
    max_gap: float | None = None,
    added: Collection[str] = (),
) -> Recording:
    """Means over [t, t + step) from the first row of every piece on; the stamp is t.

    Angles are averaged as angles, and only what is there counts. A step of time longer than
    max_gap (null: 1.5 new steps) ends a piece; steps in a piece without rows are missing.
    Control inputs are averaged from the middle of a step to that of the next, or `added` up.
    """
    width = _width(recording, step)
    limit = GAP * width if max_gap is None else max_gap
    time = recording.time
    assert time is not None  # _width has looked
    if limit < width:
        raise KbrError(
            f"data.max_gap={limit:g} is shorter than data.resample={step}, so that every step "
            "would be a gap. Raise data.max_gap, or leave it out."
        )
    first = np.flatnonzero(recording.starts(limit))
    piece = np.repeat(np.arange(len(first)), np.diff([*first, len(time)]))
    index = np.floor((time - time[first][piece]) / width + ROUNDING)
    sizes = index[np.append(first[1:], len(time)) - 1] + 1
    columns = recording.x.shape[1] + recording.z.shape[1]
    check_memory(
        16.0 * float(sizes.sum()) * columns,
        what=f"{sizes.sum():,.0f} steps of {step}",
        advice="Lower data.max_gap, or raise data.resample.",
    )
    sizes = sizes.astype(int)
    offset = np.cumsum([0, *sizes])
    cell, total = offset[piece] + index.astype(int), int(offset[-1])
    of = np.repeat(first, sizes)  # for each new row, the first old one of its piece
    count = np.arange(total) - np.repeat(offset[:-1], sizes)

    def averaged(values: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
        result = _means(values, cell, total)
        for at in (k for k, name in enumerate(names) if name in angles):
            result[:, at] = _angles(values[:, at], cell, total, turn)
        return result

    u = recording.u
    if u is not None:
        added_up = [name in added for name in recording.u_names]
        moves = _moves(u, first, cell, offset[:-1], np.array(added_up))
        for at in (k for k, name in enumerate(recording.u_names) if name in angles):
            moves[:, at] = _angles(u[:, at], cell, total, turn)
        u = moves
    empty = total - len(np.unique(cell))
    lost = f", {empty} of them without rows" if empty else ""
    shown = step if isinstance(step, str) else f"{step:g} {recording.time_unit}".rstrip()
    return replace(
        recording,
        x=averaged(recording.x, recording.x_names),
        z=averaged(recording.z, recording.z_names),
        u=u,
        sequence=recording.sequence[of],
        row=np.arange(total),
        time=time[of] + width * count,
        step=width,
        ids=None if recording.ids is None else recording.ids[of],
        stamps=_stamps(recording.stamps, of, width * count),
        notes=(
            *recording.notes,
            f"{len(time)} rows averaged into {total} steps of {shown}{lost}",
        ),
    )


def _width(recording: Recording, step: str | float) -> float:
    """The step in the unit of the recording's time."""
    if recording.time is None:
        raise KbrError(f"data.resample={step} needs time stamps. Name their column (data.time).")
    if recording.has_images or recording.layout is not None:
        raise KbrError(f"data.resample={step} averages numbers, not frames. Leave it out.")
    found = re.fullmatch(r"([\d.]+)\s*([a-z]*)", str(step).strip().lower())
    known = found is not None and found[1].count(".") < 2 and found[2] in ("", *SECONDS)
    size = float(found[1].rstrip(".") or 0) if found and known else 0.0
    if found is None or size <= 0:
        raise KbrError(
            "data.resample must be a number above 0, in the unit of the time column, or like 30s "
            f"({', '.join(SECONDS)}) where that holds dates; got {step!r}."
        )
    if found[2] and recording.time_unit != "s":
        raise KbrError(
            f"data.resample={step} has a unit, and the column of time holds plain numbers. Give "
            "the step in their unit, without a name: data.resample=30."
        )
    size *= SECONDS[found[2] or "s"]
    sampling = recording.sampling()
    if sampling is not None and size < sampling.usual * (1 - ROUNDING):
        raise KbrError(
            f"data.resample={step} is less than the usual step of time, {sampling.usual:.4g}: "
            "averaging makes steps longer, not shorter. Raise it."
        )
    return size


def _means(values: np.ndarray, cell: np.ndarray, total: int) -> np.ndarray:
    """[total, d] means of the finite values [T, d] in every cell; NaN where there are none."""
    there = np.isfinite(values)
    sums, counts = np.zeros((2, total, values.shape[1]))
    np.add.at(sums, cell, np.where(there, values, 0.0))
    np.add.at(counts, cell, there)
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def _moves(
    u: np.ndarray, first: np.ndarray, cell: np.ndarray, starts: np.ndarray, added: np.ndarray
) -> np.ndarray:
    """What moved the mean state of a step to that of the next [total, du].

    Math: u'_k = mean over step k of U - mean over step k - 1 of U, U the running sum of u; divided
          by the same of the row numbers where u is a rate, and not `added` up.
    In a step without rows U lies on the line between its neighbours. Nothing leads to a first step:
    the mean of its own rows stands there.
    """
    steps = np.arange(cell[-1] + 1)
    u = u.copy()
    u[first] = np.where(np.isfinite(u[first]), u[first], 0.0)
    lost, rows = ~np.isfinite(u), np.ones((len(u), 1))
    running = np.cumsum(np.hstack([np.where(lost, 0.0, u), lost, rows]), axis=0)
    there, means = np.unique(cell), _means(running, cell, len(steps))[np.unique(cell)]
    even = np.stack([np.interp(steps, there, column) for column in means.T], axis=1)
    moves, gaps, counts = np.split(np.diff(even, axis=0, prepend=np.nan), [len(u.T), -1], axis=1)
    moves = np.where(gaps > 0, np.nan, np.where(added, moves, moves / counts))
    moves[starts] = _means(u, cell, len(steps))[starts]
    return moves


def _angles(values: np.ndarray, cell: np.ndarray, total: int, turn: float) -> np.ndarray:
    """Circular means, from 0 on where no angle is negative, else around 0."""
    radians = values * (2 * np.pi / turn)
    parts = _means(np.stack([np.sin(radians), np.cos(radians)], 1), cell, total)
    mean: np.ndarray = np.arctan2(*parts.T) * (turn / (2 * np.pi))
    return mean if (values < 0).any() else mean % turn


def _stamps(stamps: np.ndarray | None, of: np.ndarray, later: np.ndarray) -> np.ndarray | None:
    """Time stamps of the file's own kind, so much later than the old rows `of`."""
    if stamps is None:
        return None
    begin: np.ndarray = stamps[of]
    if begin.dtype.kind in "Mm":
        later = (later * 1e9).round().astype("timedelta64[ns]")
    elif begin.dtype.kind == "U":
        dates = zip(map(datetime.fromisoformat, begin), map(float, later), strict=True)
        return np.array([(date + timedelta(seconds=by)).isoformat() for date, by in dates])
    elif begin.dtype.kind in "iuO" and (later == later.round()).all():
        later = later.astype(np.int64)
    moved: np.ndarray = begin + later
    return moved
