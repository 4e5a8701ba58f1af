"""Few weighted pairs and a small matrix that carry a filter of very many pairs in files.

What all rows say is in two sums: the average of the leading features of k_X k_Z, which the masses
of landmarks among the candidates meet exactly, and the dynamics.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import pivot_triangle
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choosing.search import Choice
from kbr.core.filters.kernel.engines.compression import on_landmarks
from kbr.core.filters.kernel.engines.landmarks import pair_moments, spanned, wide_kernels
from kbr.core.filters.kernel.engines.recombination import matched, recombine
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.from_files.pairs import FilePairs
from kbr.core.filters.kernel.from_files.passes import Averages, Pass, Steps
from kbr.core.filters.kernel.novelty import Reach
from kbr.core.filters.kernel.storing.storage import FittedData
from kbr.core.filters.training_data import TrainingData
from kbr.core.units.units import Units

RESIDUAL = 1e-10  # pivots of k_X k_Z stop here: averages over all rows have so many digits
MET = 1e-8  # moments that are met to this are met

Added = Callable[[Pass], tuple[Tensor, int]]  # the sum of a pass, and of how many rows or steps


@dataclass(frozen=True, eq=False)
class Source:
    """Pairs in files, and the evenly spaced ones in double precision, the candidates."""

    builder: Builder
    pairs: FilePairs
    units: Units
    few: TrainingData
    reach: Reach
    n_landmarks: int

    def thinned(self, candidates: int, landmarks: int) -> "Source":
        """With so many at most, and bandwidths that are multiples of the candidates' medians."""
        n = len(self.few.z)
        rows = torch.linspace(0, n - 1, min(n, candidates), device=self.few.z.device).round().long()
        few = replace(self.few, x=self.few.x[rows], z=self.few.z[rows])
        return replace(self, few=few, n_landmarks=min(self.n_landmarks, landmarks))

    def carried(
        self, choice: Choice, added: Added, once: Callable[[Callable[[], Any]], Any]
    ) -> tuple[Fitted, int]:
        """The filter with these settings, and how many rows it is of.

        `added` makes the sums; `once` what one process makes for all of them.
        """
        x, z = self.few.x, self.few.z
        kernels = self.builder.fitted_kernels(x, z, (choice.scale_x, choice.scale_z))
        wide = wide_kernels(kernels, x, z)
        moments, found = pair_moments(wide, x, z, self.n_landmarks, RESIDUAL)
        pivots = once(lambda: found)
        total, count = added(Averages(self.pairs, self.units, wide, (x[pivots], z[pivots])))
        triangle, _ = pivot_triangle(moments[:, 1:], pivots)
        mean = torch.linalg.solve_triangular(triangle, total[:, None] / count, upper=False)
        target = torch.cat([mean.new_ones(1), mean[:, 0]])
        kept, mass = once(lambda: _landmarks(moments, target))
        ridges = {"eta": float(choice.eta), "lam_transition": float(choice.lam_transition)}
        order, mass, span = spanned(kernels[1], z[kept], mass, min(ridges.values()))
        kept = kept[order]
        total, steps = added(Steps(self.pairs, self.units, span))
        if not steps:
            raise KbrError(
                "there is no step to learn from: every sequence has one whole row at most."
            )
        cross = total.reshape(len(span.points), -1) / steps
        parts = (x[kept], z[kept], [len(kept)], self.few.shape, choice)
        data = FittedData(*parts, span.dynamics(mass, cross, **ridges), units=self.units)
        return on_landmarks(self.builder.settings, kernels, data, self.reach), count


def _landmarks(moments: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates to keep, and masses under which they have the moments of all rows."""
    mass, missed = matched(moments, target)
    if missed > MET:
        warnings.warn(
            f"the averages of all rows are met to {missed:.0e} only: rows unlike all of "
            f"{len(moments):,} evenly spaced ones are many. Lower n_landmarks, or shuffle the "
            "sequences.",
            stacklevel=5,
        )
        mass = mass / mass.sum()
    there = (mass > 0).nonzero().squeeze(-1)
    kept, mass = recombine(moments[there], mass[there])
    return there[kept], mass
