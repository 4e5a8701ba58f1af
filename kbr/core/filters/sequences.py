"""Training sequences laid end to end, and results back in the caller's shape."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import KernelFilterResult
from kbr.core.inputs import ArrayLike, as_pairs


def training_sequences(
    x: ArrayLike | Sequence[ArrayLike], z: ArrayLike | Sequence[ArrayLike]
) -> tuple[Tensor, Tensor, list[int], tuple[int, ...]]:
    """Checked pairs laid end to end, with the sequences' lengths and one observation's shape."""
    if not (isinstance(x, list | tuple) and isinstance(z, list | tuple)):
        x_, z_, shape = as_pairs(x, z)  # type: ignore[arg-type]
        return x_, z_, [z_.shape[-2]], shape
    if len(x) != len(z) or not x:
        raise KbrError(f"x and z must be as many sequences; got {len(x)} of x and {len(z)} of z.")
    parts = [as_pairs(a, b) for a, b in zip(x, z, strict=True)]
    shapes = {part[2] for part in parts}
    if len(shapes) != 1:
        raise KbrError(f"all sequences need observations of one shape; got {sorted(shapes)}.")
    joined_x = torch.cat([part[0] for part in parts], -2)
    joined_z = torch.cat([part[1] for part in parts], -2)
    return joined_x, joined_z, [part[1].shape[-2] for part in parts], shapes.pop()


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
        shaped(result.states, 2),
    )
