"""The one place where linear systems are solved: symmetric, ridged, in float64.

A ridge may be a number or a tensor over the leading batch dimensions, so that a whole grid of
ridges, or one ridge per trial, is a single batched factorisation.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import check_positive

Square = Float[Tensor, "*b p p"]
Columns = Float[Tensor, "*b p q"]


def or_one(value: Tensor) -> Tensor:
    """The value where it is positive, else 1: safe to divide by."""
    return torch.where(value > 0, value, torch.ones_like(value))


def add_ridge(a: Square, ridge: float | Tensor) -> Tensor:
    """a + ridge I in float64; the ridge broadcasts over the batch dimensions."""
    ridge_ = torch.as_tensor(ridge, dtype=torch.float64, device=a.device)
    wide = a.to(torch.float64)
    same = ridge_.shape == a.shape[:-2]
    out = wide.clone() if same else wide + torch.zeros_like(ridge_)[..., None, None]
    out.diagonal(dim1=-2, dim2=-1).add_(ridge_.unsqueeze(-1))
    return out


def ridge_cholesky(a: Square, *, ridge: float | Tensor, name: str = "ridge") -> Tensor:
    """Lower Cholesky factor of a + ridge I; a failure names the ridge and the size."""
    check_positive(ridge, name=name)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(add_ridge(a, ridge))
    traced = info.device.type == "meta" or torch.compiler.is_compiling()
    if not traced and bool(info.any()):
        p = a.shape[-1]
        least = float(ridge.detach().min() if isinstance(ridge, Tensor) else ridge)
        if not bool(a.isfinite().all()):
            raise KbrError(
                f"the {p} x {p} system with {name} = {least:.3g} holds NaN or infinite "
                "numbers: rescale the data, or lower lr where features are being trained."
            )
        largest = float(a.detach().diagonal(dim1=-2, dim2=-1).abs().max())
        enough = max(10 * least, p * torch.finfo(torch.float64).eps * largest)  # above rounding
        raise KbrError(
            f"the {p} x {p} system is not positive definite in float64 with "
            f"{name} = {least:.3g}; raise {name} to {enough:.1g} or more."
        )
    return factor


def ridge_solve(a: Square, b: Columns, *, ridge: float | Tensor, name: str = "ridge") -> Tensor:
    """(a + ridge I)^-1 b for symmetric positive semi-definite a, in float64."""
    return torch.cholesky_solve(b.to(torch.float64), ridge_cholesky(a, ridge=ridge, name=name))


def quick_ridge_solve(
    a: Float[Tensor, "p p"], b: Float[Tensor, "p q"], *, ridge: float
) -> Float[Tensor, "p q"] | None:
    """`ridge_solve` of one system in float64, into which the ridge is written.

    None where it is not positive definite: `ridge_solve` then says so.
    """
    a.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(a)
    return None if info.item() else torch.cholesky_solve(b, factor)


def general_ridge_solve(
    a: Square, b: Columns, *, ridge: float | Tensor, name: str = "ridge"
) -> Tensor:
    """(a + ridge I)^-1 b for a square matrix that is not symmetric, in float64."""
    check_positive(ridge, name=name)
    solved: Tensor = torch.linalg.solve(add_ridge(a, ridge), b.to(torch.float64))
    return solved


def squared_ridge_solve(c: Square, b: Columns, *, ridge: float | Tensor) -> Tensor:
    """(c^2 + ridge I)^-1 c b for symmetric, possibly indefinite c, in float64."""
    c = c.to(torch.float64)
    return ridge_solve(c @ c, c @ b.to(torch.float64), ridge=ridge, name="lam")


def pivoted_cholesky(
    diagonal: Float[Tensor, "*b n"],
    column: Callable[[Int[Tensor, "*b"]], Float[Tensor, "*b n"]],
    *,
    tolerance: float | Float[Tensor, "*b"],
    max_rank: int | None = None,
) -> tuple[Float[Tensor, "*b n r"], Int[Tensor, "*b r"]]:
    """Greedy low-rank factor of a positive semi-definite matrix from its diagonal and columns.

    Math: G ~ L L', the largest remaining diagonal entry is at most tolerance * max diag(G).
    Ref:  Fine and Scheinberg 2001; Harbrecht, Peters and Schneider 2012.
    The rank is that of the batch's hardest member; finished members get zero columns.
    """
    n = diagonal.shape[-1]
    limit = n if max_rank is None else min(max_rank, n)
    residual = diagonal.to(torch.float64).clone()
    stop = tolerance * residual.amax(-1).clamp_min(torch.finfo(torch.float64).tiny)
    factor = residual.new_zeros(*residual.shape, min(limit, 64))
    pivots: list[Tensor] = []
    for rank in range(limit):
        height, pivot = residual.max(-1)
        active = height > stop
        if not bool(active.any()):
            break
        if rank == factor.shape[-1]:
            wider = residual.new_zeros(*residual.shape, min(limit, 2 * rank))
            wider[..., :rank] = factor
            factor = wider
        done = factor[..., :rank]
        row = done.gather(-2, pivot[..., None, None].expand(*pivot.shape, 1, rank))
        fresh = column(pivot).to(torch.float64) - (done @ row.mT).squeeze(-1)
        fresh = torch.where(residual > 0, fresh, torch.zeros_like(fresh))
        scale = torch.where(active, height, torch.ones_like(height)).rsqrt() * active
        fresh = fresh * scale.unsqueeze(-1)
        factor[..., rank] = fresh
        residual = (residual - fresh.square()).clamp_min(0)
        residual.scatter_(-1, pivot.unsqueeze(-1), 0.0)
        pivots.append(pivot)
    rank = len(pivots)
    chosen = torch.stack(pivots, -1) if pivots else diagonal.new_zeros(0).long()
    return factor[..., :rank].contiguous(), chosen.reshape(*diagonal.shape[:-1], rank)
