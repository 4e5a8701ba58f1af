"""What a filter's numbers mean: names, scaling and angles of x and z, and where sequences end.

A fitted filter keeps its `Units`, also in its file: whoever loads it passes observations and gets
beliefs in the units of the recording it was trained on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import as_tensor
from kbr.core.io.file_rows import FileRows
from kbr.core.units.columns import is_table, names_of, numbered
from kbr.core.units.controls import Controls
from kbr.core.units.layout import Layout, entry
from kbr.core.units.places import Place, cut, grouped, is_gap, label, moment, moments
from kbr.core.units.ranges import Ranges
from kbr.core.units.scaling import Scaling
from kbr.core.units.sensors import Sensors

NAMES = ("x_names", "z_names", "labels")
X = "x"  # the name under which a table may hold whole observations, such as frames


@dataclass(frozen=True, eq=False)
class Units:
    """Scaling of x and z; names of their columns, and labels of z with units, where there are any.

    u         the control inputs, where there were some in training;
    sensors   groups of the columns of x that may be absent, each by itself;
    layout    where x holds vectors or frames beside others, by name: flat inside; None elsewhere;
    max_gap   a longer step of time begins a new sequence;
    source    how new recordings are read, as plain values: the columns of `sequence` ids and of
              `time`; `several`, whether there were ids; `dates`, whether time stamps were dates;
              `decimal`, `file`, `resize` and `channels` as the keys of data=recording;
    ranges    from where to where the training rows reach; None where that is not known, as in
              older files.
    """

    x: Scaling
    z: Scaling
    x_names: tuple[str, ...] | None = None
    z_names: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    max_gap: float | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    u: Controls | None = None
    sensors: Sensors | None = None
    layout: Layout | None = None
    ranges: Ranges | None = None

    @classmethod
    def none(cls, like: Tensor) -> "Units":
        """Numbers without names, taken as they are."""
        return cls(Scaling.none(like), Scaling.none(like))

    def latent_names(self, count: int) -> tuple[str, ...]:
        """Names of the latent's columns: z_1, z_2, ... where they had none."""
        return self.z_names or numbered("z", count)

    def latent_labels(self, count: int) -> tuple[str, ...]:
        """The same with units, where they are known: angles have theirs."""
        marks = self.z.circular or (False,) * count
        unit = "deg" if self.z.turn == 360.0 else "rad"
        labels = zip(self.labels or self.latent_names(count), marks, strict=True)
        return tuple(
            f"{text} [{unit}]" if is_angle and "[" not in text else text
            for text, is_angle in labels
        )

    def observations(self, x: Any) -> Tensor | FileRows:
        """x in inner coordinates: an array, a table or mapping with the columns by name, frames."""
        if is_table(x):
            x = self.observed(x)
        if isinstance(x, FileRows):
            return x.scaled(self.x.mean, self.x.scale)
        tensor = as_tensor(x, name="x").to(self.x.mean.device)
        own, layout = self.x.own, self.layout
        if layout is not None and (not tensor.ndim or tensor.shape[-1] != layout.width):
            raise KbrError(
                f"this filter was trained on {layout.words()}: pass x as a mapping of these names; "
                f"got an array of shape {list(tensor.shape)}."
            )
        if len(own) == 3 and own[0] == 1 and (tensor.ndim == 2 or tensor.shape[-3] != 1):
            tensor = tensor.unsqueeze(-3)  # grey frames may come without their one channel
        return self.x.apply(tensor, "x")

    def column(self, key: str) -> str | None:
        """The column of sequence ids or of time stamps: by its name in training, or `key`."""
        if key in self.source:
            return None if self.source[key] is None else str(self.source[key])
        names = (*(self.x_names or ()), *((self.u and self.u.names) or ()))
        return None if key in names else key

    def place(self, row: Any, time: Any = None) -> Place:
        """Sequence and time that a row of named columns states; None where it says nothing."""
        sequence, stated = self._borders(row)
        time = stated if time is None else time
        name = None if sequence is None else label(sequence)
        return name, None if time is None else moment(time, self.source.get("dates"))

    def starts_anew(self, before: Place, now: Place) -> bool:
        """Whether a sequence ends between two places: by its name, or by a gap in time."""
        if before[0] is not None and now[0] is not None and before[0] != now[0]:
            return True
        if before[1] is None or now[1] is None or self.max_gap is None:
            return False
        return is_gap(before[1], now[1], self.max_gap)

    def sequences(
        self, table: Any, rows: int, time: Any = None
    ) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Row numbers of every sequence that a table states, cut at gaps in time, and that time."""
        ids, stated = self._borders(table)
        time = stated if time is None else time
        given = None if time is None else moments(time, self.source.get("dates"))
        for name, found in (("sequence", ids), ("time", given)):
            if found is not None and len(found) != rows:
                raise KbrError(f"{name} must hold one value a row; got {len(found)} of {rows}.")
        groups = [np.arange(rows)] if ids is None else grouped([label(i) for i in np.asarray(ids)])
        return [part for group in groups for part in cut(group, given, self.max_gap)], given

    def controls(
        self, x: Any, u: Any, steps: np.ndarray | None = None, starts: Sequence[int] = ()
    ) -> Tensor | None:
        """Control inputs in inner coordinates: see `Controls.inner`; None where there are none."""
        if self.u is not None:
            return self.u.inner(x, u, steps, starts)
        if u is not None:
            raise KbrError(
                "this filter was fitted without control inputs. Leave u out, or fit(x, z, u=...)."
            )
        return None

    def _borders(self, table: Any) -> tuple[Any, Any]:
        """The columns of sequence ids and time stamps, None where there are no such columns."""
        if not is_table(table):
            return None, None
        there = {str(name) for name in names_of(table)}

        def content(key: str) -> Any:
            name = self.column(key)
            if name not in there:
                return None
            return "" if table[name] is None else table[name]

        return content("sequence"), content("time")

    def to(self, device: str | torch.device) -> "Units":
        u = self.u and self.u.to(device)
        return replace(self, x=self.x.to(device), z=self.z.to(device), u=u)

    def member(self, index: int) -> "Units":
        u = self.u and self.u.member(index)
        ranges = self.ranges and self.ranges.member(index)
        return replace(self, x=self.x.member(index), z=self.z.member(index), u=u, ranges=ranges)

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        names = {name: getattr(self, name) for name in NAMES}
        return {
            "x": self.x.record(),
            "z": self.z.record(),
            **{key: None if value is None else list(value) for key, value in names.items()},
            "max_gap": self.max_gap,
            "source": dict(self.source),
            "u": self.u and self.u.record(),
            "sensors": self.sensors and self.sensors.record(),
            "shapes": self.layout and [list(shape) for shape in self.layout.shapes],
            "ranges": self.ranges and self.ranges.record(),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Units":
        try:
            names = {
                name: None if record[name] is None else tuple(map(str, record[name]))
                for name in NAMES
            }
            shapes, layout = record.get("shapes"), None
            if shapes is not None:
                sizes = (tuple(int(size) for size in shape) for shape in shapes)
                layout = Layout(names["x_names"] or (), tuple(sizes))
            return cls(
                Scaling.from_record(record["x"]),
                Scaling.from_record(record["z"]),
                **names,
                max_gap=None if record["max_gap"] is None else float(record["max_gap"]),
                source={str(key): value for key, value in record["source"].items()},
                u=None if record.get("u") is None else Controls.from_record(record["u"]),
                sensors=Sensors.of_record(parts) if (parts := record.get("sensors")) else None,
                layout=layout,
                ranges=Ranges.from_record(known) if (known := record.get("ranges")) else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, KbrError):
                raise
            raise KbrError(
                f"the file does not say in which units its filter works ({error!r}). Train again."
            ) from error

    def observed(self, table: Any) -> Any:
        """The observations of a table [T] or of one row: columns in the order of training, or x."""
        there = [str(name) for name in names_of(table)]
        names = self.x_names or ()
        lost = [name for name in names if name not in there]
        if X in there and (lost or not names):
            return table[X]
        if not names:
            raise KbrError(
                "this filter knows no column names: it was trained on arrays or frames. Pass x as "
                "an array, or as the entry 'x' of a mapping."
            )
        values = _named(table, names, "x")
        if self.layout is not None:
            return self.layout.flat(values)
        whole = len(values) == 1 and values[0].ndim == 2  # a recording whose only column is x
        return values[0] if whole else np.stack(values, -1)

    def latents(self, table: Any) -> np.ndarray:
        """The latents of a table, by the names they had in training."""
        if self.z_names is None:
            raise KbrError(
                "this filter knows no names of z: it was trained on arrays. Pass z as an array."
            )
        return np.stack(_named(table, self.z_names, "z"), -1)


def _named(table: Any, names: Sequence[str], letter: str) -> list[np.ndarray]:
    """The columns of these names."""
    there = [str(name) for name in names_of(table)]
    lost = [name for name in names if name not in there]
    if lost:
        raise KbrError(
            f"{letter} has no column {', '.join(map(repr, lost))}; the filter was trained on "
            f"{', '.join(names)}.{did_you_mean(lost, there)} There are: {', '.join(there)}."
        )
    twice = [name for name in names if there.count(name) > 1]
    if twice:
        raise KbrError(f"{letter} has several columns {twice[0]!r}. Give each a name of its own.")
    return [entry(table[name], name) for name in names]


def did_you_mean(absent: Sequence[str], there: Sequence[str]) -> str:
    """The names that come closest to those that are not there, for an error."""
    lower = {name.lower(): name for name in there}
    close = [
        lower[match]
        for name in absent
        for match in get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    ]
    return f" Did you mean {', '.join(map(repr, close))}?" if close else ""
