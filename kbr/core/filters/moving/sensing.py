"""How likely an observation is at each point of a belief, learned in one of two directions.

`Shows` learns what the latent shows, x = g(z) + error: of columns of x, each group of which may be
absent. `Tells` learns what the observation tells, z = y(x) + error, also from many columns, and
takes p(z | x) over a flat prior for the likelihood.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.moving.lasting import Memory, innovation, remembered
from kbr.core.filters.moving.smooth_map import MapChoice, SmoothMap

FEW = 10  # rows below which a map of others is kept

Row = Float[Tensor, "*s dx"]
Points = Float[Tensor, "*s m dz"]
There = Bool[Tensor, "*s g"]  # which groups of columns are there
Densities = Float[Tensor, "*s m"]
Shown = tuple[Tensor, Tensor]  # mean and standard deviations [*s m k] of a group


@runtime_checkable
class Sensing(Protocol):
    kind: ClassVar[str]

    def at(self, z: Points, there: There | None = None) -> Any:
        """What `log_density` needs of points, whatever is observed; of groups that are there."""

    def log_density(self, x: Row, at: Any, there: There, memory: Memory | None = None) -> Densities:
        """Of an observation at the points of each belief, but for a constant.

        With a memory, of what is new of its errors.
        """

    def remembered(self, memory: Memory, x: Row, at: Any, there: There) -> Memory:
        """What points remember of errors after an observation, of which these groups count."""

    def errors(self, x: Row, z: Float[Tensor, "*s dz"], there: There) -> Float[Tensor, "*s c"]:
        """How far observations are from what these latents show, in standard deviations.

        Zero in the columns of groups that are not there.
        """

    @property
    def lasting(self) -> Float[Tensor, "c"]:
        """Share of each column's error that is left at the next row."""

    def to(self, device: str | torch.device) -> "Sensing": ...

    def record(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Shows:
    """Math: log p(x | z) = sum over the groups g that are there of log N(x_g; f_g(z), D C_g D)."""

    columns: tuple[tuple[int, ...], ...]
    maps: tuple[SmoothMap, ...]
    kind: ClassVar[str] = "shows"

    @classmethod
    def fit(
        cls,
        x: Float[Tensor, "n dx"],
        z: Float[Tensor, "n dz"],
        columns: Sequence[Sequence[int]],
        known: Sequence[SmoothMap] | None = None,
        places: Float[Tensor, "n"] | None = None,
    ) -> "Shows":
        """With the settings of `known` maps, if given; a group that is hardly there has its own."""
        maps = []
        for k, group in enumerate(columns):
            seen = x[:, list(group)]
            there = seen.isfinite().all(-1)
            if known is not None and int(there.sum()) < FEW:
                maps.append(known[k])
                continue
            choice = None if known is None else known[k].choice
            where = None if places is None else places[there]
            maps.append(SmoothMap.fit(z[there], seen[there], choice, at=where))
        return cls(tuple(map(tuple, columns)), tuple(maps))

    def at(self, z: Points, there: There | None = None) -> dict[int, Shown]:
        groups = range(len(self.maps))
        needed = groups if there is None else [k for k in groups if bool(there[..., k].any())]
        return {k: self.maps[k](z, cloud=there is not None) for k in needed}

    def log_density(
        self, x: Row, at: dict[int, Shown], there: There, memory: Memory | None = None
    ) -> Densities:
        total: Any = 0.0
        for k, (mean, sd) in at.items():
            present, group = there[..., k : k + 1], list(self.columns[k])
            seen = torch.where(present, x[..., group], 0.0).unsqueeze(-2)
            new, volume = innovation((seen - mean) / sd, memory, group)
            density = log_density(new, sd, self.maps[k].root) - volume
            total = total + torch.where(present, density, 0.0)
        return total  # type: ignore[no-any-return]

    def remembered(self, memory: Memory, x: Row, at: dict[int, Shown], there: There) -> Memory:
        for k, (mean, sd) in at.items():
            group = list(self.columns[k])
            seen = torch.where(there[..., k : k + 1], x[..., group], 0.0).unsqueeze(-2)
            memory = remembered(memory, (seen - mean) / sd, there[..., k], group)
        return memory

    def errors(self, x: Row, z: Float[Tensor, "*s dz"], there: There) -> Float[Tensor, "*s c"]:
        found = x.new_zeros(*there.shape[:-1], sum(map(len, self.columns)))
        for k, group in enumerate(map(list, self.columns)):
            mean, sd = self.maps[k](z)
            found[..., group] = torch.where(there[..., k : k + 1], (x[..., group] - mean) / sd, 0.0)
        return found

    @cached_property
    def lasting(self) -> Float[Tensor, "c"]:
        found = torch.zeros_like(torch.cat([one.lasting for one in self.maps]))
        for group, one in zip(self.columns, self.maps, strict=True):
            found[list(group)] = one.lasting
        return found

    def to(self, device: str | torch.device) -> "Shows":
        return replace(self, maps=tuple(one.to(device) for one in self.maps))

    def record(self) -> dict[str, Any]:
        maps = [one.record() for one in self.maps]
        return {"kind": self.kind, "columns": [list(some) for some in self.columns], "maps": maps}


@dataclass(frozen=True, eq=False)
class Tells:
    """Math: log N(z; y(x), D(x) C D(x)), of the latents without their rates."""

    latents: int  # so many columns of z
    map: SmoothMap
    kind: ClassVar[str] = "tells"

    @classmethod
    def fit(
        cls,
        x: Float[Tensor, "n dx"],
        z: Float[Tensor, "n dz"],
        latents: int,
        choice: MapChoice | None = None,
    ) -> "Tells":
        there = x.isfinite().all(-1)
        return cls(latents, SmoothMap.fit(x[there], z[there, :latents], choice))

    def at(self, z: Points, there: There | None = None) -> Float[Tensor, "*s m k"]:
        return z[..., : self.latents]

    def log_density(
        self, x: Row, at: Float[Tensor, "*#s m k"], there: There, memory: Memory | None = None
    ) -> Densities:
        present = there.all(-1, keepdim=True)
        mean, sd = (part.unsqueeze(-2) for part in self.map(torch.where(present, x, 0.0)))
        density = log_density((at - mean) / sd, sd, self.map.root)
        return torch.where(present, density, 0.0)

    def remembered(self, memory: Memory, x: Row, at: Any, there: There) -> Memory:
        return memory

    def errors(self, x: Row, z: Float[Tensor, "*s dz"], there: There) -> Float[Tensor, "*s c"]:
        present = there.all(-1, keepdim=True)
        mean, sd = self.map(torch.where(present, x, 0.0))
        return torch.where(present, (z[..., : self.latents] - mean) / sd, 0.0)

    @property
    def lasting(self) -> Float[Tensor, "c"]:
        """None: how far z is from what x tells lasts because z does, not the sensor's errors."""
        return torch.zeros_like(self.map.low)

    def to(self, device: str | torch.device) -> "Tells":
        return Tells(self.latents, self.map.to(device))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "latents": self.latents, "map": self.map.record()}


def log_density(
    error: Float[Tensor, "*s m k"], sd: Float[Tensor, "*#s _ k"], root: Float[Tensor, "k k"]
) -> Densities:
    """Gaussian, of errors over their sd.

    Math: -|e|^2 / 2 in C^-1 - log det D.
    """
    flat = error.reshape(-1, error.shape[-1]).mT
    white: Tensor = torch.linalg.solve_triangular(root, flat, upper=False)
    squares = white.square().sum(0).reshape(error.shape[:-1])
    return -squares / 2 - sd.log().sum(-1)


def sensing_of(record: dict[str, Any]) -> Sensing:
    """The inverse of `record`."""
    if record["kind"] == Tells.kind:
        return Tells(int(record["latents"]), SmoothMap.from_record(record["map"]))
    if record["kind"] != Shows.kind:
        raise KbrError(f"the file's sensor is of a kind {record['kind']!r}. Train again.")
    columns = tuple(tuple(int(k) for k in some) for some in record["columns"])
    return Shows(columns, tuple(SmoothMap.from_record(one) for one in record["maps"]))
