"""Products with tall tables [n p] of features: one row for each training point.

A table in the precision of its small partner is an ordinary matrix. A table in float32, as filters
on very many points keep them, is read block by block, and sums over its rows are made in float64.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

WORK = 2**20  # products in a table' table from which rows of no weight are left out
MOST = 0.8  # share of the rows from which all are taken
ROWS = 16_384  # of a block: its features and their products stay in the cache


def blocks(n: int, rows: int | None = None) -> Iterator[slice]:
    """Rows 0 .. n - 1 in blocks."""
    size = rows or ROWS
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def extended(table: Float[Tensor, "*b n p"], rows: int) -> Float[Tensor, "*b m p"]:
    """A copy of the table with room for so many rows more."""
    *batch, n, p = table.shape
    longer = table.new_empty(*batch, n + rows, p)
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

    Data sets are taken one by one: what is made of a whole batch is larger than the cache. So are
    weights where the product costs more than to look for rows without weight, which are left out.
    """
    if table.dtype == weights.dtype:
        if table.ndim > 2:
            pairs = zip(weights, table, strict=True)
            return torch.stack([weighted_gram(one, rows) for one, rows in pairs])
        if table.numel() * table.shape[-1] < WORK or torch.compiler.is_compiling():
            return (table * weights.unsqueeze(-1)).mT @ table
        return torch.stack([_gram(*_present(one, table)) for one in weights])
    wide = table.unsqueeze(-3)
    d = table.shape[-1]
    total = weights.new_zeros(*weights.shape[:-1], d, d)
    for rows in blocks(table.shape[-2], max(1, ROWS // weights.shape[-2])):
        part = wide[..., rows, :].to(weights.dtype)
        total += (part * weights[..., rows].unsqueeze(-1)).mT @ part
    return total


def _gram(weights: Float[Tensor, "n"], table: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    return (table * weights.unsqueeze(-1)).mT @ table


def _present(
    weights: Float[Tensor, "n"], table: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "k"], Float[Tensor, "k d"]]:
    """The rows that have a weight; all of them where those are nearly as many."""
    rows = weights.nonzero().squeeze(-1)
    if len(rows) > MOST * len(weights):
        return weights, table
    return weights.index_select(0, rows), table.index_select(0, rows)
