"""Hyper-parameters of the importance-weighted rule without an oracle: closed-form leave-one-out.

Two stages, each scored by the loss that its estimate minimises:
1. eta by KuLSIF's own leave-one-out score (the bandwidth of z stays the median distance);
2. bandwidth of x and lam by the importance-weighted leave-one-out error of the embedding,
   sum_i r_i |phi(z_i) - E_-i' psi(x_i)|^2 / sum_i r_i, with the ratio of stage 1.

With few points a leave-one-out score is noisy, and its minimum jumps across the grid from sample to
sample. So the choice is a mean over the grid: the geometric mean of each setting under weights
exp(-n score / 20) in stage 1 and error^(-n/4) in stage 2. A sharp score gives its minimum,
a flat one the middle of the grid. Every choice is made for each batch member by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.features import Features, as_feature_map
from kbr.core.inputs import ArrayLike, as_pairs
from kbr.core.kernels import Kernel
from kbr.core.ratios import KuLSIF, kulsif_leave_one_out
from kbr.core.rules import ImportanceWeightedRule, normalize_ratio

SCALES = (0.5, 1.0, 2.0, 4.0)
ETAS = tuple(10.0 ** (k / 4) for k in range(-12, -3))  # 1e-3 .. 1e-1
LAMS = tuple(10.0 ** (k / 2) for k in range(-4, 3))  # 1e-2 .. 10
ETA_SHARPNESS = 0.05
TARGET_SCALE = 0.5**0.5  # bandwidth of the embedding that stage 2 predicts, in medians


@dataclass(frozen=True, eq=False)
class RuleTuning:
    """The tuned rule and what was chosen for each batch member."""

    rule: ImportanceWeightedRule
    scale_x: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam: Float[Tensor, "*b"]


def ridge_leave_one_out(
    psi: Float[Tensor, "*b n d"],
    target: Float[Tensor, "*b n p"],
    ratio: Float[Tensor, "*b n"],
    lams: Sequence[float],
) -> Float[Tensor, "l *b"]:
    """Importance-weighted leave-one-out error of predicting `target` from psi, for every lam.

    Math: t_i - that_-i = (t_i - that_i) / (1 - h_ii),  H = Psi (Psi' D Psi + n lam I)^-1 Psi' D.
    """
    psi, target = psi.to(torch.float64), target.to(torch.float64)
    r = normalize_ratio(ratio.to(torch.float64))
    root = r.sqrt().unsqueeze(-1)
    left, values, _ = torch.linalg.svd(root * psi, full_matrices=False)
    weighted, n = root * target, psi.shape[-2]
    projected = left.mT @ weighted
    scores = []
    for lam in lams:
        shrink = (values.square() / (values.square() + n * lam)).unsqueeze(-2)
        leverage = (left.square() * shrink).sum(-1, keepdim=True)
        residual = (weighted - (left * shrink) @ projected) / (1 - leverage).clamp_min(1e-12)
        scores.append(residual.square().sum((-2, -1)) / r.sum(-1))
    return torch.stack(scores)


def tune_rule(
    rule: ImportanceWeightedRule,
    x: ArrayLike,
    z: ArrayLike,
    prior: Embedding,
    *,
    scales: Sequence[float] = SCALES,
    etas: Sequence[float] = ETAS,
    lams: Sequence[float] = LAMS,
) -> RuleTuning:
    """Choose eta, the bandwidth of x and lam; the rule's kernels give the family."""
    kernel_x, kernel_z = rule.kernel_x, rule.kernel_z
    if not isinstance(kernel_x, Kernel) or not isinstance(kernel_z, Kernel):
        raise KbrError("tuning needs kernels for x and z, not finished feature maps.")
    x_, z_, _ = as_pairs(x, z)
    x_, z_ = x_.to(torch.float64), z_.to(torch.float64)
    n = z_.shape[-2]
    if prior.points.shape[:-2] != z_.shape[:-2] or prior.points.shape[-1] != z_.shape[-1]:
        raise KbrError(
            f"the prior needs points of shape {[*z_.shape[:-2], 'm', z_.shape[-1]]}, like the "
            f"latents z; got {list(prior.points.shape)}. Change the prior."
        )

    def fit(kernel: Kernel, points: Tensor, scale: float) -> Features:
        return as_feature_map(replace(kernel, bandwidth=None, scale=scale)).fit(points)

    # Features of both samples together: the held-out prior points need not lie in the span of z.
    both = torch.cat([z_, prior.points.to(z_)], -2)
    rows = as_feature_map(replace(kernel_z, bandwidth=None).fit(z_)).fit(both).train
    scores = kulsif_leave_one_out(rows[..., :n, :], rows[..., n:, :], prior.weights, etas)
    eta = _geometric_mean(-ETA_SHARPNESS * n * scores, etas)
    ratio = KuLSIF(eta=eta)(fit(kernel_z, z_, 1.0), z_, prior)

    target = fit(kernel_z, z_, TARGET_SCALE).train
    errors = torch.cat(
        [ridge_leave_one_out(fit(kernel_x, x_, s).train, target, ratio, lams) for s in scales]
    )
    evidence = -0.25 * n * errors.clamp_min(1e-300).log()
    scale_x = _geometric_mean(evidence, [s for s in scales for _ in lams])
    lam = _geometric_mean(evidence, list(lams) * len(scales))
    tuned = replace(
        rule,
        kernel_x=replace(kernel_x, bandwidth=None, scale=scale_x),
        kernel_z=replace(kernel_z, bandwidth=None, scale=1.0),
        ratio=KuLSIF(eta=eta),
        lam=lam,
    )
    return RuleTuning(tuned, scale_x, eta, lam)


def _geometric_mean(logits: Float[Tensor, "c *b"], values: Sequence[float]) -> Float[Tensor, "*b"]:
    """exp of the mean of log values under softmax weights; settings that failed do not count."""
    weights = torch.where(logits.isfinite(), logits, -torch.inf).softmax(0)
    logs = torch.as_tensor(values, dtype=logits.dtype, device=logits.device).log()
    return (weights * logs.reshape(-1, *(1,) * (logits.ndim - 1))).sum(0).exp()
