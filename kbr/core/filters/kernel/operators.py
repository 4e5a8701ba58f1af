"""Operators with learned dynamics: KuLSIF ratios, and a ridge regression of z_t+1 on z_t."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.features import Features
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.kernel.engine import Update
from kbr.core.filters.kernel.step import Operators, Step
from kbr.core.filters.kernel.transition import transition_pairs
from kbr.core.linalg import ridge_cholesky, ridge_solve
from kbr.core.rules import Rule
from kbr.core.tables import at_rows, sum_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedOperators(Operators):
    """Beliefs with coordinates u = Phi'w in features of the latents.

    `marginal` is the Cholesky factor of C_ZZ + eta I, `transition` is E, and `after` are the rows
    that follow another one: predictions have their weight there.
    """

    phi: Float[Tensor, "*b n p"]
    marginal: Float[Tensor, "*b p p"]
    transition: Float[Tensor, "*b p p"]
    after: Int[Tensor, "k"]

    @property
    def rank(self) -> int:
        return self.phi.shape[-1]

    def coordinates(self, weights: Float[Tensor, "*b s n"]) -> Float[Tensor, "*b s p"]:
        return sum_rows(weights, self.phi)

    def advance(self, state: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s p"]:
        return state @ self.transition

    def ratio(self, m: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s n"]:
        return at_rows(torch.cholesky_solve(m.mT, self.marginal).mT, self.phi)

    def ahead(self, state: Float[Tensor, "*b s p"]) -> Step:
        weights = state.new_zeros(*state.shape[:-1], self.n)
        return self.belief(weights.index_copy(-1, self.after, self.later(state)))

    @abstractmethod
    def later(self, state: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s k"]:
        """Weights of a prediction on the rows `after`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseOperators(LearnedOperators):
    """With a table of the predictions, p x k."""

    prediction: Float[Tensor, "*b p k"]

    def later(self, state: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s k"]:
        return state @ self.prediction

    def forecast_table(self) -> Float[Tensor, "*b p c"]:
        return self.prediction @ self.readout.columns.index_select(-2, self.after)

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "DenseOperators":
        before = self.after - 1
        transition, prediction = _dynamics(self.phi, self.after, before, lam_transition)
        return replace(self, after=before, transition=transition, prediction=prediction)


def dense_operators(
    rule: Rule,
    update: Update,
    latents: Features,
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    *,
    eta: float | Tensor,
    lam_transition: float | Tensor,
) -> DenseOperators:
    """All operators of a filter, for training sequences of the given lengths laid end to end."""
    phi = latents.train
    before, after = (index.to(phi.device) for index in transition_pairs(lengths))
    transition, prediction = _dynamics(phi, before, after, lam_transition)
    return DenseOperators(
        rule=rule,
        update=update,
        points=z,
        readout=MomentsTable.of(z),
        phi=phi,
        marginal=ridge_cholesky(phi.mT @ phi / phi.shape[-2], ridge=eta, name="eta"),
        transition=transition,
        after=after,
        prediction=prediction,
    )


def _dynamics(
    phi: Float[Tensor, "*b n p"], before: Tensor, after: Tensor, lam: float | Tensor
) -> tuple[Float[Tensor, "*b p p"], Float[Tensor, "*b p k"]]:
    """The transition in coordinates, and the weights of a prediction on the later points.

    Math: E = (C + lam' I)^-1 early'late / k;  w+ = (C + lam' I)^-1 early'/k applied to u.
    """
    early, late = phi.index_select(-2, before), phi.index_select(-2, after)
    k = early.shape[-2]
    second = early.mT @ early / k
    prediction = ridge_solve(second, early.mT / k, ridge=lam, name="lam_transition")
    return prediction @ late, prediction
