"""What users pass to `fit`, as sequences in inner coordinates with their units.

Arrays, nested lists, tables with named columns, one sequence or a list of them. Rows with missing
values and gaps in time cut a sequence; steps of the dynamics never cross a cut.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.sequences import Sequences, training_sequences
from kbr.core.inputs import as_tensor
from kbr.core.units.columns import is_table, names_of, numbers
from kbr.core.units.places import moments
from kbr.core.units.sampling import longer, sampling_of
from kbr.core.units.scaling import Scaling, full_turn
from kbr.core.units.units import Units

Names = tuple[str, ...] | None
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
    time: Any = None,
    circular: Sequence[str] | str = (),
    angle_unit: str = "degrees",
    standardize: tuple[bool, bool] = (True, True),
    units: Units | None = None,
) -> TrainingData:
    """Checked, cut and scaled; `standardize` is for x and for z. `units` are taken where given."""
    (x, names_x), (z, names_z) = _plain(x, "x"), _plain(z, "z")
    x, z, gap = _cut(x, z, time)
    flat, latents, lengths, shape = training_sequences(x, z)
    observed = flat.reshape(*flat.shape[:-1], *shape)
    if units is None:
        turn, names = full_turn(angle_unit), (names_x, names_z)
        wanted = (circular,) if isinstance(circular, str) else tuple(circular)
        units = _units((observed, latents), names, wanted, turn, standardize, gap)
    inner = units.x.apply(observed, "x").to(observed.dtype)
    flat = inner.reshape(*latents.shape[:-1], -1)
    one = tuple(inner.shape[latents.ndim - 1 :])
    return TrainingData(flat, units.z.apply(latents), lengths, one, units)


def _units(
    pair: tuple[Tensor, Tensor],
    names: tuple[Names, Names],
    wanted: tuple[str, ...],
    turn: float,
    standardize: tuple[bool, bool],
    gap: float | None,
) -> Units:
    """Fitted to the training rows x and z; `wanted` are the names of angles."""
    x, z = pair
    batch = z.ndim - 2
    vectors = x.ndim == batch + 2
    x_names = names[0] or (_numbered("x", x.shape[-1]) if vectors else ())
    z_names = names[1] or _numbered("z", z.shape[-1])
    unknown = [name for name in wanted if name not in (*x_names, *z_names)]
    if unknown:
        raise KbrError(
            f"circular names {', '.join(map(repr, unknown))}, which is no column of x "
            f"({', '.join(x_names) or 'frames'}) or z ({', '.join(z_names)}). Correct circular."
        )
    scalings = []
    for values, columns, wide in zip(pair, (x_names, z_names), standardize, strict=True):
        marks = tuple(name in wanted for name in columns)
        for k, name in enumerate(columns):
            span = float(values[..., k].max() - values[..., k].min()) if marks[k] else UNUSUAL
            if turn == 360.0 and span < UNUSUAL:
                warnings.warn(
                    f"the angle '{name}' spans {span:.3g} degrees only: if it is in radians, set "
                    "angle_unit='radians'.",
                    stacklevel=4,
                )
        fit = wide or any(marks)
        scaling = Scaling.fit(values, marks, turn, batch=batch, standardize=wide) if fit else None
        scalings.append(scaling or Scaling.none(values))
    scale_x, scale_z = scalings
    return Units(scale_x, scale_z, names[0], names[1], labels=names[1], max_gap=gap)


def _numbered(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}_{k + 1}" for k in range(count))


def _plain(value: Any, letter: str) -> tuple[Any, Names]:
    """Tables as arrays, also inside a list, and the names of their columns."""
    if isinstance(value, list | tuple) and value and (is_table(value[0]) or _is_series(value[0])):
        arrays, names = zip(*(_plain(part, letter) for part in value), strict=True)
        if len(set(names)) > 1:
            raise KbrError(f"all sequences of {letter} need the same columns; got {set(names)}.")
        return list(arrays), names[0]
    if is_table(value):
        columns = {str(name): numbers(value[name], str(name)) for name in names_of(value)}
        return np.stack(list(columns.values()), -1), tuple(columns)
    return value.to_numpy() if _is_series(value) else value, None


def _is_series(value: Any) -> bool:
    return hasattr(value, "to_numpy") and not is_table(value)


def _cut(x: Any, z: Any, time: Any) -> tuple[Any, Any, float | None]:
    """Sequences cut at rows with missing values and at gaps in time; the limit of a gap."""
    several = _several(x) and _several(z)
    if several and len(x) != len(z):
        return x, z, None  # refused, in words, where shapes are checked
    xs, zs = (list(x), list(z)) if several else ([x], [z])
    times: list[Any] = [None] * len(xs)
    if time is not None:
        times = [moments(part) for part in (time if several else [time])]
    if len(times) != len(xs):
        raise KbrError(f"time must be as many sequences as x; got {len(times)} and {len(xs)}.")
    pairs = [(as_tensor(a, name="x"), as_tensor(b, name="z")) for a, b in zip(xs, zs, strict=True)]
    plain = all(b.ndim in (1, 2) and a.ndim and len(a) == len(b) for a, b in pairs)
    if not plain:
        if time is not None:
            raise KbrError("time goes with sequences x [T, ...] and z [T, dz]; leave it out here.")
        return x, z, None
    sampling = None
    if time is not None:
        ids = np.repeat(np.arange(len(times)), [len(t) for t in times])
        sampling = sampling_of(np.concatenate(times), ids)
    limit = None if sampling is None else sampling.limit
    pieces, lost, rows = [], 0, 0
    for (a, b), stamps in zip(pairs, times, strict=True):
        if stamps is not None and len(stamps) != len(b):
            raise KbrError(f"time must hold one value a row; got {len(stamps)} for {len(b)} rows.")
        good = _complete(a) & _complete(b)
        starts = np.zeros(len(b), dtype=bool)
        if stamps is not None:
            steps = np.diff(stamps)
            if (steps <= 0).any() or not np.isfinite(stamps).all():
                raise KbrError("time must grow from row to row of a sequence. Sort the rows.")
            if limit is not None:
                starts[1:] = longer(steps, limit, stamps[1:])
        kept = np.flatnonzero(good)
        cuts = np.flatnonzero((np.diff(kept) > 1) | starts[kept[1:]]) + 1
        runs = [run for run in np.split(kept, cuts) if len(run)]
        pieces += [(a[run[0] : run[-1] + 1], b[run[0] : run[-1] + 1]) for run in runs]
        lost, rows = lost + len(good) - len(kept), rows + len(good)
    if not pieces and rows:
        raise KbrError(f"every one of the {rows} training rows has a missing value in x or z.")
    if lost:
        warnings.warn(
            f"{lost} of {rows} training rows have missing values: they are left out, and the "
            f"dynamics are learned from {len(pieces)} piece(s) between them.",
            stacklevel=4,
        )
    if sampling is not None and (sampling.irregular or sampling.gaps):
        warnings.warn(
            f"{'sampling is irregular: ' if sampling.irregular else ''}steps of time from "
            f"{sampling.shortest:.3g} to {sampling.longest:.3g}, usually {sampling.usual:.3g}; the "
            f"filter takes all steps up to {sampling.limit:.3g} as equal, and {sampling.gaps} "
            "longer one(s) as gaps. Resample the recording evenly where that is wrong.",
            stacklevel=4,
        )
    if len(pieces) <= 1 and not several:
        return (*pieces[0], limit) if pieces else (x, z, limit)
    return [a for a, _ in pieces], [b for _, b in pieces], limit


def _several(value: Any) -> bool:
    """A list of arrays is several sequences; nested lists of numbers are one array."""
    arrays = (Tensor, np.ndarray)
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], arrays)


def _complete(values: Tensor) -> np.ndarray:
    """[T] bool: nothing in the row is missing or infinite."""
    flat = values.flatten(1) if values.ndim > 1 else values.unsqueeze(-1)
    return flat.isfinite().all(1).cpu().numpy()
