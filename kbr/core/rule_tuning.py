"""Hyper-parameters of the importance-weighted rule without an oracle: one score for all of them.

The score is the leave-one-out error of the posterior mean, carried from the training pairs to the
prior by `moment_ratio`. The positive part of an estimated ratio is too flat for that where z has
many coordinates: errors under it are those without a prior, and the ridge comes out too small.

With few points a score is noisy, and its minimum jumps across the grid from sample to sample. So
the choice is a mean over the grid under weights exp(-n score / (2 variance of the prior)): of eta
and of the bandwidth the geometric one, of the ridge that of the share which it keeps of a slope.
A sharp score gives its minimum, a flat one the middle of the grid. Every choice is made for each
batch member by itself. The tuned rule weighs by `ShrunkenMean` KuLSIF.
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
from kbr.core.linalg import or_one
from kbr.core.moments import ShrunkenMean, moment_ratio, spread
from kbr.core.ratios import KuLSIF
from kbr.core.rules import NEGLIGIBLE, ImportanceWeightedRule, normalize_ratio

SCALES = (0.5, 1.0, 2.0, 4.0)
ETAS = (1e-3, 1e-2, 1e-1, 1.0)
KEPT = (0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 0.99)
SHARPNESS = 0.5


@dataclass(frozen=True, eq=False)
class RuleTuning:
    """The tuned rule and what was chosen for each batch member."""

    rule: ImportanceWeightedRule
    scale_x: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam: Float[Tensor, "*b"]


def typical_eigenvalue(psi: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b"]:
    """The mean eigenvalue of the features' covariance, each counted by its own size.

    Math: tr(C^2) / tr(C),  C = sum_i (psi_i - psibar)(psi_i - psibar)' / n.
    The ridge lam keeps the share 1 / (1 + lam / l) of a slope along an eigenvector of value l.
    """
    centred = psi - psi.mean(-2, keepdim=True)
    second = centred.mT @ centred / psi.shape[-2]
    trace = second.diagonal(dim1=-2, dim2=-1).sum(-1)
    return or_one(second.square().sum((-2, -1)) / or_one(trace))


def leave_one_out_means(
    psi: Float[Tensor, "*b n d"],
    target: Float[Tensor, "*b n p"],
    ratio: Float[Tensor, "*b n"],
    lams: Float[Tensor, "l *b"],
) -> Float[Tensor, "l *b n p"]:
    """Means of `target` at every x_i by the normalised rule fitted without pair i, for every lam.

    Math: m_i = (f_i - h_i t_i) / (g_i - h_i), with f and g what the ridge predicts of t and of 1
          at x_i from all pairs, f = H t, g = H 1, h_i = H_ii,
          H = Psi (Psi' D Psi + n lam I)^-1 Psi' D.
    Where the total weight (g_i - h_i) / (1 - h_i) is negligible: the mean under r of the others.
    """
    psi, target = psi.to(torch.float64), target.to(torch.float64)
    r = normalize_ratio(ratio.to(torch.float64)).unsqueeze(-1)
    n = psi.shape[-2]
    rows = r * psi
    values, vectors = torch.linalg.eigh(psi.mT @ rows)
    turned = psi @ vectors
    both = torch.cat([target, torch.ones_like(r)], -1)
    moment = turned.mT @ (r * both)
    rest = (r * target).sum(-2, keepdim=True) - r * target
    others = rest / or_one(r.sum(-2, keepdim=True) - r)
    means = []
    for lam in lams:
        inverse = 1 / (values.clamp_min(0) + n * lam.unsqueeze(-1)).unsqueeze(-2)
        leverage = r * (turned.square() * inverse).sum(-1, keepdim=True)
        left = ((turned * inverse) @ moment - leverage * both) / (1 - leverage).clamp_min(1e-12)
        total = left[..., -1:]
        there = total > NEGLIGIBLE
        means.append(torch.where(there, left[..., :-1] / torch.where(there, total, 1.0), others))
    return torch.stack(means)


def tune_rule(
    rule: ImportanceWeightedRule,
    x: ArrayLike,
    z: ArrayLike,
    prior: Embedding,
    *,
    scales: Sequence[float] = SCALES,
    etas: Sequence[float] = ETAS,
    kept: Sequence[float] = KEPT,
) -> RuleTuning:
    """Choose eta, the bandwidth of x and lam; the rule's kernels give the family.

    `kept` are the ridges to try, as the shares of a slope that they keep (`typical_eigenvalue`).
    """
    kernel_x, kernel_z = rule.kernel_x, rule.kernel_z
    if not isinstance(kernel_x, Kernel) or not isinstance(kernel_z, Kernel):
        raise KbrError("tuning needs kernels for x and z, not finished feature maps.")
    x_, z_, _ = as_pairs(x, z)
    x_, z_ = x_.to(torch.float64), z_.to(torch.float64)
    if prior.points.shape[:-2] != z_.shape[:-2] or prior.points.shape[-1] != z_.shape[-1]:
        raise KbrError(
            f"the prior needs points of shape {[*z_.shape[:-2], 'm', z_.shape[-1]]}, like the "
            f"latents z; got {list(prior.points.shape)}. Change the prior."
        )

    def fit(kernel: Kernel, points: Tensor, scale: float | Tensor) -> Features:
        return as_feature_map(replace(kernel, bandwidth=None, scale=scale)).fit(points)

    latents = fit(kernel_z, z_, 1.0)
    ratios = [ShrunkenMean(ratio=KuLSIF(eta=eta))(latents, z_, prior) for eta in etas]
    carried, target = moment_ratio(z_, prior), (z_ - z_.mean(-2, keepdim=True)) / spread(z_)
    slopes = torch.as_tensor([1 / share - 1 for share in kept], dtype=z_.dtype, device=z_.device)
    scores = []
    for scale in scales:
        psi = fit(kernel_x, x_, scale).train
        lams = slopes.reshape(-1, *(1,) * (z_.ndim - 2)) * typical_eigenvalue(psi)
        for ratio in ratios:
            errors = (target - leave_one_out_means(psi, target, ratio, lams)).square().sum(-1)
            scores.append((carried * errors).mean(-1))
    weights = _weights(-SHARPNESS * z_.shape[-2] * torch.cat(scores) / _variance(prior, z_))
    grid = [(s, e, k) for s in scales for e in etas for k in kept]
    table = torch.as_tensor(grid, dtype=z_.dtype, device=z_.device)
    table = torch.cat([table[:, :2].log(), table[:, 2:]], -1)
    middle = torch.tensordot(weights.movedim(0, -1), table, 1)
    scale_x, eta, share = middle[..., 0].exp(), middle[..., 1].exp(), middle[..., 2]
    lam = (1 / share - 1) * typical_eigenvalue(fit(kernel_x, x_, scale_x).train)
    tuned = replace(
        rule,
        kernel_x=replace(kernel_x, bandwidth=None, scale=scale_x),
        kernel_z=replace(kernel_z, bandwidth=None, scale=1.0),
        ratio=ShrunkenMean(ratio=KuLSIF(eta=eta)),
        lam=lam,
    )
    return RuleTuning(tuned, scale_x, eta, lam)


def _variance(prior: Embedding, z: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b"]:
    """The variance of the prior in units of the spread of z, summed over coordinates."""
    proper = prior.nonnegative()
    points = proper.points.to(z) / spread(z)
    weights = proper.weights.to(z).expand(points.shape[:-1]).unsqueeze(-1)
    centred = points - (weights * points).sum(-2, keepdim=True)
    return or_one((weights * centred.square()).sum((-2, -1)))


def _weights(logits: Float[Tensor, "c *b"]) -> Float[Tensor, "c *b"]:
    """Softmax over the settings; those that failed do not count, unless all did."""
    good = logits.isfinite()
    kept = torch.where(good, logits, -torch.inf)
    return torch.where(good.any(0), kept, torch.zeros_like(kept)).softmax(0)
