"""The moving filter: kernel regressions for dynamics and sensors, and points that move by them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.filters.base import TrainableFilter, never
from kbr.core.filters.belief import Answering, Belief, Moments
from kbr.core.filters.lifting import best, lifted
from kbr.core.filters.moving.choosing.fitting import AUTO, FEWEST, SENSINGS, Learner, MovingSettings
from kbr.core.filters.moving.choosing.measuring import measured, usual_errors
from kbr.core.filters.moving.cloud import Cloud
from kbr.core.filters.moving.model import LIMITS, MovingModel
from kbr.core.filters.moving.sensing import Tells
from kbr.core.filters.moving.smooth_map import MOST
from kbr.core.filters.moving.storing import KIND, Learned, damage_named, tensors_of, trial_state
from kbr.core.filters.moving.surprise import one_row_on, surprise
from kbr.core.filters.result import FilterResult
from kbr.core.filters.training_data import TrainingData
from kbr.core.io import checkpoint
from kbr.core.io.memory import tensor_bytes
from kbr.core.showing.plotting import array
from kbr.core.uncertainty.calibration import Calibration, next_horizon
from kbr.core.units.units import Units


@dataclass(frozen=True, eq=False, repr=False)
class MovingBelief(Belief):
    """Weighted points, in inner coordinates."""

    cloud: Cloud = field(kw_only=True)
    off: Float[Tensor, "*e c"] = field(kw_only=True)  # the sensor's average error of late
    usual: Float[Tensor, "c"] | None = field(kw_only=True)

    def inner_moments(self) -> Moments:
        return self.cloud.moments()

    @property
    def surprise(self) -> Float[Tensor, "*e"] | None:
        return None if self.usual is None else surprise(self.off, self.usual)

    @property
    def embedding(self) -> Embedding:
        """The belief as a weighted embedding: expectations, samples, densities.

        Its points are in the units of the data; an angle is there as (cos, sin).
        """
        return Embedding(self.answering.units.z.linear(self.cloud.points), self.cloud.weights)

    @property
    def effective_sample_size(self) -> Float[Tensor, "*e"]:
        return self.cloud.effective_sample_size

    def _made_of(self) -> dict[str, Any]:
        inner = self.cloud.points
        points, _ = self.answering.raw(inner, inner.new_zeros(*inner.shape, inner.shape[-1]))
        return {"points": array(points), "weights": array(self.cloud.weights)}


@dataclass(kw_only=True, eq=False, repr=False)
class MovingFilter(TrainableFilter):
    """Filtering with points that move, where those of `KernelBayesFilter` are training latents.

    The dynamics z_t-1, u_t -> z_t and the sensor are kernel ridge regressions with errors of
    learned size; n_particles points move by the first and are weighed by the second. So the belief
    may lie between training latents and beyond them: more accurate where dynamics are smooth.

    sensing    "shows": x is learned as a function of z, and sensors may be absent; "tells": z as a
               function of x. "auto": by the error at held-out steps, as the next five;
    temper     power of the likelihood, 1 or less;
    inflate    factor of the standard deviations of a step, 1 or more;
    outliers   share of observations that tell nothing, at most .5;
    lasting    factor of the learned shares of a sensor's errors that last from row to row; 0: all
               are new at every row;
    jitter     errors added to the latents that dynamics are learned from, in sizes of a step's own
               error: brings points back that leave the curve or surface where latents lie;
    restart    weight of the training latents beside the prediction at every observation, by which a
               lost track is found again;
    velocity   whether latents have their differences from row to row beside them, see
               `KernelBayesFilter`;
    seed       of the random numbers, which are the same for every sequence: answers repeat.

    Ref: Ko and Fox 2009; Sun et al. 2022.
    """

    n_particles: int = 1000
    sensing: str = AUTO
    temper: float | str = AUTO
    inflate: float | str = AUTO
    outliers: float | str = AUTO
    lasting: float | str = AUTO
    jitter: float | str = AUTO
    restart: float = 1e-5
    velocity: bool | str = False
    standardize: bool = True
    seed: int = 0

    takes_controls = True
    takes_sensors = True

    def __post_init__(self) -> None:
        for name, least in (("n_particles", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise KbrError(
                    f"{name} must be a whole number, at least {least}; got {value!r}. Set {name}."
                )
        if self.sensing not in (AUTO, *SENSINGS):
            known = ", ".join((AUTO, *SENSINGS))
            raise KbrError(f"sensing must be one of {known}; got {self.sensing!r}. Set sensing.")
        from_zero = {"jitter": (0.0, 10.0), "lasting": (0.0, 1.0)}
        for name, (low, high) in {**LIMITS, **from_zero}.items():
            value = getattr(self, name)
            good = _is_number(value) and low <= value <= high and (value > low or name in from_zero)
            if value != AUTO and not good:
                raise KbrError(
                    f"{name} must be 'auto' or a number {'from' if name in from_zero else 'above'} "
                    f"{low:g}"
                    f"{'' if high == torch.inf else f', at most {high:g}'}; got {value!r}. "
                    f"Set {name}."
                )
        if self.sensing == Tells.kind and self.lasting not in (AUTO, 0):
            raise KbrError(
                f"errors are remembered where the sensor 'shows' alone; got lasting={self.lasting} "
                "with sensing='tells'. Set lasting=0, or sensing='shows'."
            )
        if not (_is_number(self.restart) and 0 <= self.restart < 1):
            raise KbrError(f"restart must be a share from 0 to below 1; got {self.restart!r}.")
        if self.velocity not in (True, False, AUTO):
            raise KbrError(f"velocity must be True, False or 'auto'; got {self.velocity!r}.")
        self._fitted: Learned | None = None

    def __repr__(self) -> str:
        if self._fitted is None:
            return f"MovingFilter(n_particles={self.n_particles}, not fitted)"
        fitted = self._fitted
        return (
            f"MovingFilter(n={fitted.n}, n_particles={self.n_particles}, "
            f"sensing={fitted.model.sensing.kind}, rank={fitted.model.dynamics.rank})"
        )

    @property
    def is_fitted(self) -> bool:
        return self._fitted is not None

    @property
    def standardized(self) -> tuple[bool, bool]:
        return self.standardize, self.standardize

    @property
    def model(self) -> MovingModel:
        """What was learned."""
        return self._get().model

    @property
    def units(self) -> Units:
        return self._get().units

    @property
    def calibration(self) -> Calibration | None:
        return self._get().calibration

    @property
    def smoothing_calibration(self) -> Calibration | None:
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation, as the user passes it."""
        shape, angles = self._get().shape, sum(self.units.x.circular)
        return (shape[0] - angles,) if angles else shape

    @property
    def val_mse(self) -> float:
        """The squared error at held-out steps, of standardised latents."""
        return self._get().val_mse

    @property
    def chosen(self) -> dict[str, float]:
        """Numbers in use that may be chosen."""
        return {**vars(self.model.tempering), "jitter": self._get().jitter}

    def _facts(self) -> dict[str, Any]:
        fitted = self._get()
        model, chosen = fitted.model, self.chosen
        pairs = fitted.n - fitted.sequences
        left = pairs > MOST
        return {
            "method": "points that move by kernel ridge regressions",
            "n": fitted.n,
            "sequences": fitted.sequences,
            "observation": self.shape,
            "ranks": {"dynamics": model.dynamics.rank},
            "approximations": (f"regressions on {MOST:,} of {pairs:,} rows",) if left else (),
            "val_mse": fitted.val_mse,
            "memory": tensor_bytes(*tensors_of(model.record())),
            "details": {
                "points": f"{model.particles} at every step, {model.restart:g} from the start",
                "sensor": f"{model.sensing.kind}, {_source(self.sensing)}",
                **{k: f"{v:g}, {_source(getattr(self, k))}" for k, v in chosen.items()},
                "velocity": "followed" if fitted.rates else "not followed",
                "error bars": "wider where the sensor is off as in no sequence held out"
                if model.usual is not None
                else "as in blocks held out",
            },
        }

    def _wanted(self) -> MovingSettings:
        return MovingSettings(
            sensing=self.sensing,
            temper=self.temper,
            inflate=self.inflate,
            outliers=self.outliers,
            lasting=self.lasting,
            jitter=self.jitter,
            particles=self.n_particles,
            restart=self.restart,
            seed=self.seed,
        )

    def _lifted(self, data: TrainingData) -> TrainingData:
        if data.z.ndim > 2:
            raise KbrError(
                f"MovingFilter fits one data set, z [T, dz]; got z of shape {list(data.z.shape)}. "
                "Fit one filter for each."
            )
        if data.sensors is not None and (data.sensors.frames or self.sensing == Tells.kind):
            what = "no frames" if data.sensors.frames else "no sensing='tells'"
            raise KbrError(f"MovingFilter takes {what} where sensors may be absent.")
        return self.best_of([lifted(data, 1, velocity) for velocity in self.velocities])

    @property
    def velocities(self) -> tuple[bool, ...]:
        """Whether rates are followed: to choose from."""
        return (False, True) if self.velocity == AUTO else (bool(self.velocity),)

    def best_of(self, options: Sequence[TrainingData], **rows: Any) -> TrainingData:
        """The data with the least error at held-out steps."""
        if len(options) == 1:
            return options[0]
        learners = (Learner(one, self._wanted(), **rows) for one in options)
        return best(options, [learner.choose().val_mse for learner in learners])

    def _learn(self, data: TrainingData, progress: Any) -> None:
        self.learn(data, progress=progress)

    def learn(self, data: TrainingData, *, progress: Any = None, **rows: Any) -> "MovingFilter":
        """Fit to sequences in inner coordinates; `rows` says what a network has seen: `Learner`."""
        if len(data.z) < FEWEST:
            raise KbrError(
                f"the filter needs at least {FEWEST} training steps to hold some out; got "
                f"{len(data.z)}. Raise n_train."
            )
        choice = Learner(data, self._wanted(), **rows).choose(progress)
        usual = usual_errors(choice.parts)
        self._fitted = Learned(
            replace(choice.model, usual=usual),
            data.units,
            measured(choice.parts, data.units.z, usual),
            data.shape,
            len(data.z),
            len(data.lengths),
            data.rates,
            choice.jitter,
            choice.val_mse,
        )
        return self

    def _filtered(self, x: Tensor, *u: Tensor) -> FilterResult:
        lead = x.shape[: x.ndim - len(self._get().shape)]
        if len(lead) < 1 or x.shape[len(lead) :] != self._get().shape:
            raise KbrError(
                f"x must have shape [*, T, {', '.join(map(str, self.shape))}]; got {list(x.shape)}."
            )
        if not lead[-1]:
            raise KbrError("a sequence of observations needs at least one step; got none.")
        rows = x.reshape(*lead, -1).to(self.model.start)
        return self.model.filtered(rows, u[0].to(rows) if u else None)

    def _start(self, prior: Any) -> MovingBelief:
        cloud = self.model.begin()
        if prior is not None:
            cloud = self._prior(prior)
        nothing = torch.zeros((), dtype=torch.bool, device=cloud.points.device)
        return self._belief(cloud, nothing, never(nothing), 0, torch.zeros_like(self.model.lasting))

    def _prior(self, prior: Any) -> Cloud:
        fitted = self._get()
        if fitted.rates:
            raise KbrError(
                "a prior over z says nothing of its velocity, which this filter follows too. Leave "
                "prior out, or fit with velocity=False."
            )
        prior = prior if isinstance(prior, Embedding) else Embedding.from_samples(prior)
        start, scaling = fitted.model.start, fitted.units.z
        columns = start.shape[-1] - sum(scaling.circular)
        if prior.points.ndim != 2 or prior.points.shape[-1] != columns:
            raise KbrError(
                f"the prior needs points of shape [m, dz] like z of training; got "
                f"{list(prior.points.shape)}."
            )
        weights = prior.weights.to(start).clamp_min(0)
        if prior.weights.ndim != 1 or not bool(weights.sum() > 0):
            raise KbrError("the prior needs a weight above zero for some of its points.")
        return fitted.model.at(scaling.apply(prior.points.to(start)), weights.log())

    def _stepped(self, belief: MovingBelief, x: Tensor, *u: Tensor) -> MovingBelief:
        fitted = self._get()
        if x.shape != fitted.shape:
            raise KbrError(
                f"a step takes one observation x of shape {list(fitted.shape)}; got "
                f"{list(x.shape)}. For whole sequences use filter(x)."
            )
        model, row = fitted.model, x.reshape(-1).to(fitted.model.start)
        draws, cloud = model.draws(belief.steps), belief.cloud
        if belief.steps:
            cloud = model.predicted(cloud, self._move(u), draws)
        cloud, seen = model.updated(cloud, row, model.known(row), draws)
        since = next_horizon(belief.since, seen)
        off = one_row_on(belief.off, model.errors(row, cloud.moments()[0], seen))
        return self._belief(cloud, seen, since, belief.steps + 1, off, belief.stretch)

    def _ahead(self, belief: MovingBelief, steps: int, *u: Tensor) -> MovingBelief:
        model = self.model
        moves = u[0].reshape(-1, u[0].shape[-1]) if u else None
        for step in range(steps):
            if belief.steps == 0:  # the start itself is the prediction of step 1
                belief = replace(belief, steps=1)
                continue
            move = None if moves is None else moves[step]
            nothing = torch.zeros_like(belief.evidence)
            cloud = model.predicted(belief.cloud, move, model.draws(belief.steps))
            since = next_horizon(belief.since, nothing)
            off = one_row_on(belief.off, torch.zeros_like(belief.off))
            belief = self._belief(cloud, nothing, since, belief.steps + 1, off, belief.stretch)
        return belief

    def _move(self, u: tuple[Tensor, ...]) -> Tensor | None:
        return u[0].reshape(-1).to(self.model.start) if u else None

    def _belief(
        self,
        cloud: Cloud,
        evidence: Tensor,
        since: Tensor,
        steps: int,
        off: Tensor,
        stretch: Tensor | None = None,
    ) -> MovingBelief:
        answering, usual = Answering(self.units, self.calibration), self.model.usual
        told = {"cloud": cloud, "off": off, "usual": usual}
        return MovingBelief(evidence, since, steps, answering, stretch=stretch, **told)  # type: ignore[arg-type]

    def to(self, device: str | torch.device) -> "MovingFilter":
        """The same filter on another device."""
        moved = MovingFilter(**self.get_params(deep=False))
        moved._fitted = self._get().to(device)
        return moved

    def save(self, path: str | Path) -> None:
        """A file that `load` reads anywhere: tensors and plain values, nothing that runs."""
        checkpoint.save(Path(path), {"kind": KIND, "trials": [self.state()]})

    @classmethod
    def load(cls, path: str | Path) -> "MovingFilter":
        return cls.from_state(trial_state(checkpoint.load(path, kind=KIND), 0))

    def state(self) -> dict[str, Any]:
        """Plain tensors and values from which `from_state` makes the same filter again."""
        settings = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"settings": settings, **self._get().record()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "MovingFilter":
        with damage_named():
            made = cls(**state["settings"])
            made._fitted = Learned.from_record(state)
            made._fitted.check(made._answer)
        return made

    def _get(self) -> Learned:
        if self._fitted is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._fitted


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _source(setting: Any) -> str:
    return "chosen" if setting == AUTO else "given"
