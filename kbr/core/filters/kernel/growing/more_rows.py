"""Rows that are added to those of a fitted filter, in its units and its form.

Columns by their names, cut at missing values and at gaps of time as the first fit has them, with
the history and the rates that its rows have.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.engines.local import MEDIUM
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.storing.storage import FittedData
from kbr.core.filters.lifting import differences, pace_of, windows
from kbr.core.filters.sequences import held_sequences, split
from kbr.core.filters.training_data import TrainingData, training_data
from kbr.core.inputs import as_tensor
from kbr.core.units.columns import is_table, names_of
from kbr.core.units.units import Units

Rows = tuple[Any, Any, Any, Any]  # x, z, u and time; of several sequences, lists


def with_rows(
    fitted: Fitted, x: Any, z: Any, *, u: Any = None, time: Any = None, continues: bool = False
) -> FittedData:
    """The filter's data with these rows after its own."""
    data, units = fitted.data, fitted.units
    x, z, u, time = recorded(units, x, z, u, time)
    batch = data.z.shape[:-2]
    if batch and (isinstance(z, list) or as_tensor(z, name="z").shape[: len(batch)] != batch):
        raise KbrError(
            f"this filter holds {batch.numel()} data sets: pass z {[*batch, 'T', 'dz']}, and x "
            "like it, rows for each of them."
        )
    kept = units.sensors is not None or _has_first_row(x)  # a row without some sensors counts
    goes_on = continues and kept and _has_first_row(z)
    timed = units.u is not None and units.u.time
    if goes_on:
        _check_last_row(data, timed=timed)
    about = {"u": u, "time": time, "time_steps": "input" if timed else "equal"}
    more = training_data(x, z, units=units, settled=True, goes_on=goes_on, **about)
    _check_shapes(fitted, more)
    before, new = units.ranges, more.units.ranges
    if data.units is not None and before is not None and new is not None:
        data = replace(data, units=replace(data.units, ranges=before.joined(new)))
    return joined(data, _lifted(more, data, units, goes_on), goes_on)


def joined(data: FittedData, more: TrainingData, goes_on: bool) -> FittedData:
    """Rows end to end; the first new one belongs to the last sequence where it goes on."""
    k, lengths = len(data.lengths), [*data.lengths, *more.lengths]
    if goes_on:
        lengths[k - 1 : k + 1] = [lengths[k - 1] + lengths[k]]
    x, z = (torch.cat([a, b.to(a)], -2) for a, b in ((data.x, more.x), (data.z, more.z)))
    return replace(data, x=x, z=z, lengths=lengths, basis=data.basis or data.z.shape[-2])


def recorded(units: Units, x: Any, z: Any, u: Any = None, time: Any = None) -> Rows:
    """Tables as arrays, their columns found by name; sequences that a table states as lists."""
    if any(isinstance(rows, list | tuple) and any(map(is_table, rows)) for rows in (x, z)):
        if len(x) != len(z):
            raise KbrError(f"x and z must be as many sequences; got {len(x)} and {len(z)}.")
        given = ([None] * len(x) if value is None else value for value in (u, time))
        each = [recorded(units, *parts) for parts in zip(x, z, *given, strict=True)]
        return _flat(each)
    table = x if is_table(x) else None
    x = x if table is None else units.observed(table)
    z = units.latents(z) if is_table(z) else z
    if units.u is not None and (is_table(u) or (u is None and table is not None)):
        u = units.u.recorded(table, u)
    if table is None:
        return x, z, u, time
    name = units.column("time")
    if time is None and name in [str(column) for column in names_of(table)]:
        time = table[name]
    groups, _ = units.sequences(table, len(x), time)
    if len(groups) == 1:
        return x, z, u, time
    values = (np.asarray(part) if part is not None else None for part in (x, z, u, time))
    return tuple(part if part is None else [part[rows] for rows in groups] for part in values)  # type: ignore[return-value]


def _flat(each: list[Rows]) -> Rows:
    """One list of sequences of x, of z, of u and of time, from parts that are one or several."""
    columns: list[list[Any]] = [[], [], [], []]
    for part in each:
        several = isinstance(part[0], list)
        for column, rows in zip(columns, part, strict=True):
            count = len(part[0]) if rows is None and several else 1
            column += rows if isinstance(rows, list) else [rows] * count
    x, z, u, time = columns
    return x, z, None if u[0] is None else u, None if time[0] is None else time


def _has_first_row(rows: Any) -> bool:
    """Whether nothing is missing in the first row, of the first of several sequences."""
    several = isinstance(rows, list | tuple) and getattr(rows[0], "ndim", 0) > 0
    first = as_tensor(rows[0] if several else rows, name="the first row")[:1]
    return bool(first.isfinite().all())


def _check_last_row(data: FittedData, *, timed: bool) -> None:
    """Whether the filter still has the last row that it was given, and all that a step needs."""
    if timed:
        raise KbrError(
            "steps of time are an input of this filter, which does not keep the time of its last "
            "row. Pass continues=False: one step is not learned then."
        )
    if data.basis is None and data.z.shape[-2] > MEDIUM and held_sequences(data.lengths):
        raise KbrError(
            "fit has put the sequences of this filter in another order, those that it is measured "
            "on last. Pass continues=False: one step is not learned then."
        )


def _check_shapes(fitted: Fitted, more: TrainingData) -> None:
    data = fitted.data
    batch, columns = tuple(data.z.shape[:-2]), data.z.shape[-1] - data.rates
    if tuple(more.shape) != tuple(fitted.one):
        raise KbrError(
            f"x must have observations of shape {list(fitted.one)}, as in training; got "
            f"{list(more.shape)}."
        )
    if more.z.shape[-1] != columns or tuple(more.z.shape[:-2]) != batch:
        raise KbrError(
            f"z must have shape {[*batch, 'T', columns]}, as in training; got {list(more.z.shape)}."
        )


def _lifted(more: TrainingData, data: FittedData, units: Units, goes_on: bool) -> TrainingData:
    """With the history and the rates that the filter's rows have, in the scale of those."""
    if data.history > 1:
        observed, moves = split(more.x, more.controls)
        first, *parts = torch.split(observed, more.lengths, -2)
        recent = _last_rows(data).to(first) if goes_on else first[..., :0, :]
        begun = windows(torch.cat([recent, first], -2), data.history)
        parts = [
            begun[..., recent.shape[-2] :, :],
            *(windows(part, data.history) for part in parts),
        ]
        x = torch.cat(parts, -2)
        more = replace(more, x=x if moves is None else torch.cat([x, moves], -1))
    if data.rates:
        first_rows, columns = data.founding, more.z.shape[-1]
        known = first_rows.z[..., :columns]
        middle, factor = pace_of(differences(known, first_rows.lengths, units.z), known, units.z)
        z, lengths = more.z, more.lengths
        if goes_on:
            z = torch.cat([data.z[..., -1:, :columns], z], -2)
            lengths = [lengths[0] + 1, *lengths[1:]]
        step = differences(z, lengths, units.z)[..., int(goes_on) :, :]
        more = replace(more, z=torch.cat([more.z, (step - middle) * factor], -1))
    return more


def _last_rows(data: FittedData) -> Tensor:
    """The last observations of the last sequence, as many as the next window wants."""
    window = data.observed[..., -1, :]
    rows = window.reshape(*window.shape[:-1], data.history, -1).flip(-2)
    return rows[..., data.history - min(data.history - 1, data.lengths[-1]) :, :]
