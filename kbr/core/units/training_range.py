"""The range of a filter's training data, and which rows leave it, by the names of its units."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr.core.inputs import as_tensor
from kbr.core.io.file_rows import FileRows
from kbr.core.units.columns import is_table, numbered
from kbr.core.units.outside import Outside
from kbr.core.units.ranges import Range, Ranges
from kbr.core.units.units import Units


def ranges_of(units: Units, x: Any, z: Tensor, u: Tensor | None = None) -> Ranges:
    """Of training rows as they were recorded: x [*b n d], z [*b n dz], controls in use [*b k du].

    Frames have none, and neither have angles and the pixels among other columns.
    """
    seen, moves = None, None
    if isinstance(x, Tensor) and x.ndim == z.ndim:
        marks = units.x.circular or (False,) * x.shape[-1]
        names = units.layout.columns if units.layout is not None else ("x",) * x.shape[-1]
        seen = Range.of(x, [a or not name for a, name in zip(marks, names, strict=True)])
    if u is not None and units.u is not None:
        moves = Range.of(u, units.u.scaling.circular)
    return Ranges(seen, Range.of(z, units.z.circular), moves)


def outside_of(
    units: Units,
    x: Any,
    u: Any = None,
    steps: np.ndarray | None = None,
    starts: Sequence[int] = (),
) -> Outside | None:
    """Which columns of rows x [*b *s T d], and of their controls, leave the training range.

    `steps` and `starts` as for `Controls.inner`. None where the range is not known, as of frames.
    """
    ranges = units.ranges or Ranges()
    found = moved = None
    if ranges.x is not None and not isinstance(x, FileRows):
        rows = as_tensor(units.observed(x) if is_table(x) else x, name="x")
        names = observed_names(units)
        if len(names) == 1 and rows.shape[-1:] != (1,):
            rows = rows.unsqueeze(-1)
        found = ranges.x.outside(rows, names)
    if ranges.u is not None and units.u is not None:
        moves = units.u.given(x, u, steps)
        if moves is not None:
            moves = moves.double().clone()
            moves[..., list(starts), :] = torch.nan  # what leads to a first row is not used
            moved = ranges.u.outside(moves, units.u.columns)
    if found is None or moved is None:
        return moved if found is None else found
    return found.beside(moved) if found.rows.shape[:-1] == moved.rows.shape[:-1] else found


def truths_outside(units: Units, z: Tensor) -> Outside | None:
    """Which columns of latents [*b *s T dz] leave the training range; None where it is not known.

    Steps whose truth is not known (NaN) are not outside.
    """
    if units.ranges is None or units.ranges.z is None:
        return None
    names = units.latent_names(z.shape[-1])
    if units.ranges.z.low.ndim == 1:  # one data set: the steps that have a truth are counted
        z = z[z.isfinite().all(-1)]
    found = units.ranges.z.outside(z, names)
    return None if found is None else replace(found, truths=True)


def observed_names(units: Units) -> tuple[str, ...]:
    """The columns of x that have a range, or might."""
    count = 0 if units.ranges is None or units.ranges.x is None else units.ranges.x.low.shape[-1]
    names = units.x_names if units.layout is None else units.layout.columns
    return names or numbered("x", count)
