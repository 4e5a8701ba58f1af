"""Running a filter over whole sequences, and back again for smoothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult
from kbr.core.filters.kernel.engine import Compressed, LowRank, Query, Ridge, State, Weights
from kbr.core.filters.kernel.engines.alone import is_alone, weights_alone
from kbr.core.filters.kernel.step import Operators, Step
from kbr.core.filters.sequences import split
from kbr.core.ratios import KuLSIF
from kbr.core.rules import ImportanceWeightedRule, OriginalRule, normalize_ratio, normalized
from kbr.core.tables import blocks

Queries = Float[Tensor, "*b s t c"]
FlagsInTime = Bool[Tensor, "*b s t"]
Summary = tuple[Tensor, Tensor, Tensor, Tensor]  # moments, evidence, |w|, coordinates

QuickStep = Callable[[Step, Query, int], Step | None]

OURS = (ImportanceWeightedRule, OriginalRule, KuLSIF, LowRank, Compressed)
NUMBERS = 20_000_000  # ratios at once when smoothing: 160 MB


def run_filter(
    operators: Operators, query: Queries, lam: Ridge, *flags: FlagsInTime
) -> KernelFilterResult:
    """Filter every sequence from the uniform start; `query` holds the observations' coordinates.

    `flags`: which were seen, and which are familiar; others are no evidence. None given: all are.
    """
    now, steps = operators.start(query.shape[-3]), []
    columns = [flag.unbind(-1) for flag in flags]  # an index at every step is slower
    rows = zip(query.unbind(-2), *columns, strict=True)
    with torch.inference_mode(_is_plain(operators, query, lam)):  # each small call costs less
        quick = _quick_step(operators, now, query, lam, *flags)
        for t, (x, *told) in enumerate(rows):
            after = quick(now, x, t) if t else None
            now = operators.step(now, x, lam, *told) if after is None else after
            steps.append(_summary(now))
    return _result(operators, steps)


def _quick_step(
    operators: Operators, now: Step, query: Queries, lam: Ridge, *flags: FlagsInTime
) -> QuickStep:
    """The step of one sequence from its row t; None where `Operators.step` has to take it.

    The same update as there, see `alone`; what holds for the whole sequence is looked at once.
    """
    update, rule, one = operators.update, operators.rule, query.shape[:-2] == (1,)
    if not (one and is_alone(update, rule, now.weights, lam)) or operators.controls:
        return lambda now, x, t: None
    told = torch.stack(flags).all(0).flatten().tolist() if flags else [True] * query.shape[-2]
    ridge = lam.item()
    verdicts = {usable: torch.full((1,), usable, device=lam.device) for usable in (False, True)}

    def step(now: Step, x: Query, t: int) -> Step | None:
        if not told[t]:
            return None
        ratio = operators.weigh(operators.ahead_ratio(now.state))
        made = weights_alone(update, rule, ratio, x, ridge)
        if made is None:
            return None
        weights, usable = made
        return operators.belief(weights, evidence=verdicts[usable])

    return step


def _is_plain(operators: Operators, query: Queries, lam: Ridge) -> bool:
    """Whether no gradients are wanted, and no code of the user's runs, which might take some."""
    parts = (operators.rule, operators.rule.ratio, operators.update)
    ours = all(type(part) in OURS for part in parts)
    return ours and not (query.requires_grad or lam.requires_grad)


@dataclass(frozen=True, eq=False)
class Ahead:
    """Predictions one step ahead as their moments and coordinates, without sums over points."""

    operators: Operators
    table: Float[Tensor, "*b p c"]
    start: Step

    @classmethod
    def of(cls, operators: Operators) -> "Ahead":
        return cls(operators, operators.forecast_table(), operators.start(1))

    def __call__(self, states: State, u: Tensor | None = None) -> tuple[Tensor, State]:
        """From beliefs with these coordinates; the start where the total weight is not positive."""
        operators, start = self.operators, self.start
        moments, states = operators.lifted(states, u) @ self.table, operators.advance(states, u)
        if operators.rule.normalize:
            total = moments[..., 0]
            moments = normalized(moments, total, total > 0, start.moments)
            states = normalized(states, total, total > 0, start.state)
        return moments, states


def run_forecast(
    operators: Operators, states: State, steps: int, query: Query
) -> Iterator[Float[Tensor, "*b s c"]]:
    """Moments 1 .. `steps` ahead of beliefs with these coordinates.

    They are the beliefs at all steps of one sequence, whose `query` holds the controls that follow;
    what would follow the last step is made up.
    """
    ahead, controls = Ahead.of(operators), split(query, operators.controls)[1]
    for h in range(1, steps + 1):
        moments, states = ahead(states, None if controls is None else controls.roll(-h, -2))
        yield moments


def run_smoother(
    operators: Operators,
    query: Queries,
    lam: Ridge,
    lam_transition: Float[Tensor, "*b"],
    *flags: FlagsInTime,
) -> tuple[KernelFilterResult, KernelFilterResult]:
    """Beliefs given the past, and those given the whole sequence, by an update of both filters.

    Math: p(z_t | all x but x_t) / p(z_t) = r_t s_t up to a constant, r_t the ratio predicted from
          the past, s_t the one predicted from the future by the reversed transition; the rule with
          this ratio and x_t gives the smoothed weights.
    Ref:  Bresler 1986 (two-filter smoothing), here with learned ratios in place of densities.
    """
    backwards = operators.reverse(lam_transition)
    past = run_filter(operators, query, lam, *flags)
    x, u = split(query, operators.controls)
    later = query if u is None else torch.cat([x, u.roll(-1, -2)], -1)  # u_t+1 leads back to z_t
    future = run_filter(backwards, later.flip(-2), lam, *(flag.flip(-1) for flag in flags))
    steps = []
    for t, ratio in enumerate(_both(operators, backwards, past, future, u)):
        r = normalize_ratio(operators.weigh(ratio))
        now = operators.posterior(r, query[..., t, :], lam, *(flag[..., t] for flag in flags))
        weights = normalized(*now, r / operators.n)
        steps.append(_summary(operators.belief(weights, evidence=past.evidence[..., t])))
    return past, _result(operators, steps)


def _summary(step: Step) -> Summary:
    """What a result keeps of a step: of the weights, only their norm."""
    norm = torch.linalg.vector_norm(step.weights, dim=-1)
    return step.moments, step.evidence, norm, step.state


def _result(operators: Operators, steps: list[Summary]) -> KernelFilterResult:
    """All steps' beliefs; the effective sample size is (sum w / |w|)^2."""
    axes = (-2, -1, -1, -2)
    columns = zip(zip(*steps, strict=True), axes, strict=True)
    moments, evidence, norms, states = (torch.stack(column, axis) for column, axis in columns)
    sizes = (moments[..., 0] / norms.clamp_min(torch.finfo(norms.dtype).tiny)).square()
    mean, cov = operators.readout.mean_cov(moments)
    return KernelFilterResult(mean, cov, evidence, sizes, states=states)


def _both(
    operators: Operators,
    backwards: Operators,
    past: KernelFilterResult,
    future: KernelFilterResult,
    u: Tensor | None,
) -> Iterator[Weights]:
    """Products of both predictions' ratios, step by step; a ratio is one where no step is before.

    Where a product is zero at all points, past and future are as likely: their sum.

    Ratios of many steps are made at once, as many as NUMBERS allows.
    """
    assert past.states is not None
    assert future.states is not None
    steps = past.states.shape[-2]
    size = max(1, NUMBERS // (operators.n * past.states.shape[:-2].numel()))
    early, late = past.states[..., :-1, :], future.states.flip(-2)[..., 1:, :]
    if u is not None:  # that of step t + 1 leads from t there, and back
        early, late = (torch.cat([states, u[..., 1:, :]], -1) for states in (early, late))
    for some in blocks(steps, size):
        left = _predicted(operators, early[..., max(some.start - 1, 0) : some.stop - 1, :])
        right = _predicted(backwards, late[..., some.start : some.stop, :].flip(-2)).flip(-2)
        one = left.new_ones(*past.states.shape[:-2], 1, operators.n)
        left = torch.cat([one, left], -2) if some.start == 0 else left
        right = torch.cat([right, one], -2) if some.stop == steps else right
        both = left * right
        apart = ~both.any(-1, keepdim=True)  # no point has both, as ratios are cut off far away
        yield from torch.where(apart, left + right, both).unbind(-2)


def _predicted(
    operators: Operators, states: Float[Tensor, "*b s t c"]
) -> Float[Tensor, "*b s t n"]:
    """Ratios of the predictions from every belief, whose coordinates the next control follows."""
    ratio = operators.ahead_ratio(*split(states.flatten(-3, -2), operators.controls))
    return normalize_ratio(ratio).reshape(*states.shape[:-1], operators.n)
