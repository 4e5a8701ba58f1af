"""Training sequences laid end to end, and results back in the caller's shape."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import KernelFilterResult
from kbr.core.inputs import ArrayLike, as_pairs


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
    joined_x = parts[0][0] if one else torch.cat([part[0] for part in parts], -2)
    joined_z = parts[0][1] if one else torch.cat([part[1] for part in parts], -2)
    return joined_x, joined_z, [part[1].shape[-2] for part in parts], shapes.pop()


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
    flat = all(_is_flat(item) for v in (x, z) for item in v) and len(set(lengths[0])) == 1
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


def _is_flat(item: object) -> bool:
    return getattr(item, "ndim", 1) == 1


def _length(item: object) -> int:
    return len(item) if hasattr(item, "__len__") and getattr(item, "ndim", 1) > 0 else -1


def reshape_result(result: KernelFilterResult, sequences: tuple[int, ...]) -> KernelFilterResult:
    """Sequences back in the caller's shape."""

    def shaped(tensor: Tensor, trailing: int) -> Tensor:
        axis = tensor.ndim - trailing - 1
        return tensor.reshape(*tensor.shape[:axis], *sequences, *tensor.shape[axis + 1 :])

    assert result.effective_sample_size is not None
    assert result.states is not None
    return KernelFilterResult(
        shaped(result.mean, 2),
        shaped(result.cov, 3),
        shaped(result.evidence, 1),
        shaped(result.effective_sample_size, 1),
        states=shaped(result.states, 2),
    )
