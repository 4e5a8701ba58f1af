"""Observations that stay in their file: rows come as tensors, a block at a time."""

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kbr.core.io.npy import map_file
from kbr.core.tables import blocks

BLOCK = 1024  # rows read at once


class FileRows:
    """Rows of an .npy file of any size, in any order, as float32 (value - mean) / scale.

    A slice is again FileRows; a list of numbers reads these rows. `layout` brings a block of the
    file's rows into shape (a view: colours first, a channel added). The file is mapped for each
    block anew, so that its pages leave the memory with the block.
    """

    def __init__(
        self,
        path: Path,
        rows: np.ndarray | None = None,
        *,
        layout: Callable[[np.ndarray], np.ndarray] = np.asarray,
        mean: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
    ) -> None:
        self.path, self.layout, self.mean, self.scale = path, layout, mean, scale
        mapped = map_file(path)
        self.dtype = mapped.dtype
        self.rows = np.arange(len(mapped)) if rows is None else rows
        self.shape = (len(self.rows), *layout(mapped[:1]).shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, part: slice | Sequence[int] | np.ndarray) -> "FileRows | Tensor":
        return self.part(part) if isinstance(part, slice) else self.part(part).read()

    def part(self, part: slice | Sequence[int] | np.ndarray) -> "FileRows":
        return self._with(rows=self.rows[part])

    def scaled(self, mean: Tensor, scale: Tensor) -> "FileRows":
        return self._with(mean=mean, scale=scale)

    def raw(self) -> np.ndarray:
        """The rows as the file holds them, in the layout of observations."""
        mapped = map_file(self.path)
        together = len(self.rows) > 0 and bool((np.diff(self.rows) == 1).all())
        taken = slice(self.rows[0], self.rows[-1] + 1) if together else self.rows
        return self.layout(np.array(mapped[taken]))

    def read(self, dtype: type[np.floating] = np.float32) -> Tensor:
        values = torch.from_numpy(np.ascontiguousarray(self.raw(), dtype=dtype))
        if not isinstance(self.mean, Tensor):
            return values
        return (values - self.mean.to(values)) / torch.as_tensor(
            self.scale, dtype=values.dtype, device=values.device
        )

    def parts(self, size: int | None = None) -> Iterator["FileRows"]:
        """Blocks of rows, each small enough to be read."""
        return (self.part(some) for some in blocks(len(self), size or BLOCK))

    def moments(self, dtype: type[np.floating] = np.float32) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, in float64, of every channel [1 c 1 1] or entry [1 ...]."""
        axes = [0, *range(2, self.ndim)] if self.ndim == 4 else [0]
        # Taken off first, so that no digits are lost.
        first = next(self.parts()).read(dtype).double().mean(axes, keepdim=True)
        sums = first.new_zeros(2, *first.shape)
        for part in self.parts():
            centred = part.read(dtype).double() - first
            sums += torch.stack([v.sum(axes, keepdim=True) for v in (centred, centred.square())])
        mean, second = sums / (math.prod(self.shape) / first.numel())
        return first + mean, (second - mean.square()).clamp_min(0).sqrt()

    @classmethod
    def join(cls, parts: Sequence["FileRows"]) -> "FileRows":
        """Parts of one file, end to end."""
        return parts[0]._with(rows=np.concatenate([part.rows for part in parts]))

    def _with(self, **changed: object) -> "FileRows":
        other = copy(self)
        other.__dict__.update(changed)
        other.shape = (len(other.rows), *self.shape[1:])
        return other
