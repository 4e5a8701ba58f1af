"""Blocks of a training sequence, each to be filtered by operators of the rest."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from kbr.core.filters.storage import Stored
from kbr.core.filters.tuning import split_lengths

FOLDS = 3


def even_blocks(n: int, count: int = FOLDS) -> list[range]:
    """Rows 0 .. n - 1 in so many blocks."""
    return [range(k * n // count, (k + 1) * n // count) for k in range(count)]


def rows_outside(stored: Stored, block: range) -> Stored:
    """The training data without the rows of a block, observations flat."""
    rows = torch.arange(stored.z.shape[-2], device=stored.z.device)
    keep = torch.cat([rows[: block.start], rows[block.stop :]])
    return replace(
        stored,
        x=stored.x[..., keep, :],
        z=stored.z[..., keep, :],
        lengths=lengths_outside(stored.lengths, block),
        shape=(stored.x.shape[-1],),
        calibration=None,
        smoothing=None,
        reach=None,
        units=None,
    )


def lengths_outside(lengths: Sequence[int], block: range) -> list[int]:
    """Sequence lengths of the rows that are not in the block: what it cuts falls in two."""
    found, start = [], 0
    for length in lengths:
        stop = start + length
        parts = (min(stop, block.start) - start, stop - max(start, block.stop))
        found += [part for part in parts if part > 0]
        start = stop
    return found


def pieces_inside(lengths: Sequence[int], block: range) -> list[tuple[int, int]]:
    """(start, stop) rows of the sequences' parts inside the block."""
    _, pieces = split_lengths(lengths, block.start)
    return [(a, min(b, block.stop)) for a, b in pieces if a < block.stop]
