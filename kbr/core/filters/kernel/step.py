"""Everything a kernel Bayes filter computes before it sees an observation, and one step with it.

A `FilterOperators` is a pure function of training pairs and hyper-parameters. Shapes: *b data sets
fitted together; s sequences filtered together in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kbr.core.features import Features
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.kernel.engine import Update
from kbr.core.filters.kernel.transition import transition_pairs
from kbr.core.linalg import ridge_cholesky, ridge_solve
from kbr.core.rules import NEGLIGIBLE, Rule, has_evidence
from kbr.core.tables import at_rows, sum_rows


@dataclass(frozen=True, eq=False)
class Step:
    """The outcome of one step for every sequence."""

    weights: Float[Tensor, "*b s n"]
    state: Float[Tensor, "*b s p"]
    moments: Float[Tensor, "*b s c"]
    evidence: Bool[Tensor, "*b s"]


@dataclass(frozen=True, eq=False)
class FilterOperators:
    """Math, with m the prior's coordinates and u the posterior's:
    r~ = Phi (C_ZZ + eta I)^-1 m,    C_ZZ = Phi'Phi / n, its ridged Cholesky factor `marginal`;
    w  = update(r~, x),              u = Phi' w;
    m+ = E' u,                       E = (C_prev,prev + lam' I)^-1 C_prev,post.
    """

    rule: Rule
    update: Update
    normalize: bool
    points: Float[Tensor, "*b n dz"]
    phi: Float[Tensor, "*b n p"]
    marginal: Float[Tensor, "*b p p"]
    transition: Float[Tensor, "*b p p"]
    prediction: Float[Tensor, "*b p _"]
    after: Int[Tensor, "k"]
    readout: MomentsTable

    @property
    def n(self) -> int:
        return self.phi.shape[-2]

    def start(self, sequences: int) -> Step:
        """The belief before any observation: uniform weights on the training latents."""
        batch = self.phi.shape[:-2]
        weights = self.points.new_full((*batch, sequences, self.n), 1 / self.n)
        none = torch.zeros(*batch, sequences, dtype=torch.bool, device=self.phi.device)
        return self._step(weights, none)

    def ratio(self, m: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s n"]:
        """The ratio r~ of priors with coordinates m, as KuLSIF estimates it."""
        return at_rows(torch.cholesky_solve(m.mT, self.marginal).mT, self.phi)

    def weigh(self, ratio: Float[Tensor, "*b s n"]) -> Float[Tensor, "*b s n"]:
        """The ratio times the points' masses n c_i: one each, unless the filter is compressed."""
        return ratio

    def predict(self, state: Float[Tensor, "*b s p"]) -> Step:
        """The belief one step ahead, on the training latents that follow another one."""
        weights = state.new_zeros(*state.shape[:-1], self.n)
        weights = weights.index_copy(-1, self.after, self._ahead(state))
        if self.normalize:
            total = weights.sum(-1, keepdim=True)
            weights = torch.where(total > 0, weights / total, 1 / self.n)
        none = torch.zeros(state.shape[:-1], dtype=torch.bool, device=state.device)
        return self._step(weights, none)

    def step(
        self,
        prior: Step | None,
        state: Float[Tensor, "*b s p"],
        query: Float[Tensor, "*b s c"],
        seen: Bool[Tensor, "*b s"] | None,
        lam: Float[Tensor, "*b s"],
        familiar: Bool[Tensor, "*b s"] | None = None,
    ) -> Step:
        """Predict from `state` (or take `prior`, before the first step), then update where seen.

        An observation that is not `familiar`, unlike any of training, is no evidence either. None
        for either: all are.
        """
        m = prior.state if prior is not None else state @ self.transition
        r = self.rule.effective_ratio(self.weigh(self.ratio(m)))
        weights = self.update.weights(self.rule, r, query, lam)
        total = weights.sum(-1)
        usable = has_evidence(weights, total)
        for there in (seen, familiar):
            usable = usable if there is None else usable & there
        keep = usable
        if not self.normalize:
            # To the letter of the paper, weights stand as they are; only a missing x is a
            # prediction. Once their total has died away the answer is worth nothing.
            keep = torch.ones_like(usable) if seen is None else seen
            usable = usable & (total > NEGLIGIBLE)
        everywhere = not torch.compiler.is_compiling() and bool(keep.all())
        if self.normalize:
            total = total if everywhere else torch.where(usable, total, 1.0)
            weights = weights / total.unsqueeze(-1)
        made = self._step(weights, usable)
        if everywhere:
            return made
        fallback = prior if prior is not None else self.predict(state)
        choose = keep.unsqueeze(-1)
        return Step(
            torch.where(choose, made.weights, fallback.weights),
            torch.where(choose, made.state, fallback.state),
            torch.where(choose, made.moments, fallback.moments),
            usable,
        )

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "FilterOperators":
        """The same filter with time running backwards: from z_t+1 to z_t."""
        before = self.after - 1
        early, late = self.phi.index_select(-2, self.after), self.phi.index_select(-2, before)
        transition, prediction = _dynamics(early, late, lam_transition)
        return replace(self, after=before, transition=transition, prediction=prediction)

    def advance(self, state: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s p"]:
        """Coordinates of the prediction, before it is normalised."""
        return state @ self.transition

    def forecast_table(self) -> Float[Tensor, "*b p c"]:
        """Moments of a prediction as a linear function of the state: no sums over points."""
        return self.prediction @ self.readout.columns.index_select(-2, self.after)

    def _ahead(self, state: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s k"]:
        """Weights of a prediction on the later points."""
        return state @ self.prediction

    def _step(self, weights: Tensor, evidence: Tensor) -> Step:
        return Step(weights, sum_rows(weights, self.phi), self.readout(weights), evidence)


def build_operators(
    rule: Rule,
    update: Update,
    latents: Features,
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    *,
    eta: float | Tensor,
    lam_transition: float | Tensor,
    normalize: bool,
) -> FilterOperators:
    """All operators of a filter, for training sequences of the given lengths laid end to end."""
    phi = latents.train
    before, after = (index.to(phi.device) for index in transition_pairs(lengths))
    early, late = phi.index_select(-2, before), phi.index_select(-2, after)
    transition, prediction = _dynamics(early, late, lam_transition)
    return FilterOperators(
        rule=rule,
        update=update,
        normalize=normalize,
        points=z,
        phi=phi,
        marginal=ridge_cholesky(phi.mT @ phi / phi.shape[-2], ridge=eta, name="eta"),
        transition=transition,
        prediction=prediction,
        after=after,
        readout=MomentsTable.of(z),
    )


def _dynamics(
    early: Float[Tensor, "*b k p"], late: Float[Tensor, "*b k p"], lam: float | Tensor
) -> tuple[Float[Tensor, "*b p p"], Float[Tensor, "*b p k"]]:
    """The transition in coordinates, and the weights of a prediction on the later points.

    Math: E = (C + lam' I)^-1 early'late / k;  w+ = (C + lam' I)^-1 early'/k applied to u.
    """
    k = early.shape[-2]
    second = early.mT @ early / k
    prediction = ridge_solve(second, early.mT / k, ridge=lam, name="lam_transition")
    return prediction @ late, prediction
