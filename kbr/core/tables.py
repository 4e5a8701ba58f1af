"""Products with tall tables [n p] of features: one row for each training point.

A table in the precision of its small partner is an ordinary matrix. A table in float32, as filters
on very many points keep them, is read block by block, and sums over its rows are made in float64.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

CACHE = 2**19  # numbers that are made at once: 4 MB
WORK = 2**20  # products from which rows of no weight are left out,
SPARSE = 0.8  # if no more than this share has one
ROWS = 16_384  # of a block: its features and their products stay in the cache


def blocks(n: int, rows: int | None = None) -> Iterator[slice]:
    """Rows 0 .. n - 1 in blocks."""
    size = rows or ROWS
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def by_feature(table: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b n p"]:
    """The same table with the numbers of each feature side by side in memory.

    Products with one vector then read them in order, which is up to twice as fast.
    """
    return table.mT.contiguous().mT


def extended(table: Float[Tensor, "*b n p"], rows: int) -> Float[Tensor, "*b m p"]:
    """A copy of the table with room for so many rows more, laid out as it is."""
    *batch, n, p = table.shape
    upright = table.is_contiguous() or not table.mT.is_contiguous()
    shape = (n + rows, p) if upright else (p, n + rows)
    longer = table.new_empty(*batch, *shape)
    longer = longer if upright else longer.mT
    longer[..., :n, :] = table
    return longer


def at_rows(
    coords: Float[Tensor, "*b s p"], table: Float[Tensor, "*b n p"]
) -> Float[Tensor, "*b s n"]:
    """Math: coords table', a number for each row."""
    if table.dtype == coords.dtype:
        return coords @ table.mT
    return (coords.to(table.dtype) @ table.mT).to(coords.dtype)


def sum_rows(
    weights: Float[Tensor, "*b s n"], table: Float[Tensor, "*b n p"]
) -> Float[Tensor, "*b s p"]:
    """Math: weights table = sum_i w_i table_i."""
    if table.dtype == weights.dtype:
        return weights @ table
    total = weights.new_zeros(*weights.shape[:-1], table.shape[-1])
    narrow = weights.to(table.dtype)
    for rows in blocks(table.shape[-2]):
        total += narrow[..., rows] @ table[..., rows, :]
    return total


def weighted_gram(
    weights: Float[Tensor, "*b s n"], table: Float[Tensor, "*b n d"]
) -> Float[Tensor, "*b s d d"]:
    """Math: table' diag(w) table, for each of the s weights.

    Data sets of a batch are taken one by one where their products are larger than the cache, and
    weights where most are zero: rows of no weight are left out.
    """
    if weights.shape[:-1].numel() == 1 and table.dtype == weights.dtype:
        return ((table.mT * weights) @ table).reshape(*weights.shape[:-1], *2 * table.shape[-1:])
    if table.dtype == weights.dtype:
        size = weights.numel() * table.shape[-1]
        if table.ndim > 2 and size > CACHE:
            pairs = zip(weights, table, strict=True)
            return torch.stack([weighted_gram(one, rows) for one, rows in pairs])
        if table.ndim == 2 and table.shape[-1] * size > WORK and _is_sparse(weights):
            return torch.stack([_gram_of_some(one, table) for one in weights])
        wide = table.unsqueeze(-3)
        return (wide * weights.unsqueeze(-1)).mT @ wide
    wide = table.unsqueeze(-3)
    d = table.shape[-1]
    total = weights.new_zeros(*weights.shape[:-1], d, d)
    for rows in blocks(table.shape[-2], max(1, ROWS // weights.shape[-2])):
        part = wide[..., rows, :].to(weights.dtype)
        total += (part * weights[..., rows].unsqueeze(-1)).mT @ part
    return total


def _is_sparse(weights: Float[Tensor, "s n"]) -> bool:
    """Whether to look for rows of no weight pays: a program that is traced does not look."""
    if torch.compiler.is_compiling():
        return False
    return int(weights.count_nonzero()) < SPARSE * weights.numel()


def _gram_of_some(weights: Float[Tensor, "n"], table: Float[Tensor, "n d"]) -> Tensor:
    """The same for one row of weights, on the rows that have one."""
    rows = weights.nonzero().squeeze(-1)
    some = table.index_select(0, rows)
    return (some * weights.index_select(0, rows).unsqueeze(-1)).mT @ some
