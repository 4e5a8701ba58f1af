"""Learned dynamics and sensors, and the filter's recursion on clouds of points."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.novelty import Reach
from kbr.core.filters.moving.cloud import Cloud, Draws
from kbr.core.filters.moving.lasting import Memory, nothing_yet, one_row_on
from kbr.core.filters.moving.sensing import Sensing, sensing_of
from kbr.core.filters.moving.smooth_map import SmoothMap
from kbr.core.filters.moving.surprise import averages, surprise
from kbr.core.filters.result import FilterResult
from kbr.core.linalg import or_one

Rows = Float[Tensor, "*s t dx"]
Controls = Float[Tensor, "*s t du"]
Flags = Bool[Tensor, "*s g"]
BEYOND = 1.0  # ranges of a latent that it may leave its own by
LIMITS = {"temper": (0.0, 1.0), "inflate": (0.0, math.inf), "outliers": (0.0, 0.5)}  # above, up to


@dataclass(frozen=True, kw_only=True)
class Tempering:
    """What is chosen by the error of the filter at held-out steps.

    temper    power of the likelihood: below one where the errors of sensors last for many steps;
    inflate   factor of the steps' standard deviations: above one where dynamics are less exact
              along a path than from row to row;
    outliers  share of observations that tell nothing, as if drawn anywhere in the training data;
    lasting   factor of the learned shares of a sensor's errors that last from row to row.
    """

    temper: float | Tensor = 1.0
    inflate: float | Tensor = 1.0
    outliers: float | Tensor = 1e-4
    lasting: float = 0.0  # of files from before there was such a choice

    @classmethod
    def each(cls, several: Sequence["Tempering"], like: Tensor) -> "Tempering":
        """For sequences that are filtered together, each with its own; they share `lasting`."""
        made = {k: like.new_tensor([[getattr(one, k)] for one in several]) for k in LIMITS}
        return cls(**made, lasting=several[0].lasting)


@dataclass(frozen=True, eq=False)
class MovingModel:
    """Math: z_t = z_t-1 + f(z_t-1, u_t) + D L e, e ~ N(0, I): points z~_j move by it;
          w_j ~ (1 - o) p(x_t | z~_j)^temper + o p_0(x_t), o the share of outliers, p_0 the mean of
          the likelihood over the training latents. The predicted points have the prior weight
          1 - `restart`; with the rest, some of the training latents' own posterior are added.
          Points far beyond the training latents are begun anew, as dynamics may explode there.
    Ref:  Gordon et al. 1993; Ko and Fox 2009 (particle filters with learned models); Sun et al.
          2022 (kernel filters whose support moves).

    start       training latents: the belief before any observation, and what a lost one goes back
                to;
    reaches     of each group of columns, `columns`: what is unlike any training row is no evidence;
    usual       how far off the sensor is on average, of each column, see `surprise`; None: not
                followed.
    """

    dynamics: SmoothMap
    sensing: Sensing
    start: Float[Tensor, "n dz"]
    columns: tuple[tuple[int, ...], ...]
    reaches: tuple[Reach, ...]
    tempering: Tempering
    particles: int
    restart: float
    seed: int
    usual: Float[Tensor, "c"] | None = None

    @cached_property
    def lasting(self) -> Float[Tensor, "c"]:
        """Share of each column's error that is left at the next row."""
        return self.tempering.lasting * self.sensing.lasting

    @property
    def controls(self) -> int:
        return len(self.dynamics.centre) - self.start.shape[-1]

    @cached_property
    def start_at(self) -> Any:
        """What the sensor needs of the start, once and for all."""
        return self.sensing.at(self.start)

    def begin(self, *lead: int) -> Cloud:
        """The start, for so many sequences."""
        return self.at(self.start.expand(*lead, *self.start.shape))

    def at(
        self, points: Float[Tensor, "*s m dz"], log_weights: Float[Tensor, "*s m"] | None = None
    ) -> Cloud:
        """A belief that has seen nothing yet; without weights, each point counts alike."""
        even = torch.zeros_like(points[..., 0]) if log_weights is None else log_weights
        return Cloud.weighted(points, even, nothing_yet(points, self.lasting))

    def draws(self, step: int) -> Draws:
        shape = (self.particles, self.start.shape[-1])
        return Draws.of(self.seed, step, shape, self.start)

    def predicted(self, cloud: Cloud, u: Float[Tensor, "*s du"] | None, draws: Draws) -> Cloud:
        """The belief one step on."""
        cloud = cloud.drawn(self.particles, draws.offset)
        inputs = points = cloud.points
        if u is not None and self.controls:
            moves = u.unsqueeze(-2).expand(*points.shape[:-1], u.shape[-1])
            inputs = torch.cat([points, moves], -1)
        way, sd = self.dynamics(inputs, cloud=True, doubt=False)
        noise = draws.normal @ self.dynamics.root.mT
        inflate = self.tempering.inflate
        noise = noise * (inflate.unsqueeze(-1) if isinstance(inflate, Tensor) else inflate)
        moved = self._inside(points + way + sd * noise)
        return Cloud.even(moved, one_row_on(cloud.memory, self.lasting))

    def _inside(self, points: Float[Tensor, "*s m dz"]) -> Float[Tensor, "*s m dz"]:
        """Points that have gone beyond all that was learned, where dynamics may explode, restart.

        They do so at training latents, as a track that is lost.
        """
        low, high, home = self.bounds
        gone = ((points < low) | (points > high)).any(-1, keepdim=True)
        return torch.where(gone, home, points) if bool(gone.any()) else points

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ends of the latents' range with BEYOND ranges on both sides, and a latent a point."""
        low, high = self.start.amin(0), self.start.amax(0)
        margin = BEYOND * or_one(high - low)
        rows = torch.arange(self.particles, device=self.start.device) * len(self.start)
        return low - margin, high + margin, self.start[rows // self.particles]

    def updated(
        self, cloud: Cloud, x: Float[Tensor, "*s dx"], there: Flags, draws: Draws
    ) -> tuple[Cloud, Bool[Tensor, "*s"]]:
        """The belief given one observation, and whether that was evidence."""
        seen, points = there.any(-1), cloud.points
        if not bool(seen.any()):
            return cloud, seen
        at = self.sensing.at(points, there)
        told = self._told(x, at, there, cloud.memory)
        begun = self._told(x, self.start_at, there)
        mass = begun.logsumexp(-1, keepdim=True) - math.log(len(self.start))
        share = torch.as_tensor(self.tempering.outliers, dtype=mass.dtype, device=mass.device)
        wrong = mass + share.log()
        after = cloud.log_weights + torch.logaddexp(told + torch.log1p(-share), wrong)
        likely = after.logsumexp(-1, keepdim=True)
        usable = seen & likely.isfinite().squeeze(-1)
        seen = usable & (wrong - likely < math.log(0.5)).squeeze(-1)
        fresh, lost = self._restarted(begun, mass, draws)
        none = torch.full_like(lost, -torch.inf)
        kept = torch.cat([cloud.log_weights, none], -1)
        after = torch.cat([after + math.log1p(-self.restart), lost], -1)
        after = torch.where(usable.unsqueeze(-1), after, kept)
        memory: Memory | None = None
        if cloud.memory.shape[-1]:  # an outlier is not remembered
            counts, new = there & seen.unsqueeze(-1), self.at(fresh)
            parts = ((cloud.memory, at), (new.memory, self.sensing.at(fresh, there)))
            both = [self.sensing.remembered(old, x, shown, counts) for old, shown in parts]
            memory = torch.cat(both, -2)
        return Cloud.weighted(torch.cat([points, fresh], -2), after, memory), seen

    def _told(
        self, x: Float[Tensor, "*s dx"], at: Any, there: Flags, memory: Memory | None = None
    ) -> Float[Tensor, "*s m"]:
        """The logarithm of the tempered likelihood."""
        told = self.tempering.temper * self.sensing.log_density(x, at, there, memory)
        return torch.where(told.isnan(), -torch.inf, told)

    def _restarted(
        self, told: Float[Tensor, "*s n"], mass: Float[Tensor, "*s 1"], draws: Draws
    ) -> tuple[Float[Tensor, "*s k dz"], Float[Tensor, "*s k"]]:
        """Points of the start's own posterior, which share its evidence, and their log weights."""
        n, count = len(self.start), max(self.particles // 10, 1)
        weights = torch.where(mass.isfinite(), told - mass, 0.0) - math.log(n)
        begun = Cloud.weighted(self.start.expand(*told.shape, -1), weights)
        each = mass + (math.log(self.restart / count) if self.restart else -torch.inf)
        return begun.drawn(count, draws.offset).points, each.expand(*each.shape[:-1], count)

    def known(self, x: Float[Tensor, "*s dx"]) -> Flags:
        """Which groups of columns are there, and like some training row."""
        flags = []
        for group, reach in zip(self.columns, self.reaches, strict=True):
            part = x[..., list(group)]
            there = part.isfinite().all(-1)
            flat = torch.where(there.unsqueeze(-1), part, 0.0).reshape(-1, len(group))
            flags.append(there & reach(flat).reshape(there.shape))
        return torch.stack(flags, -1)

    def steps(self, x: Rows, u: Controls | None) -> Iterator[tuple[Cloud, Bool[Tensor, "*s"]]]:
        """Beliefs after each observation of sequences of one length, from their start."""
        there, cloud = self.known(x), self.begin(*x.shape[:-2])
        for t in range(x.shape[-2]):
            draws = self.draws(t)
            if t:
                cloud = self.predicted(cloud, None if u is None else u[..., t, :], draws)
            cloud, seen = self.updated(cloud, x[..., t, :], there[..., t, :], draws)
            yield cloud, seen

    def filtered(self, x: Rows, u: Controls | None = None) -> FilterResult:
        """Inner beliefs at every step."""
        means, covs, flags, sizes = [], [], [], []
        for cloud, seen in self.steps(x, u):
            mean, cov = cloud.moments()
            means.append(mean)
            covs.append(cov)
            flags.append(seen)
            sizes.append(cloud.effective_sample_size)
        mean, evidence = torch.stack(means, -2), torch.stack(flags, -1)
        told = None
        if self.usual is not None:
            told = surprise(averages(self.errors(x, mean, evidence)), self.usual)
        return FilterResult(
            mean=mean,
            cov=torch.stack(covs, -3),
            evidence=evidence,
            effective_sample_size=torch.stack(sizes, -1),
            surprise=told,
        )

    def errors(
        self, x: Float[Tensor, "*s dx"], mean: Float[Tensor, "*s dz"], seen: Bool[Tensor, "*s"]
    ) -> Float[Tensor, "*s c"]:
        """Of the sensor, beside the means of beliefs after these observations."""
        return self.sensing.errors(x, mean, self.known(x) & seen.unsqueeze(-1))

    def tempered(self, tempering: Tempering, **others: Any) -> "MovingModel":
        return replace(self, tempering=tempering, **others)

    def to(self, device: str | torch.device) -> "MovingModel":
        reaches = tuple(Reach(one.anchors.to(device), one.limit.to(device)) for one in self.reaches)
        return replace(
            self,
            dynamics=self.dynamics.to(device),
            sensing=self.sensing.to(device),
            start=self.start.to(device),
            reaches=reaches,
            usual=None if self.usual is None else self.usual.to(device),
        )

    def record(self) -> dict[str, Any]:
        """Plain values and tensors, for a file."""
        return {
            "dynamics": self.dynamics.record(),
            "sensing": self.sensing.record(),
            "start": self.start,
            "columns": [list(some) for some in self.columns],
            "reaches": [{"anchors": one.anchors, "limit": one.limit} for one in self.reaches],
            "tempering": dict(vars(self.tempering)),
            "particles": self.particles,
            "restart": self.restart,
            "seed": self.seed,
            **({} if self.usual is None else {"usual": self.usual}),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "MovingModel":
        made = cls(
            SmoothMap.from_record(record["dynamics"]),
            sensing_of(record["sensing"]),
            record["start"],
            tuple(tuple(int(k) for k in some) for some in record["columns"]),
            tuple(Reach(one["anchors"], one["limit"]) for one in record["reaches"]),
            Tempering(**record["tempering"]),
            int(record["particles"]),
            float(record["restart"]),
            int(record["seed"]),
            record.get("usual"),
        )
        made.check()
        return made

    def check(self) -> None:
        """Of numbers from a file: an error where they are none of a model."""
        chosen = vars(self.tempering)
        good = all(low < chosen[k] <= high for k, (low, high) in LIMITS.items())
        good = good and chosen["inflate"] < math.inf and 0 <= self.restart < 1
        good = good and bool((self.lasting >= 0).all() and (self.lasting < 1).all())
        maps = getattr(self.sensing, "maps", ())
        wide = [len(group) for group in self.columns]
        good = good and wide == [one.anchors.shape[-1] for one in self.reaches]
        good = good and (not maps or wide == [len(one.root) for one in maps])
        good = good and getattr(self.sensing, "columns", self.columns) == self.columns
        if self.usual is not None:
            fits = self.usual.shape == self.lasting.shape
            good = good and fits and bool((self.usual > 0).all())
        if not good:
            raise KbrError("the file's parts do not fit together. Train again.")
