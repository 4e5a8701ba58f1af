"""Importance-weighted ridge regression on kernel features, chosen by leave-one-out.

The weights of its prediction at x are those of the importance-weighted rule on centred features;
an intercept makes them sum to one. A ridge without bound gives the ratio itself as weights: the
answer falls back to the prior where the observation tells nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.features import Features, PivotedCholesky
from kbr.core.kernels import Kernel
from kbr.core.rules import normalize_ratio

TOLERANCE = 1e-9
MAX_RANK = 200
LEAST_FREEDOM = 1e-6  # what a point keeps of itself when it is left out


@dataclass(frozen=True, eq=False)
class KernelRegression:
    """A fitted regression.

    Math: t(x) = t_bar + T'D U (L + n lam I)^-1 u(x),  U = (Psi - psi_bar) V,
          (Psi - psi_bar)'D(Psi - psi_bar) = V L V',  D = diag(r), r averaging one, bars r-averages;
          so t(x) = sum_i w_i t_i with w_i = r_i (1/n + u_i' (L + n lam I)^-1 u(x)), sum_i w_i = 1.
    """

    features: Features
    centre: Float[Tensor, "p"]
    axes: Float[Tensor, "p p"]
    spectrum: Float[Tensor, "p"]
    rows: Float[Tensor, "n p"]
    ratio: Float[Tensor, "n"]
    target: Float[Tensor, "n k"]
    lam: float

    @property
    def leave_one_out(self) -> float:
        """The weighted error of predicting every target from all others."""
        squares = self.residuals(power=1.0).square().sum(-1)
        return float((self.ratio * squares).mean().nan_to_num(torch.inf))

    def weights(self, point: Float[Tensor, "d"]) -> Float[Tensor, "n"]:
        """Weights of the training points in the prediction at `point`; they sum to one."""
        query = (self.features(point.unsqueeze(0)).squeeze(0) - self.centre) @ self.axes
        n = len(self.ratio)
        return self.ratio * (1 / n + self.rows @ (query / (self.spectrum + n * self.lam)))

    def predict(self, point: Float[Tensor, "d"]) -> Float[Tensor, "k"]:
        return self.weights(point) @ self.target

    def residuals(self, *, power: float) -> Float[Tensor, "n k"]:
        """What is left of every target, corrected for its own part in the prediction.

        Math: (t_i - t(x_i)) / (1 - h_i)^power,  h_i = r_i (1/n + u_i' (L + n lam I)^-1 u_i).
        Power 1: predicted from all other targets. Power 1/2: as spread out as the noise is.
        """
        n = len(self.ratio)
        shrunk = self.rows / (self.spectrum + n * self.lam)
        mass = self.ratio.unsqueeze(-1)
        mean = (mass * self.target).mean(0)
        fit = mean + shrunk @ (self.rows.mT @ (mass * (self.target - mean)))
        leverage = self.ratio * (1 / n + (shrunk * self.rows).sum(-1))
        return (self.target - fit) / (1 - leverage).clamp_min(LEAST_FREEDOM).pow(power).unsqueeze(
            -1
        )


def kernel_regression(
    kernel: Kernel,
    points: Float[Tensor, "n d"],
    target: Float[Tensor, "n k"],
    ratio: Float[Tensor, "n"],
    *,
    scales: Sequence[float],
    lams: Sequence[float],
) -> KernelRegression:
    """The regression of the smallest weighted leave-one-out error, among scales and ridges."""
    r = normalize_ratio(ratio)
    candidates = []
    for scale in scales:  # one eigendecomposition for all ridges
        recipe = PivotedCholesky(
            kernel=replace(kernel, bandwidth=None, scale=scale),
            tolerance=TOLERANCE,
            max_rank=MAX_RANK,
        )
        features = recipe.fit(points)
        centre = (r.unsqueeze(-1) * features.train).mean(0)
        centred = features.train - centre
        values, axes = torch.linalg.eigh(centred.mT @ (r.unsqueeze(-1) * centred))
        parts = (features, centre, axes, values.clamp_min(0), centred @ axes, r, target)
        candidates += [KernelRegression(*parts, lam) for lam in lams]
    return min(candidates, key=lambda candidate: candidate.leave_one_out)
