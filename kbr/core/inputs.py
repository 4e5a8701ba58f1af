"""From what users pass (numpy, torch, lists) to checked tensors; errors say what to change."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError

IMAGES = 3  # dimensions from which 8-bit numbers are images: steps, rows, columns
SMALLEST = torch.finfo(torch.float64).tiny  # below it, digits are lost

ArrayLike = Tensor | np.ndarray | float | Sequence[Any]


def as_tensor(value: object, *, name: str) -> Tensor:
    """A floating-point tensor without gradient; masked entries become NaN.

    Integers become float64, which holds counts and times to the unit; images of 8 bits become
    float32, which is exact for them; float16/32/64 stay and may share the caller's memory.
    """
    try:
        tensor = _numbers(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        nested = isinstance(value, list | tuple) and isinstance(error, ValueError)
        why = (
            "a list whose items differ in length; sequences of different lengths are fitted as a "
            "list of arrays"
            if nested
            else f"{type(value).__name__}: {error}"
        )
        raise KbrError(f"{name} must be a numeric array or tensor; got {why}.") from error
    if tensor.is_complex() or tensor.layout != torch.strided:
        kind = tensor.dtype if tensor.is_complex() else tensor.layout
        raise KbrError(f"{name} must be a dense array of real numbers; got {kind}.")
    if not tensor.is_floating_point():
        small = tensor.dtype in (torch.uint8, torch.bool) and tensor.ndim >= IMAGES
        return tensor.to(torch.float32 if small else torch.float64)
    return tensor


def owned(tensor: Tensor, value: object) -> Tensor:
    """The tensor in memory of its own: what is done later to `value` leaves it as it is."""
    if isinstance(value, Tensor):
        shared = tensor.data_ptr() == value.data_ptr()
    elif isinstance(value, np.ndarray):
        shared = np.may_share_memory(tensor.numpy(), value)
    else:
        shared = not isinstance(value, list | tuple)
    return tensor.clone() if shared else tensor


def _numbers(value: object) -> Tensor:
    """A tensor of the value's own type, detached from any graph."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
        return torch.stack([_numbers(item) for item in value])
    if isinstance(value, np.ma.MaskedArray):
        exact = np.promote_types(value.dtype, np.float32)  # float64 where integers need it
        return torch.from_numpy(np.ma.filled(value.astype(exact), np.nan))
    array = np.asarray(value)
    if array.dtype.kind not in "fiubc":
        raise TypeError(f"numpy reads it as {array.dtype}; missing values are NaN")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # files may have the other
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()  # torch shares neither read-only nor reversed arrays
    return torch.from_numpy(array)


def check_finite(tensor: Tensor, *, name: str) -> None:
    """Training data must be finite; says how many entries are not and where the first one is."""
    bad = ~torch.isfinite(tensor)
    if tensor.device.type != "meta" and bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise KbrError(
            f"{name} must be finite; {int(bad.sum())} of {bad.numel()} values are NaN or infinite, "
            f"the first at index {first}. Fill them or leave these rows of {name} out; a sequence "
            "is cut there, its pieces fitted as a list of arrays."
        )


def check_positive(value: object, *, name: str) -> None:
    """Ridges, bandwidths and noise levels are finite and greater than zero."""
    on_meta = isinstance(value, Tensor) and value.device.type == "meta"
    if on_meta or torch.compiler.is_compiling():  # a traced value has no sign yet
        return
    try:
        if not isinstance(value, Tensor) or value.numel() == 1:
            # Asked at every step of a filter: one look is quickest.
            number = value.item() if isinstance(value, Tensor) else float(value)  # type: ignore[arg-type]
            good = SMALLEST <= number < math.inf
        else:
            wide = value.to(torch.float64)
            good = bool(((wide >= SMALLEST) & wide.isfinite()).all())
    except (TypeError, ValueError) as error:
        raise KbrError(f"{name} must be a number greater than zero; got {value!r}.") from error
    if not good:
        first = value.flatten()[:3].tolist() if isinstance(value, Tensor) else value
        raise KbrError(
            f"{name} must be a finite number greater than zero (in float64 at least "
            f"{SMALLEST:.1e}); got {first}. Set {name} to such a number."
        )


def check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise KbrError(f"{name} must be at least 1; got {size}. Set {name}.")


def check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise KbrError(f"{name} must lie in [0, 1); got {share}. Set {name}.")


def check_noise(**levels: float) -> None:
    for name, level in levels.items():
        if not (math.isfinite(level) and level >= 0):
            raise KbrError(f"{name} must be finite and at least zero; got {level}. Set {name}.")


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise KbrError(f"level must lie strictly between 0 and 1; got {level}. Try level=0.9.")


def as_pairs(
    x: ArrayLike, z: ArrayLike, *, missing: bool = False, own: bool = True
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Training pairs: z [*b n dz] (or [n]), x [*b n ...]; the batch dimensions are those of z.

    Returns x flattened to [*b n dx], z, and the shape of one observation; in memory of their own,
    unless `own` is False. With `missing`, entries of x may be absent: they are NaN in the result.
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
    shape = tuple(x_.shape[len(lead) :])
    if math.prod(shape) == 0 or z_.shape[-1] == 0:
        raise KbrError(
            "x and z must have at least one number in every row; got x of shape "
            f"{tuple(x_.shape)} and z of shape {tuple(z_.shape)}."
        )
    check_finite(z_, name="z")
    if missing:
        x_ = torch.where(x_.isfinite(), x_, torch.nan)
    else:
        check_finite(x_, name="x")
    if own:
        x_, z_ = owned(x_, x), owned(z_, z)
    flat = x_.reshape(*lead, -1)
    if missing and flat.device.type != "meta" and bool(flat.isnan().all()):
        raise KbrError("x must have at least one number that is not missing; got none.")
    return flat, z_, shape
