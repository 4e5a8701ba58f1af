"""What users pass to `fit`, as sequences in inner coordinates with their units.

Arrays, nested lists, tables with named columns, one sequence or a list of them. Rows with missing
values and gaps in time cut a sequence; steps of the dynamics never cross a cut. Controls ride at
the end of the rows of x: a row is what a filter sees in a step.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.sequences import Sequences, training_sequences
from kbr.core.inputs import as_tensor, check_finite
from kbr.core.units.columns import is_several, is_table, names_of, numbered
from kbr.core.units.controls import Controls
from kbr.core.units.layout import Layout, flat_rows, has_parts, laid_out
from kbr.core.units.places import moments
from kbr.core.units.sampling import longer, sampling_of, varying_steps
from kbr.core.units.scaling import Scaling, full_turn
from kbr.core.units.sensors import EACH, Wanted, sensors_of
from kbr.core.units.training_range import ranges_of
from kbr.core.units.units import Units

Names = tuple[str, ...] | None
STEPS = ("equal", "input")  # how steps of time are taken
UNUSUAL = 7.0  # an angle declared in degrees whose values span less may be in radians


@dataclass(frozen=True, eq=False)
class TrainingData(Sequences):
    """Pairs laid end to end in inner coordinates; `shape` is that of one inner observation."""

    shape: tuple[int, ...]
    units: Units


def training_data(
    x: Any,
    z: Any,
    *,
    u: Any = None,
    time: Any = None,
    time_steps: str = "equal",
    circular: Sequence[str] | str = (),
    angle_unit: str = "degrees",
    sensors: Wanted = None,
    standardize: tuple[bool, bool] = (True, True),
    units: Units | None = None,
    settled: bool = False,
    goes_on: bool = False,
) -> TrainingData:
    """Checked, cut and scaled; `standardize` is for x and for z. `units` are taken where given.

    Ranges are those of these rows. With `settled`, what the units say of steps of time is taken
    too. Where the first row `goes_on` from one that is known, the control that led to it counts.
    """
    if units is None and sensors is None and has_parts(x):
        sensors = EACH
    parted = sensors is not None or (units is not None and units.sensors is not None)
    x, layout = flat_rows(x, None if units is None else units.layout)
    (x, names_x), (z, names_z), (u, names_u) = _plain(x, "x"), _plain(z, "z"), _plain(u, "u")
    known = units if settled else None
    x, z, u, steps, gap = _cut(x, z, u, time, time_steps, settled=known, parted=parted)
    flat, latents, lengths, shape = training_sequences(x, z, missing=parted)
    observed = flat.reshape(*flat.shape[:-1], *shape)
    starts = [0, *accumulate(lengths[:-1])][goes_on:]
    if units is None:
        turn, names = full_turn(angle_unit), (names_x, names_z, names_u)
        wanted = (circular,) if isinstance(circular, str) else tuple(circular)
        moves = None if u is None and steps is None else _moves(u, steps, latents, starts)
        parts = (observed, latents, moves)
        units = _units(parts, names, wanted, turn, standardize, gap, steps is not None, layout)
        if sensors is not None:
            if latents.ndim > 2 or len(shape) != 1:
                raise KbrError(
                    "sensors are groups of columns of x [T, dx], of one data set; got x of shape "
                    f"{list(observed.shape)}. Leave sensors out."
                )
            called = layout or Layout.of_numbers(names_x or numbered("x", shape[0]))
            units = replace(units, sensors=sensors_of(sensors, called, units.x.circular))
    inner = units.x.apply(observed, "x").to(observed.dtype)
    flat = inner.reshape(*latents.shape[:-1], -1)
    one = tuple(inner.shape[latents.ndim - 1 :])
    controls = units.controls(None, u, steps, starts)
    if controls is not None:
        flat = torch.cat([flat, controls.to(flat)], -1)
    count = 0 if controls is None else controls.shape[-1]
    kinds: dict[str, Any] = {"controls": count, "sensors": units.sensors}
    inner_z = units.z.apply(latents)
    units = _with_ranges(units, (observed, latents, u), steps, starts)
    return TrainingData(flat, inner_z, lengths, one, units, **kinds)


def _units(
    parts: tuple[Tensor, Tensor, Tensor | None],
    names: tuple[Names, Names, Names],
    wanted: tuple[str, ...],
    turn: float,
    standardize: tuple[bool, bool],
    gap: float | None,
    steps: bool,
    layout: Layout | None,
) -> Units:
    """Fitted to the training rows x, z and controls, of which the last are `steps` of time.

    `wanted` are the names of angles.
    """
    x, z, moves = parts
    batch = z.ndim - 2
    vectors = x.ndim == batch + 2
    x_names = names[0] or (numbered("x", x.shape[-1]) if vectors else ())
    x_names = x_names if layout is None else layout.columns
    z_names = names[1] or numbered("z", z.shape[-1])
    count = 0 if moves is None else moves.shape[-1] - steps
    u_names = names[2] or numbered("u", count)
    unknown = [name for name in wanted if name not in (*x_names, *z_names, *u_names)]
    if unknown:
        also = f" or u ({', '.join(u_names)})" if u_names else ""
        raise KbrError(
            f"circular names {', '.join(map(repr, unknown))}, which is no column of x "
            f"({', '.join(filter(None, x_names)) or 'frames'}) or z ({', '.join(z_names)}){also}. "
            "Correct circular."
        )

    scalings = []
    for values, columns, wide in zip((x, z), (x_names, z_names), standardize, strict=True):
        marks = tuple(name in wanted for name in columns)
        for k, name in enumerate(columns):
            span = _span(values[..., k]) if marks[k] else UNUSUAL
            if turn == 360.0 and span < UNUSUAL:
                warnings.warn(
                    f"the angle '{name}' spans {span:.3g} degrees only: if it is in radians, set "
                    "angle_unit='radians'.",
                    stacklevel=4,
                )
        about: dict[str, Any] = {"batch": batch, "standardize": wide}
        if values is x and layout is not None:
            about["channels"] = layout.channels
        fit = wide or any(marks)
        scaling = Scaling.fit(values, marks, turn, **about) if fit else None
        scalings.append(scaling or Scaling.none(values))
    scale_x, scale_z = scalings
    u = None
    if moves is not None:
        u = Controls.fit(moves, names[2], circular=wanted, turn=turn, time=steps)
    seen = names[0] if layout is None else layout.names
    kinds: dict[str, Any] = {"labels": names[1], "max_gap": gap, "u": u, "layout": layout}
    return Units(scale_x, scale_z, seen, names[1], **kinds)


def _with_ranges(
    units: Units,
    parts: tuple[Tensor, Tensor, Tensor | None],
    steps: np.ndarray | None,
    starts: list[int],
) -> Units:
    """Units that know from where to where the rows x, z and u reach."""
    x, z, u = parts
    moves = None if units.u is None else units.u.given(None, u, steps)
    if moves is not None:
        keep = torch.ones(z.shape[-2], dtype=torch.bool, device=moves.device)
        keep[starts] = False
        moves = moves[..., keep, :]
    x = x.unsqueeze(-1) if x.ndim < z.ndim else x  # one number a row
    return replace(units, ranges=ranges_of(units, x, z, moves))


def _span(values: Tensor) -> float:
    known = values[values.isfinite()]
    return float(known.max() - known.min()) if len(known) else UNUSUAL


def _moves(u: Tensor | None, steps: np.ndarray | None, z: Tensor, starts: list[int]) -> Tensor:
    """Controls, and steps of time, of all rows that do not begin a sequence."""
    parts = [] if u is None else [u.to(z.device, torch.float64)]
    if steps is not None:
        parts.append(torch.from_numpy(steps).to(z.device).unsqueeze(-1))
    keep = torch.ones(z.shape[-2], dtype=torch.bool, device=z.device)
    keep[starts] = False
    moves = torch.cat(parts, -1)[..., keep, :]
    if moves.shape[-2] == 0:
        return torch.cat(parts, -1)[..., :1, :].nan_to_num(0.0)  # no step: refused by the filter
    check_finite(moves, name="u")
    return moves


def _plain(value: Any, letter: str) -> tuple[Any, Names]:
    """Tables as arrays, also inside a list, and the names of their columns."""
    if isinstance(value, list | tuple) and value and (is_table(value[0]) or _is_series(value[0])):
        arrays, names = zip(*(_plain(part, letter) for part in value), strict=True)
        if len(set(names)) > 1:
            raise KbrError(f"all sequences of {letter} need the same columns; got {set(names)}.")
        return list(arrays), names[0]
    if is_table(value):
        return np.stack(laid_out(value)[1], -1), tuple(map(str, names_of(value)))
    return value.to_numpy() if _is_series(value) else value, None


def _is_series(value: Any) -> bool:
    return hasattr(value, "to_numpy") and not is_table(value)


def _cut(
    x: Any, z: Any, u: Any, time: Any, time_steps: str, *, settled: Units | None, parted: bool
) -> tuple[Any, Any, Tensor | None, np.ndarray | None, float | None]:
    """Sequences cut at missing values and at gaps in time; of a `parted` x some may be missing.

    Also their controls laid end to end, the steps of time where they are an input, and the limit
    of a gap, which is that of the `settled` units where they have one.
    """
    if time_steps not in STEPS:
        raise KbrError(f"time_steps must be one of {', '.join(STEPS)}; got {time_steps!r}.")
    if time_steps == "input" and time is None:
        raise KbrError("time_steps='input' makes steps of time an input: pass time=... too.")
    several = is_several(x) and is_several(z)
    if several and len(x) != len(z):
        return x, z, None, None, None  # refused, in words, where shapes are checked
    xs, zs = (list(x), list(z)) if several else ([x], [z])
    times, us = _each(time, "time", len(xs), several), _each(u, "u", len(xs), several)
    dates = None if settled is None else settled.source.get("dates")
    times = [None if part is None else moments(part, dates) for part in times]
    pairs = [(as_tensor(a, name="x"), as_tensor(b, name="z")) for a, b in zip(xs, zs, strict=True)]
    moves = [
        None if part is None else _control_rows(part, b)
        for part, (_, b) in zip(us, pairs, strict=True)
    ]
    plain = all(b.ndim in (1, 2) and a.ndim and len(a) == len(b) for a, b in pairs)
    if not plain:
        if time is not None:
            raise KbrError("time goes with sequences x [T, ...] and z [T, dz]; leave it out here.")
        return x, z, moves[0], None, None
    sampling, is_input = None, False
    if time is not None:
        ids = np.repeat(np.arange(len(times)), [len(t) for t in times])
        stamps = np.concatenate(times)
        known = None if settled is None else settled.max_gap
        sampling = sampling_of(stamps, ids, known)
        if settled is not None:
            is_input = time_steps == "input"
        elif time_steps == "input":
            wide = varying_steps(stamps, ids)
            if wide is not None and wide.irregular:
                sampling, is_input = wide, True
    limit = None if sampling is None else sampling.limit
    pieces: list[tuple[Any, ...]] = []
    lost, rows, unknown = 0, 0, 0
    for (a, b), stamps, move in zip(pairs, times, moves, strict=True):
        if stamps is not None and len(stamps) != len(b):
            raise KbrError(f"time must hold one value a row; got {len(stamps)} for {len(b)} rows.")
        good = _complete(b) if parted else _complete(a) & _complete(b)
        starts = np.zeros(len(b), dtype=bool)
        steps = np.full(len(b), np.nan)
        if stamps is not None:
            steps[1:] = np.diff(stamps)
            if (steps[1:] <= 0).any() or not np.isfinite(stamps).all():
                raise KbrError("time must grow from row to row of a sequence. Sort the rows.")
            if limit is not None:
                starts[1:] = longer(steps[1:], limit, stamps[1:])
        if move is not None:
            absent = ~_complete(move)
            unknown += int(absent[1:].sum())
            starts |= absent
        kept = np.flatnonzero(good)
        cuts = np.flatnonzero((np.diff(kept) > 1) | starts[kept[1:]]) + 1
        runs = [slice(run[0], run[-1] + 1) for run in np.split(kept, cuts) if len(run)]
        pieces += [
            (a[run], b[run], move if move is None else move[run], steps[run]) for run in runs
        ]
        lost, rows = lost + len(good) - len(kept), rows + len(good)
    if not pieces and rows:
        where = "z" if parted else "x or z"
        raise KbrError(f"every one of the {rows} training rows has a missing value in {where}.")
    if lost:
        warnings.warn(
            f"{lost} of {rows} training rows have missing values: they are left out, and the "
            f"dynamics are learned from {len(pieces)} piece(s) between them.",
            stacklevel=4,
        )
    if unknown:
        warnings.warn(
            f"u is missing in {unknown} of {rows} training rows: the dynamics are not learned from "
            "the steps to them.",
            stacklevel=4,
        )
    if time_steps == "input" and not is_input:
        warnings.warn(
            "steps of time are even, so nothing can be learned from them: time_steps='input' is "
            "left out.",
            stacklevel=4,
        )
    if sampling is not None and (sampling.gaps or (sampling.irregular and not is_input)):
        taken = "an input of the dynamics" if is_input else "equal"
        warnings.warn(
            f"{'sampling is irregular: ' if sampling.irregular else ''}steps of time from "
            f"{sampling.shortest:.3g} to {sampling.longest:.3g}, usually {sampling.usual:.3g}; the "
            f"filter takes all steps up to {sampling.limit:.3g} as {taken}, and {sampling.gaps} "
            "longer one(s) as gaps. Resample the recording evenly where that is wrong"
            f"{'' if is_input else ', or set time_steps=input'}.",
            stacklevel=4,
        )
    if not pieces:
        return x, z, None, None, limit
    one = len(pieces) == 1 and not several
    xs, zs, us, dts = ([piece[k] for piece in pieces] for k in range(4))
    return (
        xs[0] if one else xs,
        zs[0] if one else zs,
        None if us[0] is None else torch.cat(us),
        np.concatenate(dts) if is_input else None,
        limit,
    )


def _each(value: Any, name: str, count: int, several: bool) -> list[Any]:
    """One for each sequence."""
    if value is None:
        return [None] * count
    parts = list(value) if several else [value]
    if len(parts) != count:
        raise KbrError(f"{name} must be as many sequences as x; got {len(parts)} and {count}.")
    return parts


def _control_rows(u: Any, z: Tensor) -> Tensor:
    """Controls [*b T du], one row for each of z."""
    values = as_tensor(u, name="u").double()
    lead = z.shape if z.ndim == 1 else z.shape[:-1]
    values = values.unsqueeze(-1) if values.shape == lead else values
    if values.shape[:-1] != lead or not values.shape[-1]:
        raise KbrError(
            f"u must have shape {[*lead, 'du']}, a row of control inputs for each row of z; got "
            f"{list(values.shape)}."
        )
    return values


def _complete(values: Tensor) -> np.ndarray:
    """[T] bool: nothing in the row is missing or infinite."""
    flat = values.flatten(1) if values.ndim > 1 else values.unsqueeze(-1)
    return flat.isfinite().all(1).cpu().numpy()
