"""Running a filter over whole sequences, and back again for smoothing."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.belief import KernelFilterResult, result_from_moments
from kbr.core.filters.operators import FilterOperators, ratio_operator
from kbr.core.linalg import ridge_solve
from kbr.core.rules import normalize_ratio


def run_filter(
    operators: FilterOperators,
    query: Float[Tensor, "*b s t c"],
    seen: Bool[Tensor, "*b s t"],
    lam: Float[Tensor, "*b s"],
) -> KernelFilterResult:
    """Filter every sequence from the uniform start; `query` holds the observations' coordinates."""
    now = operators.start(query.shape[-3])
    prior = now
    moments, evidence, sizes, states = [], [], [], []
    for t in range(query.shape[-2]):
        now = operators.step(
            prior if t == 0 else None, now.state, query[..., t, :], seen[..., t], lam
        )
        moments.append(now.moments)
        evidence.append(now.evidence)
        states.append(now.state)
        squares = now.weights.square().sum(-1)
        sizes.append(now.moments[..., 0].square() / squares.clamp_min(1e-300))
    return result_from_moments(
        torch.stack(moments, -2),
        torch.stack(evidence, -1),
        torch.stack(sizes, -1),
        torch.stack(states, -2),
        operators.points.shape[-1],
    )


def smooth(
    operators: FilterOperators,
    filtered: KernelFilterResult,
    *,
    eta: float | Tensor,
    lam: float | Tensor,
) -> KernelFilterResult:
    """Beliefs given the whole sequence, by a backward pass of the same rule.

    Math: m_t|T = E_t' m_t+1|T, E_t the importance-weighted operator from phi(z_t+1) to phi(z_t),
          prior m_t|t: w = D Phi+ (Phi+' D Phi+ + k lam I)^-1 m_t+1|T on the rows z_1..k.
    Ref:  Nishiyama et al. 2016 (kernel Bayes smoother), with the importance-weighted rule.
    """
    assert filtered.states is not None
    after = operators.after
    early = operators.phi.index_select(-2, after - 1)
    late = operators.phi.index_select(-2, after)
    table = operators.readout.index_select(-2, after - 1)
    ratio = ratio_operator(early, eta=eta)
    k = after.numel()
    ridge = k * torch.as_tensor(lam, dtype=torch.float64, device=early.device).unsqueeze(-1)
    states = list(filtered.states.unbind(-2))
    last = filtered.states.shape[-2] - 1
    moments = [filtered_moments(filtered)[..., last, :]]
    sizes = [_sizes(filtered)[..., last]]
    state = states[last]
    smoothed = [state]
    for t in range(last - 1, -1, -1):
        r = normalize_ratio(states[t] @ ratio.mT)
        wide = late.unsqueeze(-3)
        second = (wide * r.unsqueeze(-1)).mT @ wide
        s = ridge_solve(second, state.unsqueeze(-1), ridge=ridge, name="k lam").squeeze(-1)
        w = r * (s @ late.mT)
        total = w.sum(-1, keepdim=True)
        w = torch.where(total > 0, w / total, r / k)
        state = w @ early
        smoothed.append(state)
        moments.append(w @ table)
        sizes.append(1 / w.square().sum(-1).clamp_min(1e-300))
    return result_from_moments(
        torch.stack(moments[::-1], -2),
        filtered.evidence,
        torch.stack(sizes[::-1], -1),
        torch.stack(smoothed[::-1], -2),
        operators.points.shape[-1],
    )


def filtered_moments(result: KernelFilterResult) -> Float[Tensor, "*s t c"]:
    """Mass one, mean and second moment of a result, as `moments_table` lays them out."""
    mean = result.mean
    second = result.cov + mean.unsqueeze(-1) * mean.unsqueeze(-2)
    return torch.cat([torch.ones_like(mean[..., :1]), mean, second.flatten(-2)], -1)


def _sizes(result: KernelFilterResult) -> Tensor:
    assert result.effective_sample_size is not None
    return result.effective_sample_size
