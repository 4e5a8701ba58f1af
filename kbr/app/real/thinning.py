"""Fewer rows of a recording, evenly: a quick look that still sees all of every sequence."""

from dataclasses import replace

import numpy as np

from kbr.app.recordings.recording import Recording
from kbr.core.errors import KbrError


def thinned(
    recording: Recording, held_out: np.ndarray, most: int, added: tuple[str, ...] = ()
) -> Recording:
    """Every k-th row of all sequences, their last ones among them; k is the least with `most`
    training rows or fewer. Control inputs are averaged over the rows between, or `added` up.
    """
    ends = np.append(np.flatnonzero(np.diff(recording.sequence)), len(recording) - 1)
    behind = ends[recording.sequence] - np.arange(len(recording))  # rows to the sequence's end
    trained, step = behind[~held_out], 1
    if (trained == 0).sum() > most // 2:
        raise KbrError(
            f"data.rows={most} is too few for {(trained == 0).sum()} training sequences: each "
            "needs two rows at least. Raise it."
        )
    while (trained % step == 0).sum() > most:
        step += 1
    if step == 1:
        return recording
    kept = np.flatnonzero(behind % step == 0)
    u = recording.u
    if u is not None:
        begin = np.append(0, kept[:-1] + 1)
        sums = np.add.reduceat(u, begin, axis=0)
        counts = np.diff(np.append(-1, kept))[:, None]
        u = np.where([name in added for name in recording.u_names], sums, sums / counts)
    some = {
        name: values[kept]
        for name in ("x", "z", "sequence", "row", "time", "ids", "stamps")
        if (values := getattr(recording, name)) is not None
    }
    note = f"every {step}th of {len(recording):,} rows is taken (data.rows={most})"
    return replace(recording, **some, u=u, step=None, notes=(*recording.notes, note))
