"""A fitted filter reduced to few weighted training pairs, with what that cost."""

from dataclasses import replace

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.engines.landmarks import choose_landmarks
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.novelty import Reach, reach_of
from kbr.core.filters.kernel.operators import FilterRatio
from kbr.core.filters.kernel.settings import Settings
from kbr.core.filters.kernel.storing.storage import Compression, FittedData, pack, unpack
from kbr.core.filters.result import mean_squared_error
from kbr.core.io.memory import check_memory
from kbr.core.kernels import Kernel, squared_distances


def compressed(fitted: Fitted, n_landmarks: int) -> Fitted:
    """The same filter on at most so many pairs; calibration is carried over."""
    data, choice = fitted.data, fitted.data.choice
    if data.z.ndim > 2 or data.landmarks is not None:
        raise KbrError(
            "compress takes a filter fitted to one data set, not compressed before; got a "
            f"batch {list(data.z.shape[:-2])} or a compressed filter. Take one of the batch."
        )
    if isinstance(fitted.settings.rule.ratio, FilterRatio):
        raise KbrError(
            "compress takes filters whose ratio is KuLSIF; got "
            f"{type(fitted.settings.rule.ratio).__name__}."
        )
    check_memory(
        5.0 * len(data.z) * n_landmarks * torch.float64.itemsize,
        what=f"choosing {n_landmarks} among {len(data.z):,} pairs",
        advice="Lower n_landmarks, or fit to fewer pairs first.",
        device=data.z.device,
    )
    scales = (choice.scale_x, choice.scale_z)
    first = data.founding  # bandwidths stay where rows were added later
    kernels = Builder(fitted.settings).fitted_kernels(first.x, first.z, scales)
    ridges = {"eta": float(choice.eta), "lam_transition": float(choice.lam_transition)}
    kept, landmarks = choose_landmarks(kernels, data, n_landmarks, **ridges)
    assert isinstance(fitted.reach, Reach)
    small = replace(data, x=data.x[kept], z=data.z[kept], landmarks=landmarks)
    return on_landmarks(fitted.settings, kernels, small, fitted.reach)


def on_landmarks(
    settings: Settings, kernels: tuple[Kernel, Kernel], data: FittedData, reach: Reach
) -> Fitted:
    """The filter of landmark pairs alone; `reach` is that of all pairs."""
    # How far from the landmarks alone an observation may lie: they are fewer anchors.
    few = reach_of(data.x, data.x[:0], len(data.x)).anchors
    farthest = squared_distances(reach.anchors, few).amin(-1).amax(-1)
    limit = (reach.limit.sqrt() + farthest.sqrt()).square()
    small = replace(data, lengths=[len(data.x)], basis=None, reach=limit)
    rule = replace(settings.rule, kernel_x=kernels[0], kernel_z=kernels[1])
    settings = replace(settings, rule=rule)
    return Fitted.build(settings, unpack(pack(small)))  # rounded as a file holds them


def with_cost(
    small: Fitted, before: Fitted, x: Tensor, z: Tensor, n_train: int | None = None
) -> Fitted:
    """The compressed filter with its error beside that of the one it came from.

    Or of one on fewer of the `n_train` pairs, where that would be too large.
    """
    scaling, errors = before.units.z, []
    for fitted in (before, small):
        result = fitted.filtered(x)
        mean, _ = scaling.undo(result.mean, result.cov)
        errors.append(float(mean_squared_error(mean, scaling.nearest(z, mean))))
    n, compared = before.operators.n, None
    if n_train is not None:
        n, compared = n_train, n
    first, then = errors
    made = Compression(n, small.operators.n, first, then, compared)
    return small.changed(compression=made)
