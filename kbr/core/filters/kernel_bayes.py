"""The kernel Bayes filter: no model of the dynamics or the sensor, only training sequences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from kbr.core.calibration import Calibration
from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief, KernelFilterResult
from kbr.core.filters.landmarks import landmark_operators, landmark_tolerance
from kbr.core.filters.large import is_large, large_operators, tuning_part
from kbr.core.filters.operators import Step
from kbr.core.filters.recipe import Engine, Recipe, latent_tolerance, observation_tolerance
from kbr.core.filters.run import run_filter, run_smoother
from kbr.core.filters.sequences import reshape_result, training_sequences
from kbr.core.filters.storage import Stored
from kbr.core.filters.stored_filter import SETTINGS, Fitted, StoredFilter
from kbr.core.filters.transition import transition_pairs
from kbr.core.filters.tuning import Choice, Progress, choose, with_ridges
from kbr.core.inputs import ArrayLike, as_tensor
from kbr.core.rules import ImportanceWeightedRule, Rule

SCALES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
WIDTHS = (2.0,)  # bandwidth of x over that of z, in medians: 1 in the paper, 2 filters better
ETAS = tuple(10.0 ** (k / 2) for k in range(-14, -5))  # 1e-7 .. 1e-3


@dataclass(kw_only=True, eq=False, repr=False)
class KernelBayesFilter(StoredFilter):
    """Filtering by kernel Bayes' rule, learned from sequences of pairs (x_t, z_t).

    What is None is chosen from the training data alone: eta by KuLSIF's leave-one-out, bandwidths
    and lam by the filter's error on the end of the training sequence. `rule` is the update; with
    `ImportanceWeightedRule(normalize=False)` and `widths=(1,)` this is the paper's algorithm to the
    letter, without normalised weights and without recovery from outliers.

    Ref: Xu et al. 2022, Algorithm 2.
    """

    rule: Rule = field(default_factory=ImportanceWeightedRule)
    eta: float | None = None
    lam_transition: float | None = None
    scales: Sequence[float] = SCALES
    widths: Sequence[float] = WIDTHS
    etas: Sequence[float] = ETAS
    lams: Sequence[float] | None = None
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        self._recipe = Recipe(**{name: getattr(self, name) for name in SETTINGS})
        self._fitted: Fitted | None = None
        self._calibration: Calibration | None = None

    def __repr__(self) -> str:
        if self._fitted is None:
            return f"KernelBayesFilter(rule={type(self.rule).__name__}, not fitted)"
        operators = self._fitted.operators
        return (
            f"KernelBayesFilter(rule={type(self.rule).__name__}, n={operators.n}, "
            f"engine={operators.update.name}, rank_z={operators.phi.shape[-1]})"
        )

    @property
    def choice(self) -> Choice:
        """The hyper-parameters in use, one for each data set fitted together."""
        return self._get().stored.choice

    def fit(
        self,
        x: ArrayLike | Sequence[ArrayLike],
        z: ArrayLike | Sequence[ArrayLike],
        *,
        progress: Progress | None = None,
    ) -> "KernelBayesFilter":
        """Learn from x [*b T ...] and z [*b T dz], or from lists of sequences of any lengths.

        Batch dimensions of z are independent data sets, each with its own hyper-parameters.
        """
        x_, z_, lengths, shape = training_sequences(x, z)
        wide = z_.to(torch.float64)
        choice = self._choose(x_, wide, lengths, progress)
        self._fitted = self._finish(Stored(x_, wide, lengths, shape, choice))
        self._calibration = None
        return self

    def tune(
        self, x: ArrayLike | Sequence[ArrayLike], z: ArrayLike | Sequence[ArrayLike]
    ) -> Choice:
        """What `fit` would choose, besides the ridges eta and lam', without fitting."""
        x_, z_, lengths, _ = training_sequences(x, z)
        return self._choose(x_, z_.to(torch.float64), lengths, None)

    def filter(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step of x [*b *s T ...]; rows with NaN are missing and are predicted."""
        query, seen, sequences = self._sequences(x)
        result = run_filter(self.operators, query, seen, self._lam(query.shape[-3]))
        return reshape_result(result, sequences)

    def smooth(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step given the whole sequence, past and future."""
        query, seen, sequences = self._sequences(x)
        lam, backward = self._lam(query.shape[-3]), self.choice.lam_transition
        result = run_smoother(self.operators, query, seen, lam, backward)
        return reshape_result(result, sequences)

    def init(self) -> Belief:
        """The belief before any observation: every training latent equally likely."""
        return self._belief(self.operators.start(1), 0)

    def step(self, belief: Belief, x: ArrayLike) -> Belief:
        """The belief after one more observation x [*b ...]; NaN in x: a prediction only."""
        fitted = self._get()
        operators, one = fitted.operators, as_tensor(x, name="x")
        if one.shape != fitted.expected:
            raise KbrError(
                f"a step takes one observation x of shape {list(fitted.expected)}; got "
                f"{list(one.shape)}. For whole sequences use filter(x)."
            )
        row, seen = one.to(operators.points).reshape(fitted.row), fitted.seen
        if not math.isfinite(row.sum()):  # finite: so is every number in it
            seen = row.isfinite().all(-1)
            row = row.nan_to_num(0.0, 0.0, 0.0)
        query = operators.update.observe(row)
        prior = operators.start(1) if belief.steps == 0 else None
        made = operators.step(prior, belief.state.unsqueeze(-2), query, seen, fitted.lam)
        return self._belief(made, belief.steps + 1)

    def forecast(self, belief: Belief, steps: int = 1) -> Belief:
        """The belief `steps` ahead, with no observation in between."""
        if steps < 1:
            raise KbrError(f"steps must be at least 1; got {steps}.")
        for _ in range(steps):
            # Before the first observation, the start itself is the prediction of step 1.
            made = self.operators.predict(belief.state.unsqueeze(-2))
            ahead = self._belief(made, belief.steps + 1)
            belief = ahead if belief.steps else replace(belief, steps=1)
        return belief

    def _choose(
        self, x: Tensor, z: Tensor, lengths: Sequence[int], progress: Progress | None
    ) -> Choice:
        transition_pairs(lengths)  # fails early where there is no step to learn from
        recipe, x_few, z_few, few = tuning_part(self._recipe, x, z, lengths)
        return choose(recipe, x_few.to(torch.float64), z_few, few, progress)

    def _copy(self, rule: Rule) -> "KernelBayesFilter":
        return replace(self, rule=rule)

    def _finish(self, stored: Stored) -> Fitted:
        """The operators for all training data with the chosen values."""
        recipe, x, z, choice = self._recipe, stored.x, stored.z, stored.choice
        smallest = float(choice.lam.min())
        if bool(choice.eta.isnan().any()):
            _, _, some, lengths = tuning_part(recipe, x, z, stored.lengths)
            close = recipe.latents(some, choice.scale_z, latent_tolerance(min(recipe.etas)))
            choice = with_ridges(choice, *recipe.ridges(close.train, lengths), recipe)
        ridges = {"eta": choice.eta, "lam_transition": choice.lam_transition}
        if stored.landmarks is None and is_large(z.shape[-2]):
            scales = (choice.scale_x, choice.scale_z)
            made = large_operators(
                recipe, x, z, stored.lengths, scales=scales, lam=smallest, **ridges
            )
            return Fitted(replace(stored, choice=choice), made)
        eta = float(torch.minimum(choice.eta, choice.lam_transition).min())
        wide, tolerance = x.to(torch.float64), observation_tolerance(smallest)
        if stored.landmarks is not None:
            rough = self.rule.SPARSE  # the other rule's lam is that of a squared operator
            tolerance = landmark_tolerance(smallest) if rough else tolerance
            update = recipe.update(wide, choice.scale_x, tolerance, lam=smallest, rough=rough)
            few = landmark_operators(self.rule, update, z, stored.landmarks, eta=float(choice.eta))
            return Fitted(replace(stored, choice=choice), few)
        update = recipe.update(wide, choice.scale_x, tolerance, lam=smallest)
        latents = recipe.latents(z, choice.scale_z, latent_tolerance(eta))
        operators = recipe.operators(update, latents, z, stored.lengths, **ridges)
        return Fitted(replace(stored, choice=choice), operators)

    def _belief(self, step: Step, steps: int) -> Belief:
        return Belief(
            self.operators.points,
            step.weights.squeeze(-2),
            step.state.squeeze(-2),
            step.evidence.squeeze(-1),
            steps,
        )

    def _lam(self, sequences: int) -> Tensor:
        lam = self.choice.lam
        return lam.unsqueeze(-1).expand(*lam.shape, sequences)

    def _sequences(self, x: ArrayLike) -> tuple[Tensor, Bool[Tensor, "*b s t"], tuple[int, ...]]:
        """Coordinates of observations [*b s t c], which of them are there, and the shape of s."""
        fitted = self._get()
        batch = tuple(fitted.operators.points.shape[:-2])
        tensor = as_tensor(x, name="x").to(fitted.operators.points)
        shape = fitted.stored.shape
        lead = tuple(tensor.shape[: tensor.ndim - len(shape)])
        short = len(lead) < len(batch) + 1
        if short or tuple(tensor.shape[len(lead) :]) != shape or lead[: len(batch)] != batch:
            raise KbrError(
                f"observations x must have shape {[*batch, '...', 'T', *shape]}, as in training; "
                f"got {list(tensor.shape)}."
            )
        if lead[-1] == 0:
            raise KbrError("a sequence of observations needs at least one step; got none.")
        flat = tensor.reshape(*batch, -1, lead[-1], fitted.stored.x.shape[-1])
        seen = flat.isfinite().all(-1)
        flat = torch.where(seen.unsqueeze(-1), flat, torch.zeros_like(flat))
        query = fitted.operators.update.observe(flat.flatten(-3, -2))
        query = query.reshape(*flat.shape[:-1], query.shape[-1])
        return query, seen, lead[len(batch) : -1]
