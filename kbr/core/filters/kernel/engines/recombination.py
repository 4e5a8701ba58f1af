"""Few weighted points in the place of many: masses that keep the averages of given functions."""

import torch
from jaxtyping import Float
from torch import Tensor

NEWTON, HALVINGS = 60, 40  # steps at most
CLOSE = 1e-10  # of moments of functions of at most about one: met
INDEPENDENT = 1e-13  # singular values below this share of the largest are rounding


def recombine(moments: Float[Tensor, "n k"], mass: Float[Tensor, "n"]) -> tuple[Tensor, Tensor]:
    """At most k of n points, and positive masses that keep all k moments sum_i c_i f_i.

    Groups of points are thinned to half along the null space of their moments, until no group has
    more than one point.
    Ref: Caratheodory's theorem; Litterer and Lyons 2012; Tchernychova 2016.
    """
    size = moments.shape[-1]
    kept = torch.arange(len(mass), device=mass.device)
    while len(kept) > size:
        groups = min(2 * size, len(kept))
        member = torch.arange(len(kept), device=mass.device) * groups // len(kept)
        total = mass.new_zeros(groups).index_add(0, member, mass)
        inside = mass.unsqueeze(-1) * moments[kept]
        centre = moments.new_zeros(groups, size).index_add(0, member, inside)
        share = _thin(centre / total.unsqueeze(-1), total) / total
        alive = share[member] > 0
        if bool(alive.all()):
            break
        kept, mass = kept[alive], (mass * share[member])[alive]
    return kept, mass


def _thin(points: Float[Tensor, "g k"], mass: Float[Tensor, "g"]) -> Float[Tensor, "g"]:
    """Masses of equal moments with at most k of them positive."""
    k = points.shape[-1]
    null = torch.linalg.qr(points, mode="complete").Q[:, k:].mT.contiguous()
    mass = mass.clone()
    for j in range(len(null)):
        v = null[j].clone()
        v = v if bool((v > 0).any()) else -v
        reach = torch.where(v > 1e-14 * v.abs().max(), mass / v, torch.inf)
        pivot = int(reach.argmin())
        mass = (mass - reach[pivot] * v).clamp_min(0)
        mass[pivot] = 0
        null[j + 1 :] -= (null[j + 1 :, pivot] / v[pivot]).unsqueeze(-1) * v
        null[j + 1 :, pivot] = 0
    return mass


def matched(
    moments: Float[Tensor, "m k"], target: Float[Tensor, "k"]
) -> tuple[Float[Tensor, "m"], float]:
    """Masses near 1/m, none negative, with these moments; and by how much they miss them.

    Math: min |c - 1/m|^2  with  F'c = t, c >= 0:  c = max(0, 1/m + F y), where y is a minimum of
          |c(y)|^2 / 2 - t'y, a convex function: Newton's method, in orthonormal columns of F.
    The first step is the answer where all of it is positive, as it mostly is: moments of m points
    out of many are off by m^-1/2.
    """
    m = len(moments)
    q, triangle = torch.linalg.qr(moments)
    left, values, right = torch.linalg.svd(triangle, full_matrices=False)
    used = values > INDEPENDENT * values[0]
    q = q @ left[:, used]
    wanted = m * (right[used] @ target) / values[used]
    y = torch.zeros_like(wanted)

    def value(at: Tensor) -> tuple[Tensor, Tensor]:
        c = (1 + q @ at).clamp_min(0)
        return c, c.square().sum() / 2 - wanted @ at

    c, height = value(y)
    for _ in range(NEWTON):
        missed = wanted - q.mT @ c
        if float(missed.abs().max()) < CLOSE:
            break
        positive = q[c > 0]
        hessian = positive.mT @ positive
        hessian.diagonal().add_(INDEPENDENT)
        step = torch.linalg.solve(hessian, missed)
        for k in range(HALVINGS):
            shorter = y + step / 2**k
            ahead, lower = value(shorter)
            if bool(lower < height):
                break
        else:
            break  # no further in these digits
        y, c, height = shorter, ahead, lower
    c = c / m
    return c, float((c @ moments - target).abs().max())
