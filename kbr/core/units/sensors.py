"""Sensors: groups of columns of x, or frames, that are there, or absent, together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.units.layout import Layout, Shape

EACH = "each"  # every column is a sensor of its own
FUSIONS = ("product", "sequence")
Wanted = Mapping[str, Sequence[str | int] | str | int] | str | None
Set = tuple[int, ...]  # numbers of sensors


@dataclass(frozen=True)
class Sensors:
    """Names, and the inner columns of each: an angle has two.

    scales   of the sensors' bandwidths, beside that of x;
    fusion   how the sensors of one row are joined: "product", as one observation, by the product
             of their kernels; "sequence", one after the other, as if independent given z;
    shapes   (c, h, w) of those that see frames, () of those that see numbers.
    """

    names: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    scales: tuple[float, ...]
    fusion: str = "product"
    shapes: tuple[Shape, ...] = ()

    @property
    def frames(self) -> dict[str, Shape]:
        """The sensors that see frames, and the shape of these."""
        return {name: s for name, s in zip(self.names, self.shapes, strict=False) if s}

    def present(self, x: Tensor) -> Bool[Tensor, "*s g"]:
        """Which sensors of inner rows x [*s dx] are there: all of their columns."""
        there = x.isfinite()
        return torch.stack([there[..., list(columns)].all(-1) for columns in self.columns], -1)

    def filled(self, x: Float[Tensor, "*s dx"]) -> Float[Tensor, "*s k"]:
        """What a network sees of inner rows: zeros for absent sensors, then a flag for each."""
        there = self.present(x)
        known = torch.zeros_like(x)
        for k, columns in enumerate(map(list, self.columns)):
            known[..., columns] = torch.where(there[..., k : k + 1], x[..., columns], 0.0)
        return torch.cat([known, there.to(x)], -1)

    @property
    def width(self) -> int:
        """How many inner columns there are."""
        return sum(map(len, self.columns))

    def of(self, some: Set) -> list[int]:
        """The columns of these sensors."""
        return [column for k in some for column in self.columns[k]]

    def scaled(self, sensor: int, factor: float) -> "Sensors":
        """The same with another bandwidth of one sensor."""
        scales = [s * factor if k == sensor else s for k, s in enumerate(self.scales)]
        return replace(self, scales=tuple(scales))

    def record(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "names": list(self.names),
            "columns": [list(columns) for columns in self.columns],
            "scales": list(self.scales),
            "fusion": self.fusion,
            "shapes": [list(shape) for shape in self.shapes],
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Sensors":
        """The inverse of `record`; what does not fit together is refused."""
        names = tuple(str(name) for name in record["names"])
        columns = tuple(tuple(int(k) for k in part) for part in record["columns"])
        scales, fusion = tuple(float(scale) for scale in record["scales"]), str(record["fusion"])
        shapes = tuple(tuple(int(size) for size in shape) for shape in record.get("shapes", ()))
        every = sorted(k for part in columns for k in part)
        whole = every == list(range(len(every))) and all(columns) and fusion in FUSIONS
        if not (len(names) == len(columns) == len(scales) > 0 and whole and min(scales) > 0):
            raise KbrError("the file's sensors do not fit together. Train again.")
        fits = all(not s or math.prod(s) == len(c) for s, c in zip(shapes, columns, strict=False))
        if len(shapes) not in (0, len(names)) or not fits:
            raise KbrError("the file's sensors do not fit their frames. Train again.")
        return cls(names, columns, scales, fusion, shapes)


def sensors_of(wanted: Wanted, layout: Layout, circular: Sequence[bool]) -> Sensors:
    """From what a user says: columns by name, or by number, of every sensor.

    Every column belongs to one sensor; frames are one by themselves. `circular` marks the angles
    among the flat columns.
    """
    if isinstance(wanted, str):
        if wanted != EACH:
            raise KbrError(
                f"sensors must be {EACH!r} (every column is one) or name the columns of each, "
                f"{{'imu': ['ax', 'ay'], ...}}; got {wanted!r}."
            )
        wanted = {name: [name] for name in layout.names}
    if not isinstance(wanted, Mapping) or not wanted:
        raise KbrError(
            f"sensors must name the columns of each, {{'imu': ['ax', 'ay'], ...}}; got {wanted!r}."
        )
    owner: dict[int, str] = {}
    shapes = {str(sensor): _shape(sensor, _listed(some), layout) for sensor, some in wanted.items()}
    for sensor, some in wanted.items():
        for at in (at for column in _listed(some) for at in _numbers(column, layout, str(sensor))):
            if at in owner:
                raise KbrError(
                    f"the column {_label(layout, at)!r} is in the sensors {owner[at]!r} and "
                    f"{sensor!r}. Give each column to one sensor."
                )
            owner[at] = str(sensor)
    empty = [sensor for sensor in shapes if sensor not in owner.values()]
    left = dict.fromkeys(_label(layout, at) for at in range(layout.width) if at not in owner)
    if empty or left:
        what = f"no column in {', '.join(empty)}" if empty else f"no sensor for {', '.join(left)}"
        raise KbrError(f"sensors must hold every column of x once: {what}. Correct sensors.")
    marks = list(circular) or [False] * layout.width
    first = list(accumulate((1 + mark for mark in marks), initial=0))
    places: dict[str, list[int]] = {sensor: [] for sensor in shapes}
    for at in sorted(owner):
        places[owner[at]] += range(first[at], first[at + 1])
    return Sensors(
        tuple(shapes),
        tuple(map(tuple, places.values())),
        (1.0,) * len(shapes),
        shapes=tuple(shapes.values()) if any(shapes.values()) else (),
    )


def _listed(columns: Sequence[str | int] | str | int) -> list[str | int]:
    return [columns] if isinstance(columns, str | int) else list(columns)


def _shape(sensor: object, columns: list[str | int], layout: Layout) -> Shape:
    """That of the frames which are all of a sensor; () where it has none."""
    known = dict(zip(layout.names, layout.shapes, strict=True))
    frames = [str(column) for column in columns if len(known.get(str(column), ())) == 3]
    if frames and len(columns) > 1:
        raise KbrError(
            f"the sensor {sensor!r} holds the frames {frames[0]!r} and more. Give frames a sensor "
            "of their own."
        )
    return known[frames[0]] if frames else ()


def _label(layout: Layout, at: int) -> str:
    owner = (name for name, span in layout.spans.items() if at in span)
    return layout.columns[at] or next(owner)


def _numbers(column: str | int, layout: Layout, sensor: str) -> Sequence[int]:
    """Where a column, or all of an entry with several, lies in a flat row."""
    if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < layout.width:
        return (column,)
    if column in layout.spans:
        return layout.spans[str(column)]
    if column and column in layout.columns:
        return (layout.columns.index(str(column)),)
    raise KbrError(
        f"the sensor {sensor!r} names {column!r}, which is no column of x: "
        f"{', '.join(layout.names)} (or by number, 0 to {layout.width - 1}). Correct sensors."
    )
