"""Running a filter over whole sequences, and back again for smoothing."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult, result_from_moments
from kbr.core.filters.kernel.step import Operators
from kbr.core.rules import normalize_ratio, normalized
from kbr.core.tables import blocks

NUMBERS = 20_000_000  # ratios at once when smoothing: 160 MB


def run_filter(
    operators: Operators,
    query: Float[Tensor, "*b s t c"],
    seen: Bool[Tensor, "*b s t"],
    lam: Float[Tensor, "*b s"],
    familiar: Bool[Tensor, "*b s t"] | None = None,
) -> KernelFilterResult:
    """Filter every sequence from the uniform start; `query` holds the observations' coordinates.

    Observations that are not `familiar` are no evidence.
    """
    like = seen if familiar is None else familiar
    now = operators.start(query.shape[-3])
    moments, evidence, norms, states = [], [], [], []
    for x, there, known in zip(query.unbind(-2), seen.unbind(-1), like.unbind(-1), strict=True):
        now = operators.step(now, x, lam, there, known)
        moments.append(now.moments)
        evidence.append(now.evidence)
        states.append(now.state)
        norms.append(torch.linalg.vector_norm(now.weights, dim=-1))
    return result_from_moments(
        operators.readout,
        torch.stack(moments, -2),
        torch.stack(evidence, -1),
        torch.stack(norms, -1),
        torch.stack(states, -2),
    )


def run_forecast(
    operators: Operators, states: Float[Tensor, "*b s p"], steps: int
) -> Iterator[Float[Tensor, "*b s c"]]:
    """Moments 1 .. `steps` ahead of beliefs with these coordinates, without sums over points."""
    table, start = operators.forecast_table(), operators.start(1)
    for _ in range(steps):
        moments, states = states @ table, operators.advance(states)
        if operators.rule.normalize:
            total = moments[..., 0]
            moments = normalized(moments, total, total > 0, start.moments)
            states = normalized(states, total, total > 0, start.state)
        yield moments


def run_smoother(
    operators: Operators,
    query: Float[Tensor, "*b s t c"],
    seen: Bool[Tensor, "*b s t"],
    lam: Float[Tensor, "*b s"],
    lam_transition: Float[Tensor, "*b"],
    familiar: Bool[Tensor, "*b s t"] | None = None,
) -> KernelFilterResult:
    """Beliefs given the whole sequence: a filter forwards, one backwards, and one update of both.

    Math: p(z_t | all x but x_t) / p(z_t) = r_t s_t up to a constant, r_t the ratio predicted from
          the past, s_t the one predicted from the future by the reversed transition; the rule with
          this ratio and x_t gives the smoothed weights.
    Ref:  Bresler 1986 (two-filter smoothing), here with learned ratios in place of densities.
    """
    backwards = operators.reverse(lam_transition)
    like = seen if familiar is None else familiar
    past = run_filter(operators, query, seen, lam, like)
    future = run_filter(backwards, query.flip(-2), seen.flip(-1), lam, like.flip(-1))
    moments, norms, states = [], [], []
    for t, ratio in enumerate(_both(operators, backwards, past, future)):
        r = normalize_ratio(operators.weigh(ratio))
        found = operators.posterior(r, query[..., t, :], lam, seen[..., t], like[..., t])
        weights = normalized(*found, r / operators.n)
        moments.append(operators.readout(weights))
        states.append(operators.coordinates(weights))
        norms.append(torch.linalg.vector_norm(weights, dim=-1))
    return result_from_moments(
        operators.readout,
        torch.stack(moments, -2),
        past.evidence,
        torch.stack(norms, -1),
        torch.stack(states, -2),
    )


def _both(
    operators: Operators,
    backwards: Operators,
    past: KernelFilterResult,
    future: KernelFilterResult,
) -> Iterator[Float[Tensor, "*b s n"]]:
    """Products of both predictions' ratios, step by step; a ratio is one where no step is before.

    Ratios of many steps are made at once, as many as NUMBERS allows.
    """
    assert past.states is not None
    assert future.states is not None
    steps = past.states.shape[-2]
    size = max(1, NUMBERS // (operators.n * past.states.shape[:-2].numel()))
    early, late = past.states[..., :-1, :], future.states.flip(-2)[..., 1:, :]
    for some in blocks(steps, size):
        left = _predicted(operators, early[..., max(some.start - 1, 0) : some.stop - 1, :])
        right = _predicted(backwards, late[..., some.start : some.stop, :].flip(-2)).flip(-2)
        one = left.new_ones(*past.states.shape[:-2], 1, operators.n)
        left = torch.cat([one, left], -2) if some.start == 0 else left
        right = torch.cat([right, one], -2) if some.stop == steps else right
        yield from (left * right).unbind(-2)


def _predicted(
    operators: Operators, states: Float[Tensor, "*b s t p"]
) -> Float[Tensor, "*b s t n"]:
    """Ratios of the predictions from every belief."""
    m = operators.advance(states.flatten(-3, -2))
    return normalize_ratio(operators.ratio(m)).reshape(*states.shape[:-1], operators.n)
