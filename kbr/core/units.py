"""What a filter's numbers mean: names, scaling and angles of x and z, and where sequences end.

A fitted filter keeps its `Units`, also in its file: whoever loads it passes observations and gets
beliefs in the units of the recording it was trained on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.file_rows import FileRows
from kbr.core.inputs import ArrayLike, as_tensor
from kbr.core.scaling import Scaling

SOURCE = ("sequence", "time", "file", "resize", "channels")  # how new files are read


@dataclass(frozen=True, eq=False)
class Units:
    """Scaling of x and z; names of their columns, and labels of z with units, where there are any.

    max_gap   a longer step of time begins a new sequence;
    source    how new recordings are read, as plain values: see SOURCE.
    """

    x: Scaling
    z: Scaling
    x_names: tuple[str, ...] | None = None
    z_names: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    max_gap: float | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def none(cls, like: Tensor) -> "Units":
        """Numbers without names, taken as they are."""
        return cls(Scaling.none(like), Scaling.none(like))

    def observations(self, x: Any) -> Tensor | FileRows:
        """x in inner coordinates: an array, a table or mapping with the columns by name, frames."""
        if isinstance(x, FileRows):
            return x.scaled(self.x.mean, self.x.scale)
        if is_table(x):
            x = self._columns(x)
        return self.x.apply(as_tensor(x, name="x").to(self.x.mean.device))

    def place(self, row: Any) -> tuple[Any, float | None]:
        """Sequence and time that a row of named columns states; None where it says nothing."""
        if not is_table(row):
            return None, None
        names = set(names_of(row))
        found = [self.source.get(key) for key in ("sequence", "time")]
        sequence, time = (row[name] if name in names else None for name in found)
        return sequence, None if time is None else seconds(time)

    def starts_anew(self, before: tuple[Any, float | None], now: tuple[Any, float | None]) -> bool:
        """Whether a sequence ends between two places: by its name, or by a gap in time."""
        if before[0] is not None and now[0] is not None and before[0] != now[0]:
            return True
        if before[1] is None or now[1] is None or self.max_gap is None:
            return False
        if now[1] <= before[1]:
            raise KbrError(
                f"time must grow from row to row of a sequence; got {now[1]:g} after "
                f"{before[1]:g}. Sort the rows by time, or name the sequences."
            )
        return now[1] - before[1] > self.max_gap

    def to(self, device: str | torch.device) -> "Units":
        return replace(self, x=self.x.to(device), z=self.z.to(device))

    def member(self, index: int) -> "Units":
        """Those of one of the data sets fitted together."""
        return replace(self, x=self.x.member(index), z=self.z.member(index))

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        names = {name: _listed(getattr(self, name)) for name in ("x_names", "z_names", "labels")}
        return {
            "x": self.x.record(),
            "z": self.z.record(),
            **names,
            "max_gap": self.max_gap,
            "source": dict(self.source),
        }

    @classmethod
    def from_record(cls, found: Mapping[str, Any]) -> "Units":
        """The inverse of `record`."""
        try:
            names = {name: _named(found[name]) for name in ("x_names", "z_names", "labels")}
            return cls(
                Scaling.from_record(found["x"]),
                Scaling.from_record(found["z"]),
                **names,
                max_gap=None if found["max_gap"] is None else float(found["max_gap"]),
                source={str(key): value for key, value in found["source"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, KbrError):
                raise
            raise KbrError(
                f"the file does not say in which units its filter works ({error!r}). Train again."
            ) from error

    def _columns(self, table: Any) -> ArrayLike:
        """The columns of x out of a table [T] or of one row, in the order of training."""
        if self.x_names is None:
            raise KbrError(
                "this filter knows no column names: it was trained on arrays. Pass x as an array."
            )
        there = [str(name) for name in names_of(table)]
        lost = [name for name in self.x_names if name not in there]
        if lost:
            raise KbrError(
                f"x has no column {', '.join(map(repr, lost))}; the filter was trained on "
                f"{', '.join(self.x_names)}. There are: {', '.join(there)}."
            )
        columns = [numbers(table[name], name) for name in self.x_names]
        return np.stack(columns, -1)


def is_table(value: Any) -> bool:
    """Whether values are reached by the names of columns: a mapping, a DataFrame, a row of one."""
    if isinstance(value, Tensor):  # asked at every step of a stream: the usual answer first
        return False
    if isinstance(value, Mapping) or hasattr(value, "columns"):
        return True
    named = hasattr(value, "to_numpy") and hasattr(value, "keys")
    return named and all(isinstance(key, str) for key in value.keys())  # noqa: SIM118


def names_of(table: Any) -> list[Any]:
    return list(table.columns if hasattr(table, "columns") else table.keys())


def numbers(column: Any, name: str) -> np.ndarray:
    """A column, or one cell, as float64; None and empty text are missing."""
    array = np.asarray(column)
    try:
        if array.dtype.kind in "OUS":
            blank = [cell is None or str(cell).strip() == "" for cell in array.reshape(-1)]
            cells = [
                np.nan if empty else float(cell)
                for cell, empty in zip(array.reshape(-1), blank, strict=True)
            ]
            return np.array(cells, dtype=np.float64).reshape(array.shape)
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise KbrError(f"column '{name}' must hold numbers; {error}.") from error


def seconds(value: Any) -> float:
    """A time stamp as a number: numbers as they are, dates in seconds."""
    if hasattr(value, "timestamp"):
        return float(value.timestamp())
    stamp = np.asarray(value)
    if stamp.dtype.kind == "M":
        return float(stamp.astype("datetime64[us]").astype(np.int64)) / 1e6
    try:
        return float(stamp)
    except ValueError:
        pass  # no number: a date then
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        raise KbrError(
            f"time must be a number or a date like 2024-05-01T12:00:00; got {value!r}."
        ) from None


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _named(names: Any) -> tuple[str, ...] | None:
    return None if names is None else tuple(str(name) for name in names)
