"""Running a filter over whole sequences, and back again for smoothing."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult, result_from_moments
from kbr.core.filters.operators import FilterOperators, Step
from kbr.core.rules import has_evidence, normalize_ratio


def run_filter(
    operators: FilterOperators,
    query: Float[Tensor, "*b s t c"],
    seen: Bool[Tensor, "*b s t"],
    lam: Float[Tensor, "*b s"],
) -> KernelFilterResult:
    """Filter every sequence from the uniform start; `query` holds the observations' coordinates."""
    now = operators.start(query.shape[-3])
    prior: Step | None = now
    moments, evidence, norms, states = [], [], [], []
    for x, there in zip(query.unbind(-2), seen.unbind(-1), strict=True):
        now = operators.step(prior, now.state, x, there, lam)
        prior = None
        moments.append(now.moments)
        evidence.append(now.evidence)
        states.append(now.state)
        norms.append(torch.linalg.vector_norm(now.weights, dim=-1))
    return result_from_moments(
        torch.stack(moments, -2),
        torch.stack(evidence, -1),
        torch.stack(norms, -1),
        torch.stack(states, -2),
        operators.points.shape[-1],
    )


def run_smoother(
    operators: FilterOperators,
    query: Float[Tensor, "*b s t c"],
    seen: Bool[Tensor, "*b s t"],
    lam: Float[Tensor, "*b s"],
    lam_transition: Float[Tensor, "*b"],
) -> KernelFilterResult:
    """Beliefs given the whole sequence: a filter forwards, one backwards, and one update of both.

    Math: p(z_t | all x but x_t) / p(z_t) = r_t s_t up to a constant, r_t the ratio predicted from
          the past, s_t the one predicted from the future by the reversed transition; the rule with
          this ratio and x_t gives the smoothed weights.
    Ref:  Bresler 1986 (two-filter smoothing), here with learned ratios in place of densities.
    """
    backwards = operators.reverse(lam_transition)
    past = run_filter(operators, query, seen, lam)
    future = run_filter(backwards, query.flip(-2), seen.flip(-1), lam)
    ratios = _predicted(operators, past) * _predicted(backwards, future).flip(-2)
    rule, n = operators.rule, operators.n
    moments, norms, states = [], [], []
    for t in range(query.shape[-2]):
        r = normalize_ratio(operators.weigh(ratios[..., t, :]))
        weights = operators.update.weights(rule, r, query[..., t, :], lam)
        usable = (has_evidence(weights) & seen[..., t]).unsqueeze(-1)
        total = torch.where(usable, weights.sum(-1, keepdim=True), 1.0)
        weights = torch.where(usable, weights / total, r / n)
        moments.append(weights @ operators.readout)
        states.append(weights @ operators.phi)
        norms.append(torch.linalg.vector_norm(weights, dim=-1))
    return result_from_moments(
        torch.stack(moments, -2),
        past.evidence,
        torch.stack(norms, -1),
        torch.stack(states, -2),
        operators.points.shape[-1],
    )


def _predicted(operators: FilterOperators, run: KernelFilterResult) -> Float[Tensor, "*b s t n"]:
    """Ratios of the predictions for every step of a run; before the first step it is one."""
    assert run.states is not None
    states = run.states[..., :-1, :]
    m = states.flatten(-3, -2) @ operators.transition
    ratio = normalize_ratio(operators.ratio(m)).reshape(*states.shape[:-1], operators.n)
    first = ratio.new_ones(*states.shape[:-2], 1, operators.n)
    return torch.cat([first, ratio], -2)
