"""From what users pass (numpy, torch, lists) to checked tensors; errors say what to change."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError

ArrayLike = Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]


def as_tensor(value: ArrayLike, *, name: str) -> Tensor:
    """A floating-point tensor; integers (uint8 images too) become float32, float16/32/64 stay."""
    try:
        tensor = value if isinstance(value, Tensor) else _from_numpy(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise KbrError(
            f"{name} must be a numeric array or tensor; got {type(value).__name__}: {error}"
        ) from error
    if tensor.is_complex():
        raise KbrError(f"{name} must be real numbers; got {tensor.dtype}.")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float32)


def _from_numpy(array: np.ndarray) -> Tensor:
    """A tensor that shares memory where torch allows it: not for reversed or read-only arrays."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.as_tensor(array)


def check_finite(tensor: Tensor, *, name: str) -> None:
    """Training data must be finite; says how many entries are not and where the first one is."""
    bad = ~torch.isfinite(tensor)
    if tensor.device.type != "meta" and bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise KbrError(
            f"{name} must be finite; {int(bad.sum())} of {bad.numel()} values are NaN or infinite, "
            f"the first at index {first}. Remove or fill these rows of {name} before fitting."
        )


def check_positive(value: float | Tensor, *, name: str) -> None:
    """Ridges, bandwidths and noise levels are finite and greater than zero."""
    if torch.compiler.is_compiling():  # a traced value has no sign yet
        return
    tensor = torch.as_tensor(value)
    if tensor.device.type == "meta":
        return
    if tensor.numel() == 1:  # asked at every step of a filter: one look is quickest
        good = 0 < tensor.item() < math.inf
    else:
        good = bool(((tensor > 0) & torch.isfinite(tensor)).all())
    if not good:
        shown = value if isinstance(value, int | float) else tensor.flatten()[:3].tolist()
        raise KbrError(
            f"{name} must be a finite number greater than zero; got {shown}. Set {name} > 0."
        )


def as_pairs(x: ArrayLike, z: ArrayLike) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Training pairs: z [*b n dz] (or [n]), x [*b n ...]; the batch dimensions are those of z.

    Returns x flattened to [*b n dx], z, and the shape of one observation.
    """
    x_, z_ = as_tensor(x, name="x"), as_tensor(z, name="z")
    if z_.ndim == 1:
        z_ = z_.unsqueeze(-1)
    if z_.ndim < 2:
        raise KbrError(
            f"z must have shape [n, dz] (or [n]); got a single number of shape {tuple(z_.shape)}."
        )
    lead = z_.shape[:-1]
    if x_.ndim < len(lead) or x_.shape[: len(lead) - 1] != lead[:-1]:
        raise KbrError(
            f"x must have shape [{', '.join(map(str, lead))}, ...] to go with z of shape "
            f"{tuple(z_.shape)}; got {tuple(x_.shape)}."
        )
    if x_.shape[len(lead) - 1] != lead[-1]:
        raise KbrError(
            "x and z must have the same number of rows; got "
            f"{x_.shape[len(lead) - 1]} observations x and {lead[-1]} latents z. "
            "Pass one z for every x."
        )
    if lead[-1] == 0:
        raise KbrError("x and z must have at least one row; got none. Pass some training pairs.")
    check_finite(x_, name="x")
    check_finite(z_, name="z")
    return x_.reshape(*lead, -1), z_, tuple(x_.shape[len(lead) :])
