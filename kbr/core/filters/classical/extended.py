"""The extended Kalman filter: every function is replaced by its tangent at the mean."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev

from kbr.core.filters.classical.kalman import Cov, GaussianFilter, Line, Mean
from kbr.core.filters.classical.state_space import Map, check_shape


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtendedKalmanFilter(GaussianFilter):
    """Kalman filtering along tangents, with Jacobians by automatic differentiation.

    Math: value = f(m),  slope = J_f(m) L,  residual = 0.
    Ref:  Särkkä 2013, algorithm 5.4; a baseline of Xu et al. 2022, section 5.2.
    """

    def linearise(self, function: Map, mean: Mean, root: Cov, *, name: str) -> Line:
        def total(z: Tensor) -> tuple[Tensor, Tensor]:
            # Sequences do not mix, so the gradient of their sum holds every sequence's own.
            value = function(z)
            check_shape(value, (*z.shape[:-1], *value.shape[-1:]), name=name)
            return value.reshape(-1, *value.shape[-1:]).sum(0), value

        jacobian, value = jacrev(total, has_aux=True)(mean)
        slope = jacobian.movedim(0, -2) @ root
        return Line(value, slope, torch.zeros_like(slope @ slope.mT))
