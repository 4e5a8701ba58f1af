"""Control inputs: what moves the latent from one row to the next, in names and units."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import as_tensor
from kbr.core.units.columns import is_table, names_of, numbered, numbers
from kbr.core.units.scaling import Scaling


@dataclass(frozen=True, eq=False)
class Controls:
    """Those of the training data. Row t holds what moved z_t-1 to z_t; a first row's is not used.

    used    which columns varied in training: constant ones carry nothing, and are left out;
    names   of all columns, where they had names;
    time    whether the step of time is one more input, the last;
    scaling of the inputs in use.
    """

    scaling: Scaling
    used: tuple[bool, ...]
    names: tuple[str, ...] | None = None
    time: bool = False

    @classmethod
    def fit(
        cls,
        moves: Float[Tensor, "*b k d"],
        names: tuple[str, ...] | None = None,
        *,
        circular: Sequence[str] = (),
        turn: float = 360.0,
        time: bool = False,
    ) -> "Controls":
        """From those of all training rows that do not begin a sequence.

        `circular` names the angles (u_1, ... where there are no names).
        """
        count, flat = moves.shape[-1] - time, moves.flatten(0, -2)
        used = tuple((flat.amax(0) > flat.amin(0)).tolist()[:count])
        called = names or numbered("u", count)
        constant = [name for name, mark in zip(called, used, strict=True) if not mark]
        if constant:
            warnings.warn(
                f"control input(s) constant in training: {', '.join(constant)}; nothing can be "
                "learned from them, and they are left out.",
                stacklevel=5,
            )
        kept = moves[..., [*np.flatnonzero(used), *range(count, count + time)]]
        marks = [name in circular for name, mark in zip(called, used, strict=True) if mark]
        marks += [False] * time
        batch = moves.ndim - 2
        scaling = Scaling.fit(kept, marks, turn, batch=batch) if marks else Scaling.none(moves)
        return cls(scaling, used, names, time)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the inputs in use, the step of time last."""
        names = self.names or numbered("u", len(self.used))
        kept = (name for name, used in zip(names, self.used, strict=True) if used)
        return (*kept, "step of time") if self.time else tuple(kept)

    @property
    def wanted(self) -> str:
        """What is to be passed, in words."""
        return ", ".join(self.columns[: sum(self.used)])

    def inner(
        self, x: Any, u: Any, steps: np.ndarray | None = None, starts: Sequence[int] = ()
    ) -> Float[Tensor, "*s du"] | None:
        """In inner coordinates: u or, by their names, the columns of the table x.

        `steps` are those of time, one a row; `starts` the rows that begin a sequence. None where
        no input is in use.
        """
        values = self.given(x, u, steps)
        if values is None:
            return None
        inner = self.scaling.apply(values, "u")
        if len(starts):
            inner[..., list(starts), :] = 0.0
        if not bool(inner.isfinite().all()):
            raise KbrError(
                "u has missing values (NaN) in rows that do not begin a sequence, and without the "
                "control the step to them cannot be predicted. Fill them, for example with the "
                "last value, or let a new sequence begin there."
            )
        return inner

    def given(
        self, x: Any, u: Any, steps: np.ndarray | None = None
    ) -> Float[Tensor, "*s d"] | None:
        """The inputs in use as they were recorded, the step of time last; None where none is."""
        device = self.scaling.mean.device
        parts = [self._columns(x, u).to(device)] if any(self.used) else []
        if self.time:
            if steps is None:
                raise KbrError(
                    "this filter was fitted with time_steps='input', so that it needs the time of "
                    "every row: pass time=..., or the column of time."
                )
            parts.append(torch.as_tensor(steps, dtype=torch.float64, device=device).unsqueeze(-1))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def recorded(self, x: Any, u: Any) -> Float[Tensor, "*s d"] | None:
        """All columns as they were recorded, of a table by their names; zero if not in use."""
        if not any(self.used):
            return None
        values = self._columns(x, u)
        whole = values.new_zeros(*values.shape[:-1], len(self.used))
        whole[..., list(np.flatnonzero(self.used))] = values
        return whole

    def _columns(self, x: Any, u: Any) -> Float[Tensor, "*s d"]:
        """The values of the columns in use."""
        table = x if u is None else u
        if not is_table(table):
            if u is None:
                raise KbrError(
                    f"this filter was fitted with control inputs ({self.wanted}): pass u=... too."
                )
            values = as_tensor(u, name="u").double()
            count = len(self.used)
            if count == 1 and values.shape[-1:] != (1,):
                values = values.unsqueeze(-1)
            if values.shape[-1] != count:
                raise KbrError(
                    f"u must have the {count} column(s) of training; got shape "
                    f"{list(values.shape)}."
                )
            return values[..., list(np.flatnonzero(self.used))]
        there = {str(name) for name in names_of(table)}
        if self.names is None:
            raise KbrError("u had no column names in training: pass it as an array, u=...")
        names = [name for name, used in zip(self.names, self.used, strict=True) if used]
        lost = [name for name in names if name not in there]
        if lost:
            raise KbrError(
                f"there is no column {', '.join(map(repr, lost))} of control inputs; the filter "
                f"was trained with {self.wanted}. Add it to the table, or pass u=..."
            )
        return torch.from_numpy(np.stack([numbers(table[name], name) for name in names], -1))

    def to(self, device: str | torch.device) -> "Controls":
        return replace(self, scaling=self.scaling.to(device))

    def member(self, index: int) -> "Controls":
        """Those of one of the data sets fitted together."""
        return replace(self, scaling=self.scaling.member(index))

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        return {
            "scaling": self.scaling.record(),
            "used": list(self.used),
            "names": None if self.names is None else list(self.names),
            "time": self.time,
        }

    @classmethod
    def from_record(cls, found: Mapping[str, Any]) -> "Controls":
        """The inverse of `record`."""
        names = found["names"]
        return cls(
            Scaling.from_record(found["scaling"]),
            tuple(bool(mark) for mark in found["used"]),
            None if names is None else tuple(str(name) for name in names),
            bool(found["time"]),
        )
