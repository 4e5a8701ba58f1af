"""The kernel Bayes filter: no model of the dynamics or the sensor, only training sequences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.filters.base import never
from kbr.core.filters.belief import KernelBelief, KernelFilterResult
from kbr.core.filters.kernel.fitted import SETTINGS, Fitted, StoredFilter
from kbr.core.filters.kernel.known_transition import TransitionRatio
from kbr.core.filters.kernel.landmarks import landmark_operators, landmark_tolerance
from kbr.core.filters.kernel.large import is_large, large_operators, tuning_part
from kbr.core.filters.kernel.recipe import (
    Engine,
    Recipe,
    has_no_units,
    latent_tolerance,
    observation_tolerance,
)
from kbr.core.filters.kernel.run import run_filter, run_smoother
from kbr.core.filters.kernel.search import Progress, Space
from kbr.core.filters.kernel.step import Step
from kbr.core.filters.kernel.storage import Stored
from kbr.core.filters.kernel.transition import transition_pairs
from kbr.core.filters.kernel.tuning import Choice, choose, with_ridges
from kbr.core.filters.sequences import reshape_result
from kbr.core.filters.training_data import TrainingData, training_data
from kbr.core.inputs import ArrayLike
from kbr.core.rules import ImportanceWeightedRule, Rule
from kbr.core.uncertainty.calibration import next_horizon
from kbr.core.units.units import Units

WIDTHS = (2.0,)  # bandwidth of x over that of z, in medians: 1 in the paper, 2 filters better


@dataclass(kw_only=True, eq=False, repr=False)
class KernelBayesFilter(StoredFilter):
    """Filtering by kernel Bayes' rule, learned from sequences of pairs (x_t, z_t).

    What is None is chosen from the training data alone: eta by KuLSIF's leave-one-out, bandwidths
    and lam by the filter's error on the end of the training sequence. `scales` (of bandwidths, in
    medians), `etas` and `lams` that are given are the only ones tried. `rule` is the update; with
    `ImportanceWeightedRule(normalize=False)` and `widths=(1,)` this is the paper's algorithm to the
    letter, without normalised weights and without recovery from outliers.

    Columns of x and z are standardised inside, unless `standardize` is False. None leaves alone
    what a kernel with a bandwidth of its own, or a feature map, is to see in its own units.

    Ref: Xu et al. 2022, Algorithm 2.
    """

    rule: Rule = field(default_factory=ImportanceWeightedRule)
    eta: float | None = None
    lam_transition: float | None = None
    scales: Sequence[float] | None = None
    widths: Sequence[float] = WIDTHS
    etas: Sequence[float] | None = None
    lams: Sequence[float] | None = None
    engine: Engine = "auto"
    standardize: bool | None = None

    def __post_init__(self) -> None:
        names = (name for name in SETTINGS if name != "standardize")
        self._recipe = Recipe(**{name: getattr(self, name) for name in names})
        self._fitted: Fitted | None = None

    def __setattr__(self, name: str, value: object) -> None:
        if name in SETTINGS and "_recipe" in self.__dict__:
            raise KbrError(
                f"{name} is fixed when the filter is constructed. Make another one: "
                f"KernelBayesFilter({name}=...), or dataclasses.replace(filt, {name}=...)."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        if self._fitted is None:
            return f"KernelBayesFilter(rule={type(self.rule).__name__}, not fitted)"
        operators = self._fitted.operators
        return (
            f"KernelBayesFilter(rule={type(self.rule).__name__}, n={operators.n}, "
            f"engine={operators.update.name}, rank_z={operators.rank})"
        )

    @property
    def choice(self) -> Choice:
        """The hyper-parameters in use, one for each data set fitted together."""
        return self._get().stored.choice

    def fit(
        self,
        x: Any,
        z: Any,
        *,
        time: Any = None,
        circular: Sequence[str] | str = (),
        angle_unit: str = "degrees",
        units: Units | None = None,
        progress: Progress | None = None,
    ) -> "KernelBayesFilter":
        """Learn from x [*b T ...] and z [*b T dz], or from lists of sequences of any lengths.

        Arrays or tables with named columns. Rows with missing values, and gaps of `time`, cut a
        sequence. `circular` names the angles among the columns (x_1, ..., z_1, ... of arrays).
        `units` of another recording take the place of those found here. Batch dimensions of z are
        independent data sets, each with its own hyper-parameters.
        """
        about = {"time": time, "circular": circular, "angle_unit": angle_unit, "units": units}
        self._fit(training_data(x, z, standardize=self._standardized(), **about), progress)
        self._calibrate()
        return self

    def _fit(
        self, data: TrainingData, progress: Progress | None = None, space: Space | None = None
    ) -> "KernelBayesFilter":
        """Choose, in the caller's search space if there is one, and build, without calibrating."""
        choice = self._choose(data.x, data.z, data.lengths, progress, space)
        stored = Stored(data.x, data.z, data.lengths, data.shape, choice, units=data.units)
        self._fitted = self._finish(stored)
        return self

    def tune(
        self, x: ArrayLike | Sequence[ArrayLike], z: ArrayLike | Sequence[ArrayLike]
    ) -> Choice:
        """What `fit` would choose, besides the ridges eta and lam', without fitting."""
        data = training_data(x, z, standardize=self._standardized())
        return self._choose(data.x, data.z, data.lengths)

    def _standardized(self) -> tuple[bool, bool]:
        """Whether x and z are standardised."""
        if self.standardize is not None:
            return self.standardize, self.standardize
        known = isinstance(self.rule.ratio, TransitionRatio)  # a model in the units of z
        return has_no_units(self.rule.kernel_x), has_no_units(self.rule.kernel_z) and not known

    def _filtered(self, x: Tensor) -> KernelFilterResult:
        query, seen, familiar, sequences = self._sequences(x)
        lam = self._lam(query.shape[-3])
        result = run_filter(self.operators, query, seen, lam, familiar)
        return reshape_result(result, sequences)

    def _smoothed(self, x: Tensor) -> KernelFilterResult:
        query, seen, familiar, sequences = self._sequences(x)
        lam, backward = self._lam(query.shape[-3]), self.choice.lam_transition
        result = run_smoother(self.operators, query, seen, lam, backward, familiar)
        return reshape_result(result, sequences)

    def _start(self, prior: Any) -> KernelBelief:
        step = self.operators.start(1) if prior is None else self._prior(prior)
        return self._belief(step, never(step.evidence.squeeze(-1)), 0)

    def _stepped(self, belief: KernelBelief, x: Tensor) -> KernelBelief:
        fitted = self._get()
        operators = fitted.operators
        if x.shape != fitted.expected:
            raise KbrError(
                f"a step takes one observation x of shape {list(fitted.expected)}; got "
                f"{list(x.shape)}. For whole sequences use filter(x)."
            )
        row, seen = x.reshape(fitted.row), None
        if not math.isfinite(row.sum()):  # finite: so is every number in it
            seen = row.isfinite().all(-1)
            row = row.nan_to_num(0.0, 0.0, 0.0)
        query = operators.update.observe(row)
        now = Step(
            belief.weights.unsqueeze(-2),
            belief.state.unsqueeze(-2),
            belief.moments.unsqueeze(-2),
            belief.evidence.unsqueeze(-1),
            first=belief.steps == 0,
        )
        made = operators.step(now, query, fitted.lam, seen, fitted.reach(row))
        evidence = made.evidence.squeeze(-1)
        since = next_horizon(belief.since, evidence)
        return self._belief(made, since, belief.steps + 1, belief.stretch)

    def _ahead(self, belief: KernelBelief, steps: int) -> KernelBelief:
        for _ in range(steps):
            # Before the first observation, the start itself is the prediction of step 1.
            if belief.steps == 0:
                belief = replace(belief, steps=1)
                continue
            made = self.operators.predict(belief.state.unsqueeze(-2))
            since = next_horizon(belief.since, torch.zeros_like(belief.evidence))
            belief = self._belief(made, since, belief.steps + 1, belief.stretch)
        return belief

    def _prior(self, prior: Any) -> Step:
        """An embedding of latents in the units of z, as a belief on the training latents."""
        operators, fitted = self.operators, self._get()
        if operators.points.ndim > 2 or fitted.latents is None:
            raise KbrError(
                "a prior of one's own is for filters of one data set whose dynamics are learned. "
                "Leave prior out."
            )
        given = prior if isinstance(prior, Embedding) else Embedding.from_samples(prior)
        scaling = self.units.z
        columns = operators.points.shape[-1] - sum(scaling.circular)
        if given.points.ndim != 2 or given.points.shape[-1] != columns:
            raise KbrError(
                f"the prior needs points of shape [m, dz] like z of training; got "
                f"{list(given.points.shape)}."
            )
        inner = scaling.apply(given.points.to(operators.points))
        weights = given.weights.to(inner) / given.weights.sum()
        return operators.prior((weights.unsqueeze(0) @ fitted.latents(inner)).reshape(1, -1))

    def _choose(
        self,
        x: Tensor,
        z: Tensor,
        lengths: Sequence[int],
        progress: Progress | None = None,
        space: Space | None = None,
    ) -> Choice:
        transition_pairs(lengths)  # fails early where there is no step to learn from
        recipe, x_few, z_few, few = tuning_part(self._recipe, x, z, lengths)
        return choose(recipe, x_few.to(torch.float64), z_few, few, progress, space)

    def _copy(self, rule: Rule) -> "KernelBayesFilter":
        return replace(self, rule=rule)

    def _finish(self, stored: Stored) -> Fitted:
        """The operators for all training data with the chosen values."""
        recipe, x, z, choice = self._recipe, stored.x, stored.z, stored.choice
        smallest, large = float(choice.lam.min()), is_large(z.shape[-2])
        wide = x if large else x.to(torch.float64)
        recipe = recipe if large else recipe.measured(wide, z)
        if bool(choice.eta.isnan().any()):
            suited, _, some, lengths = tuning_part(recipe, x, z, stored.lengths)
            choice = with_ridges(choice, suited, some, lengths)
        stored = replace(stored, choice=choice)
        ridges = {"eta": choice.eta, "lam_transition": choice.lam_transition}
        if stored.landmarks is None and large:
            scales = (choice.scale_x, choice.scale_z)
            made, latents = large_operators(
                recipe, x, z, stored.lengths, scales=scales, lam=smallest, **ridges
            )
            return Fitted(stored, made, latents)
        eta = float(torch.minimum(choice.eta, choice.lam_transition).min())
        wide, tolerance = wide.to(torch.float64), observation_tolerance(smallest)
        if stored.landmarks is not None:
            rough = self.rule.SPARSE  # the other rule's lam is that of a squared operator
            tolerance = landmark_tolerance(smallest) if rough else tolerance
            update = recipe.update(wide, choice.scale_x, tolerance, lam=smallest, rough=rough)
            given = {name: float(value) for name, value in ridges.items()}
            few, latents = landmark_operators(self.rule, update, z, stored.landmarks, **given)
            return Fitted(stored, few, latents)
        update = recipe.update(wide, choice.scale_x, tolerance, lam=smallest)
        latents = recipe.latents(z, choice.scale_z, latent_tolerance(eta))
        operators = recipe.operators(update, latents, z, stored.lengths, **ridges)
        known = isinstance(self.rule.ratio, TransitionRatio)
        return Fitted(stored, operators, None if known else latents.function)

    def _belief(
        self, step: Step, since: Tensor, steps: int, stretch: Tensor | None = None
    ) -> KernelBelief:
        fitted = self._get()
        return KernelBelief(
            step.evidence.squeeze(-1),
            since,
            steps,
            fitted.answering,
            stretch=stretch,
            points=fitted.operators.points,
            weights=step.weights.squeeze(-2),
            state=step.state.squeeze(-2),
            moments=step.moments.squeeze(-2),
            table=fitted.operators.readout,
        )

    def _lam(self, sequences: int) -> Tensor:
        lam = self.choice.lam
        return lam.unsqueeze(-1).expand(*lam.shape, sequences)

    def _sequences(
        self, x: Tensor
    ) -> tuple[Tensor, Bool[Tensor, "*b s t"], Bool[Tensor, "*b s t"], tuple[int, ...]]:
        """Coordinates of observations [*b s t c], which are there, which are familiar, and s."""
        fitted = self._get()
        batch = tuple(fitted.operators.points.shape[:-2])
        shape = fitted.stored.shape
        lead = tuple(x.shape[: x.ndim - len(shape)])
        short = len(lead) < len(batch) + 1
        if short or tuple(x.shape[len(lead) :]) != shape or lead[: len(batch)] != batch:
            raise KbrError(
                f"observations x must have shape {[*batch, '...', 'T', *shape]}, as in training; "
                f"got {list(x.shape)}."
            )
        if lead[-1] == 0:
            raise KbrError("a sequence of observations needs at least one step; got none.")
        flat = x.to(fitted.operators.points).reshape(*batch, -1, lead[-1], math.prod(shape))
        seen = flat.isfinite().all(-1)
        flat = torch.where(seen.unsqueeze(-1), flat, torch.zeros_like(flat))
        rows = flat.flatten(-3, -2)
        query, familiar = fitted.operators.update.observe(rows), fitted.reach(rows)
        query = query.reshape(*flat.shape[:-1], query.shape[-1])
        return query, seen, familiar.reshape(seen.shape), lead[len(batch) : -1]
