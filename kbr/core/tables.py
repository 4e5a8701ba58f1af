"""Products with tall tables [n p] of features: one row for each training point.

A table in the precision of its small partner is an ordinary matrix. A table in float32, as filters
on very many points keep them, is read block by block, and sums over its rows are made in float64.
"""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

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
    """Math: table' diag(w) table, for each of the s weights."""
    if weights.numel() == table.shape[-2] and table.dtype == weights.dtype:
        return ((table.mT * weights) @ table).reshape(*weights.shape[:-1], *2 * table.shape[-1:])
    wide = table.unsqueeze(-3)
    if table.dtype == weights.dtype:
        return (wide * weights.unsqueeze(-1)).mT @ wide
    d = table.shape[-1]
    total = weights.new_zeros(*weights.shape[:-1], d, d)
    for rows in blocks(table.shape[-2], max(1, ROWS // weights.shape[-2])):
        part = wide[..., rows, :].to(weights.dtype)
        total += (part * weights[..., rows].unsqueeze(-1)).mT @ part
    return total
