"""What every filter returns: beliefs about the latent at each step, as named, frozen tensors."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.showing.plotting import Scene, array, plot_path, plot_steps
from kbr.core.showing.scoring import Score, score_of, truth_like
from kbr.core.showing.tables import to_frame
from kbr.core.units.outside import Outside
from kbr.core.units.places import moments
from kbr.core.units.units import Units

Means = Float[Tensor, "*s t dz"]
KINDS = ("time", "path")  # of pictures
WIDE, SELDOM = 4.0, 0.05  # a surprise, and a share of rows up to which it is not worth a word
Result = TypeVar("Result", bound="FilterResult")


@dataclass(frozen=True, eq=False, repr=False)
class FilterResult:
    """Moments of the filtering distribution p(z_t | x_1..t) at every step.

    cov        calibrated where the filter has something to calibrate with; then `raw_cov` is the
               covariance as the algorithm defines it, else None;
    evidence   False at steps whose observation was missing or told nothing usable: there the belief
               is the prediction. `since` counts the steps since the last evidence;
    stretch    what adaptive regions have multiplied `cov` by;
    surprise   what `cov` is multiplied by because observations have been further off than they were
               on held-out rows, one or more; None for filters that do not follow it;
    effective_sample_size   None for filters without weights;
    units      names and angles of z, where the filter knows them;
    outside    which columns of x and u left the range of the training data: false where none did,
               None where that is not known. Answers there are extrapolations; printing says so.
    """

    mean: Means
    cov: Float[Tensor, "*s t dz dz"]
    evidence: Bool[Tensor, "*s t"]
    effective_sample_size: Float[Tensor, "*s t"] | None = None
    raw_cov: Float[Tensor, "*s t dz dz"] | None = None
    since: Tensor | None = None
    stretch: Float[Tensor, "*s t"] | None = None
    surprise: Float[Tensor, "*s t"] | None = None
    units: Units | None = None
    outside: Outside | None = None

    def __repr__(self) -> str:
        *several, steps, dz = self.mean.shape
        lead = "".join(f"{size} x " for size in several)
        evidence = int(self.evidence.sum())
        last = self.mean.reshape(-1, dz)[-1].tolist()
        answer = ", ".join(f"{value:.4g}" for value in last[:4])
        told = [self.outside, self.surprised]
        said = "".join(f"\n  {line}" for line in told if line)
        return (
            f"{type(self).__name__}({lead}{steps} steps of {dz} latent(s), {evidence} with "
            f"evidence; fields mean, cov, evidence, ...; last mean [{answer}"
            f"{', ...' if dz > 4 else ''}]){said}"
        )

    @property
    def sd(self) -> Float[Tensor, "*s t dz"]:
        """Standard deviations: the roots of the diagonal of `cov`."""
        return self.cov.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()

    @property
    def surprised(self) -> str:
        """A line that can be acted on where observations are far off from held-out ones, or ""."""
        if self.surprise is None:
            return ""
        return surprised(int((self.surprise > WIDE).sum()), self.surprise.numel(), self.surprise)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the latents, as the training data had them; else z_1, z_2, ..."""
        return self._known.latent_names(self.mean.shape[-1])

    @cached_property
    def _known(self) -> Units:
        return Units.none(self.mean) if self.units is None else self.units

    def sequence(self: Result, *index: int) -> Result:
        """One of several sequences or data sets: as many numbers as there are dimensions of them.

        Each of the result's tensors begins with these dimensions.
        """
        lead = self.mean.shape[:-2]
        inside = all(-size <= at < size for at, size in zip(index, lead, strict=False))
        if len(index) != len(lead) or not inside:
            raise KbrError(
                f"the result holds {list(lead)} sequences: sequence takes {len(lead)} number(s) "
                f"below these; got {list(index)}."
            )
        values = ((item.name, getattr(self, item.name)) for item in fields(self))
        one: dict[str, Any] = {k: v[index] for k, v in values if isinstance(v, Tensor)}
        outside = None if self.outside is None else self.outside.sequence(*index)
        return replace(self, **one, outside=outside)

    def score(self, z: Any) -> Score:
        """Errors, coverage of the 90 % region and likelihood of the truth z [*s T dz].

        z is an array, or a table with the columns of z. Steps whose truth is NaN do not count.
        """
        return score_of(self.mean, self.cov, z, self._known)

    def to_pandas(self, index: Any = None) -> Any:
        """A DataFrame with a row a step: the latents by name, `<name>_sd`, evidence, since.

        `index` is that of the rows, such as the recording's; several sequences have a MultiIndex.
        `since` is missing before any evidence; of smoothed steps it tells how far evidence is on
        either side, as a b / (a + b).
        """
        return to_frame(self.names, self.mean, self.sd, self.evidence, self.since, index)

    def plot(
        self,
        truth: Any = None,
        *,
        kind: str = "time",
        time: Any = None,
        level: float = 0.9,
        ax: Any = None,
    ) -> Any:
        """The latents over time with bands of this level, or kind="path": two of them in a plane.

        Steps without evidence are shaded or crossed. `truth` [T dz] is drawn where it is given,
        `time` [T] takes the place of step numbers. Returns the Matplotlib axes, one a latent;
        `ax` are axes to draw on.
        """
        if self.mean.ndim > 2:
            raise KbrError(
                f"a picture shows one sequence; the result holds {list(self.mean.shape[:-2])} of "
                "them. Choose one: out.sequence(0).plot()."
            )
        if kind not in KINDS:
            raise KbrError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
        dz, known = self.mean.shape[-1], self._known
        if kind == "path" and (dz != 2 or any(known.z.circular)):
            raise KbrError(
                "kind='path' shows two latents that are no angles, as the place in a plane; the "
                f"result has {', '.join(self.names)}. Leave kind out."
            )
        exact = None if truth is None else truth_like(truth, self.mean, known)
        scene = Scene.of(
            known,
            (self.mean, self.cov, self.evidence),
            truth=None if exact is None else array(exact),
            time=None if time is None else _times(time, len(self.mean)),
            level=level,
        )
        return plot_path(scene, ax) if kind == "path" else plot_steps(scene, ax)


def surprised(wide: int, rows: int, factors: Tensor) -> str:
    """Of so many rows with surprises above WIDE, of which these are the largest; "" if seldom."""
    if wide <= SELDOM * rows:
        return ""
    most = float(factors.max().sqrt())
    return (
        f"in {wide} of {rows} rows the sensor is off in one direction, as it was not in training: "
        f"error bars are up to {most:.1f} times as wide. Train on recordings like this one."
    )


def _times(time: Any, steps: int) -> np.ndarray:
    """Times as they are, numbers or dates, one a step."""
    times = np.asarray(time)
    if times.shape != (steps,):
        raise KbrError(f"time must hold one value a step, here {steps}; got {list(times.shape)}.")
    return times if times.dtype.kind == "M" else moments(times, None)


def mean_squared_error(mean: Means, truth: Means) -> Float[Tensor, "*s"]:
    """Squared Euclidean distance, summed over coordinates, averaged over time."""
    return (mean - truth).square().sum(-1).mean(-1)


AXES = {  # of the steps
    "mean": -2,
    "cov": -3,
    "evidence": -1,
    "effective_sample_size": -1,
    "raw_cov": -3,
    "since": -1,
    "stretch": -1,
    "surprise": -1,
}


def joined(parts: list[FilterResult], order: Tensor | None = None) -> FilterResult:
    """Results of consecutive pieces as one, the steps in another order where one is given."""
    if len(parts) == 1 and order is None:
        return parts[0]
    fields = {}
    for name, axis in AXES.items():
        values = [getattr(part, name) for part in parts]
        if all(value is not None for value in values):
            whole = torch.cat(values, axis)
            fields[name] = (
                whole if order is None else whole.index_select(axis, order.to(whole.device))
            )
    return FilterResult(**fields, units=parts[0].units, outside=None)
