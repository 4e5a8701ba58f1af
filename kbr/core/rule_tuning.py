"""Hyper-parameters of the importance-weighted rule without an oracle: closed-form leave-one-out.

Two stages, each an unbiased-in-spirit estimate of the loss it selects for:
1. bandwidth of z and eta minimise KuLSIF's own leave-one-out score;
2. bandwidth of x and lam minimise the importance-weighted leave-one-out error of the latent mean,
   sum_i r_i |z_i - zhat_-i(x_i)|^2 / sum_i r_i, with the ratio of stage 1.
Every choice is made for each batch member by itself.
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
from kbr.core.ratios import ETAS, KuLSIF, kulsif_leave_one_out
from kbr.core.rules import ImportanceWeightedRule, normalize_ratio

SCALES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0)
LAMS = tuple(10.0 ** (k / 2) for k in range(-12, 5))  # 1e-6 .. 1e2, two a decade


@dataclass(frozen=True, eq=False)
class RuleTuning:
    """The tuned rule and what was chosen for each batch member."""

    rule: ImportanceWeightedRule
    scale_x: Float[Tensor, "*b"]
    scale_z: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam: Float[Tensor, "*b"]
    score: Float[Tensor, "*b"]


def ridge_leave_one_out(
    psi: Float[Tensor, "*b n d"],
    z: Float[Tensor, "*b n dz"],
    ratio: Float[Tensor, "*b n"],
    lams: Sequence[float],
    *,
    normalize: bool,
) -> Float[Tensor, "l *b"]:
    """Importance-weighted leave-one-out error of the posterior mean for every lam.

    Math: zhat_-i = (zhat_i - h_ii z_i) / (1 - h_ii), H = Psi (Psi' D Psi + n lam I)^-1 Psi' D;
          normalised: the same for the regression of 1, and the quotient of the two.
    """
    psi, z = psi.to(torch.float64), z.to(torch.float64)
    r = normalize_ratio(ratio.to(torch.float64))
    root = r.sqrt().unsqueeze(-1)
    left, values, _ = torch.linalg.svd(root * psi, full_matrices=False)
    ones = torch.ones_like(z[..., :1])
    target = root * torch.cat([z, ones], -1)
    n = psi.shape[-2]
    scores = []
    for lam in lams:
        shrink = (values.square() / (values.square() + n * lam)).unsqueeze(-2)
        leverage = (left.square() * shrink).sum(-1, keepdim=True)
        fitted = (left * shrink) @ (left.mT @ target)
        # Both sides carry the factor root, which cancels; rows with r = 0 do not count.
        out = (fitted - leverage * target) / (1 - leverage).clamp_min(1e-12)
        mean = out[..., :-1] / root.clamp_min(1e-150)
        if normalize:
            total = out[..., -1:] / root.clamp_min(1e-150)
            mean = mean / total.clamp_min(0.1)
        error = (r.unsqueeze(-1) * (z - mean).square()).sum((-2, -1)) / r.sum(-1)
        scores.append(error)
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
    """Choose the bandwidths of both kernels, eta and lam; the rule's kernels give the family."""
    if not isinstance(rule.kernel_x, Kernel) or not isinstance(rule.kernel_z, Kernel):
        raise KbrError("tuning needs kernels for x and z, not finished feature maps.")
    x_, z_, _ = as_pairs(x, z)
    x_, z_ = x_.to(torch.float64), z_.to(torch.float64)

    def fit(kernel: Kernel, points: Tensor, scale: float | Tensor) -> Features:
        return as_feature_map(replace(kernel, bandwidth=None, scale=scale)).fit(points)

    ratio_scores = []
    for scale in scales:
        phi = fit(rule.kernel_z, z_, scale)
        there = phi(prior.points)
        ratio_scores.append(kulsif_leave_one_out(phi.train, there, prior.weights, etas))
    scale_z, eta, _ = _best(torch.stack(ratio_scores), scales, etas)

    phi = fit(rule.kernel_z, z_, scale_z)
    ratio = KuLSIF(eta=eta)(phi, z_, prior)
    scores = torch.stack(
        [
            ridge_leave_one_out(
                fit(rule.kernel_x, x_, scale).train, z_, ratio, lams, normalize=rule.normalize
            )
            for scale in scales
        ]
    )
    scale_x, lam, score = _best(scores, scales, lams)
    tuned = replace(
        rule,
        kernel_x=replace(rule.kernel_x, bandwidth=None, scale=scale_x),
        kernel_z=replace(rule.kernel_z, bandwidth=None, scale=scale_z),
        ratio=KuLSIF(eta=eta),
        lam=lam,
    )
    return RuleTuning(tuned, scale_x, scale_z, eta, lam, score)


def _best(
    scores: Float[Tensor, "a c *b"], rows: Sequence[float], columns: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Row value, column value and score of the smallest entry, for each batch member."""
    flat = torch.where(scores.isfinite(), scores, torch.inf).flatten(0, 1)
    best, index = flat.min(0)
    row = torch.as_tensor(rows, dtype=torch.float64, device=scores.device)
    column = torch.as_tensor(columns, dtype=torch.float64, device=scores.device)
    return row[index // len(columns)], column[index % len(columns)], best
