"""Sensors: groups of columns of x that are there, or absent, together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError

EACH = "each"  # every column is a sensor of its own
FUSIONS = ("product", "sequence")
Wanted = Mapping[str, Sequence[str | int] | str | int] | str | None
Set = tuple[int, ...]  # numbers of sensors


@dataclass(frozen=True)
class Sensors:
    """Names, and the inner columns of each: an angle has two.

    scales   of the sensors' bandwidths, beside that of x;
    fusion   how the sensors of one row are joined: "product", as one observation, by the product
             of their kernels; "sequence", one after the other, as if independent given z.
    """

    names: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    scales: tuple[float, ...]
    fusion: str = "product"

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
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Sensors":
        """The inverse of `record`; what does not fit together is refused."""
        names = tuple(str(name) for name in record["names"])
        columns = tuple(tuple(int(k) for k in part) for part in record["columns"])
        scales, fusion = tuple(float(scale) for scale in record["scales"]), str(record["fusion"])
        every = sorted(k for part in columns for k in part)
        whole = every == list(range(len(every))) and all(columns) and fusion in FUSIONS
        if not (len(names) == len(columns) == len(scales) > 0 and whole and min(scales) > 0):
            raise KbrError("the file's sensors do not fit together. Train again.")
        return cls(names, columns, scales, fusion)


def sensors_of(wanted: Wanted, names: Sequence[str], circular: Sequence[bool]) -> Sensors:
    """From what a user says: columns by name, or by number, of every sensor.

    Every column belongs to one sensor. `circular` marks the angles among the columns.
    """
    if isinstance(wanted, str):
        if wanted != EACH:
            raise KbrError(
                f"sensors must be {EACH!r} (every column is one) or name the columns of each, "
                f"{{'imu': ['ax', 'ay'], ...}}; got {wanted!r}."
            )
        wanted = {name: [name] for name in names}
    if not isinstance(wanted, Mapping) or not wanted:
        raise KbrError(
            f"sensors must name the columns of each, {{'imu': ['ax', 'ay'], ...}}; got {wanted!r}."
        )
    owner: dict[int, str] = {}
    for sensor, columns in wanted.items():
        for column in [columns] if isinstance(columns, str | int) else list(columns):
            at = _number(column, names, str(sensor))
            if at in owner:
                raise KbrError(
                    f"the column {names[at]!r} is in the sensors {owner[at]!r} and {sensor!r}. "
                    "Give each column to one sensor."
                )
            owner[at] = str(sensor)
    empty = [str(sensor) for sensor in wanted if str(sensor) not in owner.values()]
    left = [name for at, name in enumerate(names) if at not in owner]
    if empty or left:
        what = f"no column in {', '.join(empty)}" if empty else f"no sensor for {', '.join(left)}"
        raise KbrError(f"sensors must hold every column of x once: {what}. Correct sensors.")
    marks = list(circular) or [False] * len(names)
    first = [at + sum(marks[:at]) for at in range(len(names))]
    inner = tuple(
        tuple(k for at in sorted(owner) if owner[at] == sensor for k in _places(first, marks, at))
        for sensor in map(str, wanted)
    )
    return Sensors(tuple(map(str, wanted)), inner, (1.0,) * len(inner))


def _places(first: Sequence[int], marks: Sequence[bool], at: int) -> range:
    return range(first[at], first[at] + 1 + marks[at])


def _number(column: str | int, names: Sequence[str], sensor: str) -> int:
    if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < len(names):
        return column
    if column in names:
        return list(names).index(str(column))
    raise KbrError(
        f"the sensor {sensor!r} names {column!r}, which is no column of x: {', '.join(names)} "
        f"(or by number, 0 to {len(names) - 1}). Correct sensors."
    )
