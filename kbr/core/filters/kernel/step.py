"""One step of the kernel Bayes filter: predict, ratio, update, normalise.

`filter`, `step`, `smooth`, `forecast`, streaming and exported programs all take this step.
Shapes: *b data sets fitted together; s sequences filtered together in each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.kernel.engine import (
    Coordinates,
    Flags,
    Points,
    Query,
    Ridge,
    State,
    Update,
    Weights,
)
from kbr.core.filters.kernel.engines.alone import is_alone, weights_alone
from kbr.core.filters.sequences import split
from kbr.core.rules import NEGLIGIBLE, Rule, has_evidence, normalize_ratio, normalized

Told = Flags | None  # of every sequence; None: true of all
Lifted = Float[Tensor, "*b s q"]
Move = Float[Tensor, "*b s du"] | None  # the control that leads to the next step, if there is one


@dataclass(frozen=True, eq=False)
class Step:
    """The outcome of one step for every sequence.

    `first` marks a belief before any observation: it stands for the first step's prediction.
    """

    weights: Weights
    state: State
    moments: Float[Tensor, "*b s c"]
    evidence: Flags
    first: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Operators(ABC):
    """Everything a filter computes before it sees an observation, and the step with it.

    Math, with u the coordinates of a belief and m those of the prediction from it:
    m  = E'u                         advance, E the transition (of `lifted` u);
    r~ = Phi (C_ZZ + eta I)^-1 m     ratio, C_ZZ = Phi'Phi / n;
    w  = update(r~, x),  u = Phi'w   coordinates.
    A subclass says how each is computed; `ahead` is the prediction on the training latents.
    """

    rule: Rule
    update: Update
    points: Float[Tensor, "*b n dz"]
    readout: MomentsTable

    @property
    def n(self) -> int:
        return self.points.shape[-2]

    @property
    @abstractmethod
    def rank(self) -> int:
        """How many coordinates a belief has."""

    @abstractmethod
    def coordinates(self, weights: Weights) -> State:
        """Of a belief with these weights."""

    @property
    def controls(self) -> int:
        """How many trailing columns of a row are the control that led to it."""
        return 0

    def observe(self, rows: Points) -> Coordinates:
        """Coordinates of rows: those of the observation, and the control as it is."""
        x, u = split(rows, self.controls)
        query = self.update.observe(x)
        return query if u is None else torch.cat([query, u], -1)

    def lifted(self, state: State, u: Move = None) -> Lifted:
        """What predictions are linear in: a belief's coordinates, joined with the control."""
        return state

    @abstractmethod
    def advance(self, state: State, u: Move = None) -> State:
        """Coordinates of the prediction, before it is normalised."""

    @abstractmethod
    def ratio(self, m: State, weights: Callable[[], Weights] | None = None) -> Weights:
        """The ratio r~ of priors with coordinates m; `weights` gives theirs, for ratios that ask.

        Without them, as for a prior that is not on the training points, it is KuLSIF's.
        """

    def ahead_ratio(self, state: State, u: Move = None) -> Weights:
        """The ratio r~ of the predictions from beliefs with these coordinates."""
        return self.ratio(self.advance(state, u), lambda: self.ahead(state, u).weights)

    @abstractmethod
    def ahead(self, state: State, u: Move = None) -> Step:
        """The belief one step ahead, before it is normalised."""

    @abstractmethod
    def forecast_table(self) -> Float[Tensor, "*b p c"]:
        """Moments of a prediction as a linear function of `lifted`: no sums over points."""

    @abstractmethod
    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "Operators":
        """The same filter with time running backwards: from z_t+1 to z_t."""

    def start(self, sequences: int) -> Step:
        """The belief before any observation: uniform weights on the training latents."""
        shape = (*self.points.shape[:-2], sequences, self.n)
        return self.belief(self.points.new_full(shape, 1 / self.n), first=True)

    def prior(self, m: State) -> Step:
        """A belief before any observation whose embedding has the coordinates m."""
        ratio = self.weigh(self.ratio(m))
        if not float(ratio.mean()) > NEGLIGIBLE:
            raise KbrError(
                "the prior lies where there are no training latents, so it cannot be expressed. "
                "Choose a prior within the range of z, or train on data that reach there."
            )
        return self.belief(normalize_ratio(ratio) / self.n, m, first=True)

    def weigh(self, ratio: Weights) -> Weights:
        """The ratio times the points' masses n c_i: one each, unless the filter is compressed."""
        return ratio

    def step(
        self, now: Step, query: Query, lam: Ridge, seen: Told = None, familiar: Told = None
    ) -> Step:
        """The belief after one more observation; the prediction where it tells nothing.

        That is where x was not `seen`, is not `familiar` (unlike any of training), or leaves no
        weights to speak of. None: all are. A first belief is the same for all sequences, so they
        have one ratio, expanded: see `is_shared`.
        """
        x, u = split(query, self.controls)
        if now.first:
            ratio = self.ratio(now.state, lambda: now.weights)[..., :1, :]
        else:
            ratio = self.ahead_ratio(now.state, u)
        ratio = self.weigh(ratio)
        if is_alone(self.update, self.rule, ratio, lam) and _one(x, seen, familiar):
            alone = weights_alone(self.update, self.rule, ratio, x, lam.item())
            if alone is not None:
                return self.belief(alone[0], evidence=torch.full((1,), alone[1], device=x.device))
        r = self.rule.effective_ratio(ratio).expand(*query.shape[:-1], -1)
        weights, total, usable = self.posterior(r, query, lam, seen, familiar)
        keep = usable
        if not self.rule.normalize:
            # To the letter of the paper, weights stand as they are; only a missing x is a
            # prediction. Once their total has died away the answer is worth nothing.
            keep = torch.ones_like(usable) if seen is None else seen
            usable = usable & (total > NEGLIGIBLE)
        if not torch.compiler.is_compiling() and bool(keep.all()):
            scaled = weights / total.unsqueeze(-1) if self.rule.normalize else weights
            return self.belief(scaled, evidence=usable)
        prediction = now if now.first else self.predict(now.state, u)
        return self._kept(self.belief(weights, evidence=usable), total, keep, prediction)

    def posterior(
        self, r: Weights, query: Query, lam: Ridge, *conditions: Told
    ) -> tuple[Weights, Ridge, Flags]:
        """Weights as the rule gives them, their total, and whether they are evidence."""
        weights = self.update.weights(self.rule, r, split(query, self.controls)[0], lam)
        total = weights.sum(-1)
        usable = has_evidence(weights, total)
        for condition in conditions:
            usable = usable if condition is None else usable & condition
        return weights, total, usable

    def predict(self, state: State, u: Move = None) -> Step:
        """The belief one step ahead; the start where its total weight is not positive."""
        ahead = self.ahead(state, u)
        total = ahead.weights.sum(-1)
        return self._kept(ahead, total, total > 0, self.start(1)) if self.rule.normalize else ahead

    def _kept(self, step: Step, total: Tensor, keep: Tensor, otherwise: Step) -> Step:
        """The step where it is kept, scaled if the rule normalises; else the other one."""
        total = total if self.rule.normalize else torch.ones_like(total)
        return Step(
            normalized(step.weights, total, keep, otherwise.weights),
            normalized(step.state, total, keep, otherwise.state),
            normalized(step.moments, total, keep, otherwise.moments),
            step.evidence,
        )

    def belief(
        self,
        weights: Weights,
        state: State | None = None,
        *,
        evidence: Flags | None = None,
        first: bool = False,
    ) -> Step:
        """Weights with all that follows from them; without evidence unless told otherwise."""
        if evidence is None:
            evidence = torch.zeros(weights.shape[:-1], dtype=torch.bool, device=weights.device)
        state = self.coordinates(weights) if state is None else state
        return Step(weights, state, self.readout(weights), evidence, first)


def _one(x: Query, *conditions: Told) -> bool:
    """Whether there is one sequence, all of whose conditions hold."""
    return x.shape[:-1] == (1,) and all(flag is None or bool(flag) for flag in conditions)
