"""Training sequences laid end to end: checked, and in parts inside and outside of a block."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import ArrayLike, as_pairs
from kbr.core.units.sensors import Sensors

FEW = 4  # sequences below which none is held out as a whole
HELD_OUT = 0.15  # share of the sequences that are
LEAD = 20  # rows that a filter takes to find the track, where it is not at a sequence's beginning
ALL_OVER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # places in a sequence, as shares of its length

KINDS = ("history", "rates", "controls", "sensors")
Pair = tuple[Float[Tensor, "*b _ dx"], Float[Tensor, "*b _ dz"]]


@dataclass(frozen=True, eq=False)
class Sequences:
    """Pairs of observations, flat, and latents; steps of the dynamics stay within the lengths.

    history   how many rows an observation holds, the newest first;
    rates     how many columns at the end of z are rates of the others, of which no error counts.
    sensors   groups of columns of x that may be absent, where there are some: they are NaN then.
    So many trailing columns of x are `controls`: what moved the latent there from the row before.
    """

    x: Float[Tensor, "*b n dx"]
    z: Float[Tensor, "*b n dz"]
    lengths: list[int]
    history: int = field(default=1, kw_only=True)
    rates: int = field(default=0, kw_only=True)
    controls: int = field(default=0, kw_only=True)
    sensors: Sensors | None = field(default=None, kw_only=True)

    @property
    def observed(self) -> Float[Tensor, "*b n d"]:
        """The observations without the controls."""
        return split(self.x, self.controls)[0]

    def outside(self, block: range) -> "Sequences":
        """What is not in the block of rows."""
        x, z = (outside(rows, block) for rows in (self.x, self.z))
        lengths = lengths_outside(self.lengths, block)
        return Sequences(x, z, lengths, **self.kinds)

    @property
    def kinds(self) -> dict[str, Any]:
        """What the columns are."""
        return {name: getattr(self, name) for name in KINDS}

    def inside(self, block: range) -> list[Pair]:
        """The sequences' parts in the block."""
        pieces = pieces_inside(self.lengths, block)
        return [(self.x[..., a:b, :].double(), self.z[..., a:b, :]) for a, b in pieces]


def split(rows: Tensor, controls: int) -> tuple[Tensor, Tensor | None]:
    """Rows without their trailing controls, and these; None where there are none."""
    return (rows[..., :-controls], rows[..., -controls:]) if controls else (rows, None)


def held_last(lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """An order of the rows with evenly spaced sequences last, and their lengths in that order.

    What is held out at the end then stands for the whole of a recording, not for its last part.
    """
    bounds, order = list(_bounds(lengths)), held_order(lengths)
    return [row for k in order for row in range(*bounds[k])], [lengths[k] for k in order]


def held_order(lengths: Sequence[int]) -> list[int]:
    """The sequences in the order of `held_last`."""
    count = held_sequences(lengths)
    held = {(2 * k + 1) * len(lengths) // (2 * count) for k in range(count)}
    return sorted(range(len(lengths)), key=lambda k: (k in held, k))


def held_sequences(lengths: Sequence[int]) -> int:
    """How many sequences to hold out as a whole; none where there are few."""
    return round(HELD_OUT * len(lengths)) if len(lengths) >= FEW else 0


@dataclass(frozen=True, eq=False)
class Piece:
    """Part of a sequence, in which errors count after a `lead`: a filter starts anew there."""

    x: Float[Tensor, "*b t dx"]
    z: Float[Tensor, "*b t dz"]
    lead: int = 0


def excerpts(
    data: Sequences, block: range, steps: int, places: Sequence[float] = ALL_OVER
) -> list[Piece]:
    """About so many steps of a block, in pieces from these places of sequences all over it.

    A lead comes on top for pieces that do not begin where a sequence does.
    """
    starts, rows = {a for a, _ in _bounds(data.lengths)}, pieces_inside(data.lengths, block)
    if len(block) > steps:
        chosen, size = [], steps // len(places) + LEAD
        for k, place in enumerate(places):
            a, b = rows[k * len(rows) // len(places)]
            start = a + int(place * max(b - a - size, 0))
            chosen.append((start, min(start + size, b)))
        rows = chosen
    return [
        Piece(
            data.x[..., a:b, :].double(),
            data.z[..., a:b, :],
            0 if a in starts else min(LEAD, (b - a) // 2),
        )
        for a, b in rows
    ]


def beginnings(data: Sequences, block: range, steps: int) -> list[Piece]:
    """The first rows, at most so many, of the sequences in a block that holds them whole."""
    rows = ((a, min(a + steps, b)) for a, b in pieces_inside(data.lengths, block))
    return [Piece(data.x[..., a:b, :].double(), data.z[..., a:b, :]) for a, b in rows]


def blocks_all_over(lengths: Sequence[int], count: int, size: int) -> list[range]:
    """Blocks of at least so many rows, evenly spaced: whole sequences, if there are enough.

    None is more than a third of all rows.
    """
    n, ends = sum(lengths), list(accumulate(lengths))
    size, blocks = min(size, n // 3), []
    for k in range(count):
        middle = (2 * k + 1) * n // (2 * count)
        start = next(
            end - length for end, length in zip(ends, lengths, strict=True) if middle < end
        )
        stop = next((end for end in ends if end >= start + size), n)
        if stop - start > n // 3:  # fewer rows, if they are whole sequences
            stop = max((end for end in ends if start < end <= start + n // 3), default=stop)
        if len(lengths) < FEW or not size // 2 <= stop - start <= n // 3:
            start = max(middle - size // 2, 0)
            stop = min(start + size, n)
        blocks.append(range(start, stop))
    return blocks


def whole_sequences(lengths: Sequence[int], count: int, each: int, size: int) -> list[range]:
    """Blocks of whole sequences, evenly spaced: each of so many of them and so many rows, or all.

    None at all, where sequences are few or one of these blocks is more than a third of all rows.
    """
    total, ends, blocks = len(lengths), [0, *accumulate(lengths)], []
    count = min(count, total)
    for k in range(count):
        first, last = k * total // count, (k + 1) * total // count
        enough = (end for end in range(first + each, last) if ends[end] - ends[first] >= size)
        blocks.append(range(ends[first], ends[next(enough, last)]))
    few = total < FEW or max(map(len, blocks)) > ends[-1] // 3
    return [] if few else blocks


def outside(rows: Tensor, block: range, dim: int = -2) -> Tensor:
    """The rows that are not in the block; no copy where it is the last."""
    n = rows.shape[dim]
    early, late = rows.narrow(dim, 0, block.start), rows.narrow(dim, block.stop, n - block.stop)
    return early if block.stop == n else torch.cat([early, late], dim)


def lengths_outside(lengths: Sequence[int], block: range) -> list[int]:
    """Sequence lengths of the rows that are not in the block: what it cuts falls in two."""
    parts = []
    for start, stop in _bounds(lengths):
        parts += [min(stop, block.start) - start, stop - max(start, block.stop)]
    return [part for part in parts if part > 0]


def pieces_inside(lengths: Sequence[int], block: range) -> list[tuple[int, int]]:
    """(start, stop) rows of the sequences' parts inside the block."""
    inside = [(max(a, block.start), min(b, block.stop)) for a, b in _bounds(lengths)]
    return [(a, b) for a, b in inside if a < b]


def _bounds(lengths: Sequence[int]) -> Iterable[tuple[int, int]]:
    return pairwise(accumulate(lengths, initial=0))


def training_sequences(
    x: ArrayLike | Sequence[ArrayLike],
    z: ArrayLike | Sequence[ArrayLike],
    *,
    missing: bool = False,
) -> tuple[Tensor, Tensor, list[int], tuple[int, ...]]:
    """Checked pairs laid end to end, with the sequences' lengths and one observation's shape.

    Lists of arrays are sequences; nested lists of numbers are one array. With `missing`, entries of
    x may be NaN. The tensors share no memory with what was passed.
    """
    pairs = _sequences(x, z)
    one = len(pairs) == 1
    parts = [as_pairs(a, b, missing=missing, own=one) for a, b in pairs]
    shapes = {part[2] for part in parts}
    if len(shapes) != 1:
        raise KbrError(f"all sequences need observations of one shape; got {sorted(shapes)}.")
    xs, zs, _ = zip(*parts, strict=True)
    whole_x, whole_z = (rows[0] if one else torch.cat(rows, -2) for rows in (xs, zs))
    return whole_x, whole_z, [z.shape[-2] for z in zs], shapes.pop()


def _sequences(x: Any, z: Any) -> list[tuple[Any, Any]]:
    """The pairs of two lists of arrays, or x and z themselves; what could be both is refused."""
    if not (isinstance(x, list | tuple) and isinstance(z, list | tuple)):
        return [(x, z)]
    if not x and not z:
        raise KbrError("x and z must have at least one row; got empty lists.")
    arrays = [bool(v) and all(_is_array(item) for item in v) for v in (x, z)]
    if not any(arrays):
        return [(x, z)]
    lengths = [[_length(item) for item in v] for v in (x, z)]
    flat = all(getattr(item, "ndim", 1) == 1 for v in (x, z) for item in v)
    flat = flat and len(set(lengths[0])) == 1
    if len(x) > 1 and lengths[0] == lengths[1] and (flat or not all(arrays)):
        raise KbrError(
            f"x and z are lists of {len(x)} items that could be rows or sequences. Pass one "
            "array (numpy.array(x)) if they are the rows of one sequence, or arrays of shape "
            "[T, ...] and [T, dz] for each sequence."
        )
    if not all(arrays):
        return [(x, z)]
    if len(x) != len(z):
        raise KbrError(f"x and z must be as many sequences; got {len(x)} of x and {len(z)} of z.")
    for k, (rows_x, rows_z) in enumerate(zip(*lengths, strict=True)):
        if rows_x != rows_z:
            raise KbrError(
                "x and z must have the same number of rows in every sequence; got "
                f"{rows_x} and {rows_z} in item {k} of the lists. If the items are the rows of one "
                "sequence, pass one array: numpy.array(x)."
            )
    return list(zip(x, z, strict=True))


def _is_array(item: object) -> bool:
    """Arrays, tensors and what numpy makes one of (tables), but no single numbers."""
    return hasattr(item, "__array__") and getattr(item, "ndim", 0) > 0


def _length(item: object) -> int:
    return len(item) if hasattr(item, "__len__") and getattr(item, "ndim", 1) > 0 else -1
