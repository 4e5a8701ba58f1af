"""Which rows a step of training looks at: pieces of sequences, with what they look back at."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Piece(NamedTuple):
    """Rows `start` .. `end` - 1, whose errors count, and those from `before` on, which do not."""

    before: int
    start: int
    end: int


def cut(lengths: Sequence[int], size: int, first: int, memory: int | None = None) -> list[Piece]:
    """Sequences end to end in pieces of `size` rows; the first piece of each has `first` rows.

    A piece looks back at so many rows of its sequence as `memory` says; None: at none.
    """
    pieces = []
    for begin, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        cuts = [0, *range(min(first, length), length, size), length]
        for a, b in pairwise(begin + place for place in cuts):
            if b > a:
                pieces.append(Piece(max(begin, a - (memory or 0)), a, b))
    return pieces


def block(lengths: Sequence[int], memory: int | None, rank: int, world: int) -> list[Piece]:
    """One worker's rows of pieces of these lengths: an even block of all rows.

    Where it begins inside a piece, it looks back: as far as `memory` says; None: to its beginning.
    """
    n = sum(lengths)
    start, end = (n * k // world for k in (rank, rank + 1))
    pieces = []
    for a, b in pairwise(accumulate(lengths, initial=0)):
        if a < end and b > start and a < b:
            own = max(a, start)
            before = a if memory is None else max(a, own - memory)
            pieces.append(Piece(before, own, min(b, end)))
    return pieces


def rows_of(pieces: Sequence[Piece]) -> tuple[slice | Int[Tensor, "t"], Bool[Tensor, "t"]]:
    """All rows of the pieces, one piece after the other, and which of them count."""
    parts = [torch.arange(piece.before, piece.end, device="cpu") for piece in pieces]
    counted = [part >= piece.start for part, piece in zip(parts, pieces, strict=True)]
    if all(one.end == other.before for one, other in pairwise(pieces)):  # no copy of the data
        return slice(pieces[0].before, pieces[-1].end), torch.cat(counted)
    return torch.cat(parts), torch.cat(counted)
