"""Filtering with the true predictive ratio, where the density of the dynamics is known.

The coordinates of a belief are its weights themselves (Phi = I), so a step costs O(n^2): a
reference for the learned ratio, not an engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.kernel.engine import State, Update, Weights
from kbr.core.filters.kernel.step import Move, Operators, Step
from kbr.core.linalg import ridge_solve
from kbr.core.ratios import Ratio
from kbr.core.rules import Rule


@dataclass(frozen=True, kw_only=True, eq=False)
class TransitionRatio(Ratio):
    """The ratio p(z_i | belief) / p(z_i) from a known transition density.

    Math: r_i = sum_j w_j R_ij,  R_ij = p(z_i | z_j) / (1/n sum_l p(z_i | z_l)).
    Ref:  "IW-TrueRatio" of Xu et al. 2022, section 5.1, carried over to filtering; the marginal is
          the mixture of all one-step predictions from the training latents.
    """

    model: StateSpaceModel

    def table(self, z: Float[Tensor, "*b n dz"]) -> Float[Tensor, "*b n n"]:
        """R for the training latents, in a form that cannot overflow."""
        model = self.model.to(device=z.device, dtype=z.dtype)
        error = z.unsqueeze(-2) - model.transition(z).unsqueeze(-3)
        precise = ridge_solve(model.transition_cov, error.flatten(0, -2).mT, ridge=1e-12)
        log_density = -0.5 * (error * precise.mT.reshape(error.shape)).sum(-1)
        return z.shape[-2] * log_density.softmax(-1)

    def __call__(self, features: object, points: Tensor, prior: object) -> Tensor:
        raise KbrError("TransitionRatio serves filters: pass its rule to KernelBayesFilter.")


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownOperators(Operators):
    """Operators whose ratio and prediction come from the table R; a belief is its weights."""

    table: Float[Tensor, "*b n n"]

    @classmethod
    def of(cls, rule: Rule, update: Update, z: Float[Tensor, "*b n dz"]) -> "KnownOperators":
        """For a rule whose ratio is a `TransitionRatio`."""
        assert isinstance(rule.ratio, TransitionRatio)
        table = rule.ratio.table(z)
        return cls(rule=rule, update=update, points=z, readout=MomentsTable.of(z), table=table)

    @property
    def rank(self) -> int:
        return self.n

    def coordinates(self, weights: Weights) -> State:
        return weights

    def advance(self, state: State, u: Move = None) -> State:
        return state @ self.table.mT / self.n

    def ratio(self, m: State, weights: Callable[[], Weights] | None = None) -> Weights:
        return m * self.n

    def ahead(self, state: State, u: Move = None) -> Step:
        return self.belief(self.advance(state))

    def predict(self, state: State, u: Move = None) -> Step:
        return self.ahead(state)  # R keeps the total weight, but for the sample's chance

    def forecast_table(self) -> Float[Tensor, "*b n c"]:
        return self.table.mT @ self.readout.columns / self.n

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "KnownOperators":
        """Bayes' rule turns R into its transpose."""
        return replace(self, table=self.table.mT)
