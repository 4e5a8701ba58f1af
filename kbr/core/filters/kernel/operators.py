"""Operators with learned dynamics: KuLSIF ratios, and a ridge regression of z_t+1 on z_t.

Ref: Xu et al. 2022, section 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Features
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.kernel.dynamics.lift import Lift
from kbr.core.filters.kernel.engine import State, Update, Weights
from kbr.core.filters.kernel.step import Lifted, Move, Operators, Step
from kbr.core.linalg import ridge_cholesky
from kbr.core.rules import Rule
from kbr.core.tables import at_rows, blocks, sum_rows

SCORED = 2000  # steps that a ridge is scored on at most, evenly spaced
PredictedRatio = Callable[[State, Callable[[], Weights]], Weights]
Score = Callable[[float | Tensor], Float[Tensor, "*b"]]  # of a ridge, a number or [*b 1]


@runtime_checkable
class FilterRatio(Protocol):
    """What a ratio of one's own implements to serve a filter; derived from it, it can be saved."""

    def for_filter(self, phi: Float[Tensor, "*b n p"], eta: Float[Tensor, "*b"]) -> PredictedRatio:
        """The ratio at the n training points as a function of predictions: `ratio(m, weights)`.

        Called once, with features of the training latents (float32 for very many) and the filter's
        eta. The function is called at every step, with the coordinates m = Phi'a [*b s p] of s
        predictions; `weights()` computes their weights a [*b s n]. It gives [*b s n].
        """
        ...


@dataclass(frozen=True, eq=False)
class LatentSums:
    """Second moments of the latents' features: of all, of the earlier and the later of each step.

    `cross` is that of both. Where controls move the latents, the earlier is lifted: q for p.
    """

    total: Float[Tensor, "*b p p"]
    early: Float[Tensor, "*b q q"]
    late: Float[Tensor, "*b p p"]
    cross: Float[Tensor, "*b q p"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureOperators(Operators):
    """Beliefs with coordinates u = Phi'w in features of the latents; `transition` is E."""

    phi: Float[Tensor, "*b n p"]
    transition: Float[Tensor, "*b q p"]

    @property
    def rank(self) -> int:
        return self.phi.shape[-1]

    def coordinates(self, weights: Weights) -> State:
        return sum_rows(weights, self.phi)

    def advance(self, state: State, u: Move = None) -> State:
        return self.lifted(state, u) @ self.transition


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedOperators(FeatureOperators):
    """Operators on all training points.

    Math: E = (C_prev + lam' I)^-1 C_prev,post;  w+ = Phi_prev (C_prev + lam' I)^-1 u / k.
    `marginal` is the Cholesky factor of C_ZZ + eta I, `ridged` that of C_prev + lam' I, and
    `predictor` is E (C_ZZ + eta I)^-1, which leads to the ratio in one product. Predictions have
    their weight on the rows `after`, each of which follows one of `before`. `own` is the ratio
    where it is not KuLSIF's. `notes` say where a kernel's rank was cut, and what to set instead.
    `lift` joins latents with controls: then it gives Phi_prev, and beliefs are lifted.
    """

    sums: LatentSums
    marginal: Float[Tensor, "*b p p"]
    ridged: Float[Tensor, "*b q q"]
    predictor: Float[Tensor, "*b q p"]
    before: Int[Tensor, "k"]
    after: Int[Tensor, "k"]
    own: PredictedRatio | None = None
    notes: tuple[str, ...] = ()
    lift: Lift | None = None

    @property
    def controls(self) -> int:
        return 0 if self.lift is None else self.lift.u.shape[-1]

    def lifted(self, state: State, u: Move = None) -> Lifted:
        if self.lift is None:
            return state
        assert u is not None
        return self.lift(state, u)

    def ratio(self, m: State, weights: Callable[[], Weights] | None = None) -> Weights:
        if self.own is None or weights is None:
            return self.at_points(torch.cholesky_solve(m.mT, self.marginal).mT)
        ratio, expected = self.own(m, weights), (*m.shape[:-1], self.n)
        if ratio.shape != expected:
            raise KbrError(
                f"the ratio of {type(self.rule.ratio).__name__}.for_filter must have the shape "
                f"{list(expected)}, a value for each training point; got {list(ratio.shape)}."
            )
        return ratio.to(m.dtype)

    def ahead_ratio(self, state: State, u: Move = None) -> Weights:
        if self.own is not None:
            return super().ahead_ratio(state, u)
        return self.at_points(self.lifted(state, u) @ self.predictor)

    def at_points(self, solved: State) -> Weights:
        """The ratio Phi s, with s = (C_ZZ + eta I)^-1 m."""
        return at_rows(solved, self.phi)

    def ahead(self, state: State, u: Move = None) -> Step:
        solved = torch.cholesky_solve(self.lifted(state, u).mT, self.ridged).mT / len(self.before)
        if self.lift is None:
            later = at_rows(solved, self.phi).index_select(-1, self.before)
        else:
            later = at_rows(solved, self.lift.rows)
        weights = state.new_zeros(*state.shape[:-1], self.n)
        return self.belief(weights.index_copy(-1, self.after, later))

    def forecast_table(self) -> Float[Tensor, "*b q c"]:
        columns, k, lift = self.readout.columns, len(self.before), self.lift
        total = columns.new_zeros(*self.ridged.shape[:-1], columns.shape[-1])
        for rows in blocks(k):
            at = self.before[rows]
            early = self.phi.index_select(-2, at) if lift is None else lift.rows[..., rows, :]
            total += early.to(columns.dtype).mT @ columns.index_select(-2, self.after[rows])
        return torch.cholesky_solve(total / k, self.ridged)

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "LearnedOperators":
        sums, lift = self.sums, self.lift
        if lift is None:
            turned = LatentSums(sums.total, sums.late, sums.early, sums.cross.mT)
        else:
            lift = lift.starting(self.phi.index_select(-2, self.after))
            turned = replace(sums, **lift.sums(self.phi, self.before))
        dynamics = _dynamics(turned, len(self.before), lam_transition, self.marginal)
        dynamics |= {"before": self.after, "after": self.before}
        return replace(self, sums=turned, lift=lift, **dynamics)


def learned_operators(
    rule: Rule,
    update: Update,
    z: Float[Tensor, "*b n dz"],
    phi: Float[Tensor, "*b n p"],
    sums: LatentSums,
    lengths: Sequence[int],
    *,
    eta: float | Tensor,
    lam_transition: float | Tensor,
    notes: tuple[str, ...] = (),
    lift: Lift | None = None,
) -> LearnedOperators:
    """All operators of a filter, for training sequences of the given lengths laid end to end.

    `sums` are those of the features that `lift` makes, where there is one.
    """
    before, after = (rows.to(z.device) for rows in transition_pairs(lengths))
    own = None
    if isinstance(rule.ratio, FilterRatio):
        own = rule.ratio.for_filter(phi, z.new_zeros(z.shape[:-2]) + eta)
    marginal = ridge_cholesky(sums.total / z.shape[-2], ridge=eta, name="eta")
    return LearnedOperators(
        rule=rule,
        update=update,
        points=z,
        readout=MomentsTable.of(z),
        phi=phi,
        sums=sums,
        marginal=marginal,
        before=before,
        after=after,
        own=own,
        notes=notes if lift is None else (*notes, *lift.notes),
        lift=lift,
        **_dynamics(sums, len(before), lam_transition, marginal),
    )


def lifted_sums(
    sums: LatentSums, lift: Lift | None, phi: Float[Tensor, "*b n p"], lengths: Sequence[int]
) -> LatentSums:
    """The same where controls move the latents: of the steps' lifted features."""
    if lift is None:
        return sums
    _, after = transition_pairs(lengths)
    return replace(sums, **lift.sums(phi, after.to(phi.device)))


def dense_operators(
    rule: Rule,
    update: Update,
    latents: Features,
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    **dynamics: Any,
) -> LearnedOperators:
    """The operators where all features of the latents are at hand; `dynamics`: ridges and lift."""
    phi = latents.train
    early, late = (phi.index_select(-2, rows.to(z.device)) for rows in transition_pairs(lengths))
    sums = LatentSums(phi.mT @ phi, early.mT @ early, late.mT @ late, early.mT @ late)
    sums = lifted_sums(sums, dynamics.get("lift"), phi, lengths)
    return learned_operators(rule, update, z, phi, sums, lengths, **dynamics)


def _dynamics(sums: LatentSums, k: int, lam: float | Tensor, marginal: Tensor) -> dict[str, Any]:
    ridged = ridge_cholesky(sums.early / k, ridge=lam, name="lam_transition")
    transition = torch.cholesky_solve(sums.cross / k, ridged)
    predictor = torch.cholesky_solve(transition.mT, marginal).mT
    return {"ridged": ridged, "transition": transition, "predictor": predictor}


def transition_pairs(lengths: Sequence[int]) -> tuple[Int[Tensor, "k"], Int[Tensor, "k"]]:
    """Rows (before, after) of every step inside a sequence; steps never cross a border."""
    before, start = [], 0
    for length in lengths:
        before.append(torch.arange(start, start + length - 1, device="cpu"))
        start += length
    previous = torch.cat(before)
    if previous.numel() == 0:
        raise KbrError(
            "the filter learns the dynamics from consecutive steps, so a training sequence needs "
            f"at least 2 of them; got sequences of lengths {list(lengths)}. Raise n_train."
        )
    return previous, previous + 1


def leave_one_out_score(
    phi: Float[Tensor, "*b n p"],
    before: Float[Tensor, "*b k q"],
    after: Float[Tensor, "*b k p"],
) -> Score:
    """Leave-one-out KuLSIF score of the predictive ratios p(z'|z_j) / p(z'), for lam' = eta.

    In a filter the ratio's numerator is a prediction, so KuLSIF is scored on predictions: for every
    step j the transition and the marginal are fitted without that step, and z_j+1 is the sample.
    A function of eta, a number or a tensor [*b 1]; both spectra are computed once.

    Math: J(eta) = mean_j [ b_j' C b_j / 2 - phi_j+1' b_j ],  b_j = (C_-j + eta I)^-1 E_-j' phi_j.
    Ref:  Kanamori et al. 2012, section 5, with the closed form of ridge regression's residuals.

    Data sets of a batch are taken one by one: what is made of all is larger than the cache, and
    most of them have a lower rank than the batch.
    """
    if phi.ndim > 2:
        return _each([leave_one_out_score(*one) for one in zip(phi, before, after, strict=True)])
    used = phi.any(0)
    phi, after, before = phi[:, used], after[:, used], before[:, before.any(0)]
    n, k = phi.shape[-2], before.shape[-2]
    marginal, vectors = torch.linalg.eigh(phi.mT @ phi)
    rotated = after @ vectors
    spectrum, basis = torch.linalg.eigh(before.mT @ before)
    coords = before @ basis
    cross = coords.mT @ rotated
    if k > SCORED:
        rows = torch.linspace(0, k - 1, SCORED, device=phi.device).round().long()
        coords, rotated = (part.index_select(-2, rows) for part in (coords, rotated))

    def score(eta: float | Tensor) -> Tensor:
        shrunk = coords / (spectrum.clamp_min(0) + k * eta).unsqueeze(-2)
        leverage = (shrunk * coords).sum(-1, keepdim=True).clamp_max(1 - 1e-9)
        m = (shrunk @ cross - leverage * rotated) / (1 - leverage)
        inverse = 1 / (marginal.clamp_min(0) + (n - 1) * eta).unsqueeze(-2)
        own = (rotated.square() * inverse).sum(-1, keepdim=True).clamp_max(1 - 1e-9)
        half = m * inverse
        hit = (half * rotated).sum(-1, keepdim=True) / (1 - own)
        beta = (n - 1) * (half + inverse * rotated * hit)
        fit = (beta.square() * marginal.clamp_min(0).unsqueeze(-2)).sum(-1) / n
        loss: Tensor = fit / 2 - (n - 1) * hit.squeeze(-1)
        return loss.mean(-1)

    return score


def _each(scores: Sequence[Score]) -> Score:
    """The scores of all data sets, at one eta or at one for each."""

    def score(eta: float | Tensor) -> Tensor:
        etas = eta if isinstance(eta, Tensor) else [eta] * len(scores)
        return torch.stack([one(own) for one, own in zip(scores, etas, strict=True)])

    return score
