"""What a filter believes: moments in the units of its data, and all that the next step needs."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.embedding import Embedding, positive_part
from kbr.core.errors import KbrError
from kbr.core.filters.result import FilterResult
from kbr.core.showing.plotting import Scene, array, plot_belief
from kbr.core.uncertainty.calibration import Calibration
from kbr.core.units.places import Place
from kbr.core.units.units import Units

Moments = tuple[Tensor, Tensor]  # mean [*e dz] and covariance [*e dz dz]


@dataclass(frozen=True, eq=False)
class Answering:
    """From a belief's inner moments to the answer: in the units of the data, and calibrated."""

    units: Units
    calibration: Calibration | None

    def raw(self, mean: Tensor, cov: Tensor) -> Moments:
        return self.units.z.undo(mean, cov)

    def calibrated(
        self, mean: Tensor, cov: Tensor, since: Tensor, *factors: Tensor | None
    ) -> Tensor:
        """The covariance of a raw answer, multiplied by these factors."""
        made, known = cov, self.calibration
        if known is not None:
            inner = None if known.growth is None else self.units.z.apply(mean)
            made = known.cov(cov, since, inner)
        for factor in factors:
            made = made if factor is None else made * factor[..., None, None]
        return made


@dataclass(frozen=True, eq=False, repr=False)
class Belief:
    """The belief after an observation, or before any.

    evidence   False where the belief is a prediction; `since` counts the steps since the last one;
    steps      how many observations there were, missing ones too;
    place      sequence and time of the last row, where rows state them;
    stretch    what adaptive regions have learned to multiply the covariance by.
    """

    evidence: Bool[Tensor, "*e"]
    since: Tensor
    steps: int
    answering: Answering
    place: Place = (None, None)
    stretch: Tensor | None = None

    def inner_moments(self) -> Moments:
        """Mean and raw covariance in the filter's inner coordinates."""
        raise NotImplementedError

    @cached_property
    def _raw(self) -> Moments:
        return self.answering.raw(*self.inner_moments())

    @property
    def mean(self) -> Float[Tensor, "*e dz"]:
        return self._raw[0]

    @property
    def raw_cov(self) -> Float[Tensor, "*e dz dz"]:
        """The covariance as the algorithm defines it."""
        return self._raw[1]

    @property
    def surprise(self) -> Float[Tensor, "*e"] | None:
        """See `FilterResult`."""
        return None

    @cached_property
    def cov(self) -> Float[Tensor, "*e dz dz"]:
        """The calibrated covariance; the raw one where there was nothing to calibrate with."""
        return self.answering.calibrated(*self._raw, self.since, self.stretch, self.surprise)

    def plot(self, *, level: float = 0.9, ax: Any = None) -> Any:
        """The region of two latents in their plane; else each latent's density with its band.

        Returns the Matplotlib axes; `ax` are axes to draw on.
        """
        if self.mean.ndim > 1:
            raise KbrError(
                f"a picture shows one belief; this one is of {list(self.mean.shape[:-1])} data "
                "sets. Fit and step through one of them."
            )
        moments = (self.mean, self.cov, self.evidence)
        one = tuple(part.unsqueeze(0) for part in moments)
        units, made_of = self.answering.units, self._made_of()
        return plot_belief(Scene.of(units, one, level=level, **made_of), ax)  # type: ignore[arg-type]

    def _made_of(self) -> dict[str, Any]:
        """Points in the units of the data and their weights, for a picture."""
        return {}

    def __repr__(self) -> str:
        mean = ", ".join(f"{value:.4g}" for value in self.mean.flatten()[:4].tolist())
        sd = self.cov.diagonal(dim1=-2, dim2=-1).sqrt().flatten()[:4].tolist()
        return (
            f"{type(self).__name__}(step {self.steps}, mean [{mean}], sd "
            f"[{', '.join(f'{value:.2g}' for value in sd)}], "
            f"{'with' if bool(self.evidence.all()) else 'without'} evidence)"
        )


@dataclass(frozen=True, eq=False)
class MomentsTable:
    """Columns 1, z - c and (z - c)(z - c)' of the training latents, c their mean.

    One product with the weights gives mass, mean and second moment; taken about c, offsets of the
    latents cost no digits.
    """

    centre: Float[Tensor, "*b dz"]
    columns: Float[Tensor, "*b n c"]

    @classmethod
    def of(cls, z: Float[Tensor, "*b n dz"]) -> "MomentsTable":
        centre = z.mean(-2)
        away = z - centre.unsqueeze(-2)
        outer = (away.unsqueeze(-1) * away.unsqueeze(-2)).flatten(-2)
        return cls(centre, torch.cat([torch.ones_like(z[..., :1]), away, outer], -1))

    def __call__(self, weights: Float[Tensor, "*b s n"]) -> Float[Tensor, "*b s c"]:
        return weights @ self.columns

    def mean(self, moments: Float[Tensor, "*e c"]) -> Float[Tensor, "*e dz"]:
        """Math: sum_i w_i z_i, whatever the weights sum to."""
        *batch, dz = self.centre.shape
        centre, extra = self.centre, moments.ndim - self.centre.ndim
        if batch and extra:
            centre = centre.reshape(*batch, *(1,) * extra, dz)
        return moments[..., 1 : 1 + dz] + moments[..., :1] * centre

    def mean_cov(self, moments: Float[Tensor, "*e c"]) -> Moments:
        """Mean as it is; covariance with the weights scaled to sum to one, no eigenvalue < 0."""
        dz, mass = self.centre.shape[-1], moments[..., :1]
        mass = torch.where(mass > 0, mass, torch.ones_like(mass))
        away = moments[..., 1 : 1 + dz] / mass
        second = moments[..., 1 + dz :].reshape(*away.shape, dz) / mass.unsqueeze(-1)
        cov = positive_part(second - away.unsqueeze(-1) * away.unsqueeze(-2))
        return self.mean(moments), cov


@dataclass(frozen=True, eq=False, repr=False)
class KernelBelief(Belief):
    """Weights on the training latents.

    `state` are the embedding's coordinates in the latent features: all the next prediction needs.
    `points` are the training latents in inner coordinates, `moments` sums over them. `recent` are
    the last inner observations, the newest last, where the filter looks at more than one. `shift`
    is what a correction of means adds to the weights' own mean.
    """

    points: Float[Tensor, "*b n dz"] = field(kw_only=True)
    weights: Float[Tensor, "*e n"] = field(kw_only=True)
    state: Float[Tensor, "*e p"] = field(kw_only=True)
    moments: Float[Tensor, "*e c"] = field(kw_only=True)
    table: MomentsTable = field(kw_only=True)
    recent: Tensor | None = field(default=None, kw_only=True)
    shift: Float[Tensor, "*e dz"] | None = field(default=None, kw_only=True)

    def inner_moments(self) -> Moments:
        mean, cov = self.table.mean_cov(self.moments)
        return (mean if self.shift is None else mean + self.shift), cov

    @property
    def embedding(self) -> Embedding:
        """The belief as a weighted embedding: expectations, samples, densities.

        Its points are the training latents in the units of the data, all moved alike where the mean
        is corrected; an angle is there as (cos, sin), of which averages make sense.
        """
        return Embedding(self.answering.units.z.linear(self._moved_points()), self.weights)

    def _moved_points(self) -> Float[Tensor, "*e n dz"]:
        """The points, in inner coordinates, whose average by the weights is the mean."""
        extra = self.weights.ndim - 1 - (self.points.ndim - 2)
        shape = (*self.points.shape[:-2], *(1,) * extra, *self.points.shape[-2:])
        points = self.points.reshape(shape)
        if self.shift is None:
            return points
        mass = self.moments[..., :1]
        mass = torch.where(mass > 0, mass, torch.ones_like(mass))
        return points + (self.shift / mass).unsqueeze(-2)

    def _made_of(self) -> dict[str, Any]:
        inner = self._moved_points()
        points, _ = self.answering.raw(inner, inner.new_zeros(*inner.shape, inner.shape[-1]))
        return {"points": array(points), "weights": array(self.weights)}

    @property
    def effective_sample_size(self) -> Float[Tensor, "*e"]:
        return self.embedding.effective_sample_size


@dataclass(frozen=True, eq=False, repr=False)
class KernelFilterResult(FilterResult):
    """Beliefs at every step, with the embeddings' coordinates that smoothing starts from."""

    states: Float[Tensor, "*s t p"] | None = None
