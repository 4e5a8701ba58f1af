"""Filtering with the true predictive ratio, where the density of the dynamics is known.

The coordinates of a belief are its weights themselves (Phi = I), so a step costs O(n^2): a
reference for the learned ratio, not an engine.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.kernel.engine import Update
from kbr.core.filters.kernel.step import FilterOperators, Step
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


@dataclass(frozen=True, eq=False)
class KnownOperators(FilterOperators):
    """Filter operators whose ratio and prediction come from the table R."""

    table: Float[Tensor, "*b n n"]

    def ratio(self, m: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s n"]:
        return m @ self.table.mT

    def predict(self, state: Float[Tensor, "*b s p"]) -> Step:
        weights = self.ratio(state) / self.n
        none = torch.zeros(state.shape[:-1], dtype=torch.bool, device=state.device)
        return self._step(weights, none)

    def advance(self, state: Float[Tensor, "*b s n"]) -> Float[Tensor, "*b s n"]:
        return self.ratio(state) / self.n

    def forecast_table(self) -> Float[Tensor, "*b n c"]:
        return self.table.mT @ self.readout.columns / self.n

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "KnownOperators":
        """Bayes' rule turns R into its transpose."""
        return _operators(self.rule, self.update, self.points, self.table.mT, self.normalize)


def known_operators(
    rule: Rule, update: Update, z: Float[Tensor, "*b n dz"], *, normalize: bool
) -> KnownOperators:
    """Operators for a rule whose ratio is a `TransitionRatio`."""
    assert isinstance(rule.ratio, TransitionRatio)
    return _operators(rule, update, z, rule.ratio.table(z), normalize)


def _operators(
    rule: Rule, update: Update, z: Tensor, table: Tensor, normalize: bool
) -> KnownOperators:
    n = z.shape[-2]
    identity = torch.eye(n, dtype=z.dtype, device=z.device).expand(*z.shape[:-2], n, n)
    return KnownOperators(
        rule=rule,
        update=update,
        normalize=normalize,
        points=z,
        phi=identity,
        marginal=identity,
        transition=identity,
        prediction=identity,
        after=torch.arange(n, device=z.device),
        readout=MomentsTable.of(z),
        table=table,
    )
