"""Products of kernels: several parts of a point, each under a kernel of its own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeGuard

import torch
from torch import Tensor

from kbr.core.kernels import Gaussian, Gram, Kernel, Others, Points


def has_profile(kernel: object) -> TypeGuard[Kernel]:
    """Whether it is a kernel of distances whose bandwidth is still to be chosen."""
    if not isinstance(kernel, Kernel) or kernel.bandwidth is not None:
        return False
    return type(kernel).fit is Kernel.fit and type(kernel).__call__ is Kernel.__call__


def product_of(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Kernel:
    """The kernel of points whose next sizes_i columns are under kernel i, to be fitted as a whole.

    Math: k(a, b) = prod_i k_i(a_i, b_i), where kernel i has the bandwidth of the product times its
          own scale. Gaussians of one scale are one Gaussian.
    """
    first = kernels[0]
    alike = all(type(kernel) is Gaussian and kernel.scale == first.scale for kernel in kernels)
    if alike or len(kernels) == 1:
        return first
    return _Product(kernels=tuple(kernels), sizes=tuple(sizes))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Product(Kernel):
    kernels: tuple[Kernel, ...]
    sizes: tuple[int, ...]

    def __call__(self, a: Points, b: Others) -> Gram:
        left = self._split(a)
        right = left if a is b else self._split(b)
        pairs = zip(self._parts(), left, right, strict=True)
        return _multiplied(kernel(one, other) for kernel, one, other in pairs)

    def anchored(self, b: Others) -> Callable[[Tensor], Tensor]:
        pairs = zip(self._parts(), self._split(b), strict=True)
        each = [kernel.anchored(part) for kernel, part in pairs]

        def cross(a: Tensor) -> Tensor:
            return _multiplied(at(part) for at, part in zip(each, self._split(a), strict=True))

        return cross

    def _split(self, points: Points) -> tuple[Tensor, ...]:
        return torch.split(points, list(self.sizes), -1)

    def _parts(self) -> list[Kernel]:
        """The kernels with their bandwidths."""
        width = self.bandwidth
        return [
            replace(kernel, bandwidth=None if width is None else width * kernel.scale)
            for kernel in self.kernels
        ]


def _multiplied(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.mul, parts)
