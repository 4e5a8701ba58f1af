"""What the pictures show of a run's first trial, beside its answers: data, weights, the encoder."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kbr.app.text.plain import one_line
from kbr.core.datasets.dynamics import FilteringData
from kbr.core.showing.plotting import no_math

LABEL = 60  # letters of a label
BELIEFS = 60  # steps of the test sequence with weights: as many as the animation shows
Gaze = Callable[[Tensor], tuple[Tensor, Tensor] | None]
Window = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The data of one trial, and how to show them.

    `circular`: z is (cos, sin) of a heading. `window`: the left, right, lower and upper border of a
    frame in the plane of z, where z is a position. `weights`: the posterior's, on z_train, at the
    first steps. `gaze`: heat maps and places of an encoder that has them, for given frames.
    `labels`: the latent's columns with their units, where they were recorded. `turns`: the size of
    a full turn for each column that is an angle, None for the others.
    """

    x_train: Tensor
    z_train: Tensor
    x_test: Tensor
    circular: bool = False
    window: Window | None = None
    weights: Tensor | None = None
    gaze: Gaze | None = None
    labels: tuple[str, ...] | None = None
    turns: tuple[float | None, ...] | None = None

    @property
    def has_images(self) -> bool:
        return self.x_test.ndim == 4 and self.x_test.shape[1] in (1, 3)

    @property
    def names(self) -> list[str]:
        """Labels of the latent's coordinates."""
        if self.circular:
            return ["cos heading", "sin heading"]
        return coordinate_names(self.labels, self.z_train.shape[-1])

    @property
    def shows_x_as_z(self) -> bool:
        """Whether observations are latents and noise: own columns are other quantities."""
        return self.labels is None and self.x_test.shape[1:] == self.z_train.shape[1:]


class Stepping(Protocol):
    """A filter that goes step by step and whose beliefs have weights."""

    def init(self) -> Any: ...

    def step(self, belief: Any, x: Tensor, /) -> Any: ...


def view_of(
    task: object, data: FilteringData, *, weights: Tensor | None = None, gaze: Gaze | None = None
) -> View:
    """The view of one data set (without batch dimensions); the task says how it is shown."""
    return View(
        x_train=data.x_train,
        z_train=data.z_train,
        x_test=data.x_test,
        circular=getattr(task, "circular", False),
        window=getattr(task, "window", None),
        weights=weights,
        gaze=gaze,
    )


def coordinate_names(labels: tuple[str, ...] | None, count: int) -> list[str]:
    """The labels, as Matplotlib takes them, or z_1, z_2, ... where there are none."""
    if labels:
        return [no_math(one_line(label, LABEL)) for label in labels]
    return [f"$z_{k + 1}$" for k in range(count)]


def first_trial(values: Tensor | None) -> np.ndarray:
    """Answers or truths [trials, steps, ...] of the first trial."""
    assert values is not None
    return values[0].double().numpy()


def first_weights(filt: Stepping, x: Tensor) -> Tensor:
    """Posterior weights [t, n] at the first steps of x [T, ...]."""
    return torch.stack(list(islice(weights_along(filt, x), BELIEFS)))


def weights_along(filt: Stepping, x: Iterable[Tensor]) -> Iterator[Tensor]:
    """Posterior weights [n] after each step of x [T, ...]; batch dimensions of size one go."""
    belief = filt.init()
    batch = belief.weights.shape[:-1]
    for frame in x:
        belief = filt.step(belief, frame.reshape(*batch, *frame.shape))
        yield belief.weights.flatten()


def as_pictures(frames: Tensor) -> np.ndarray:
    """Frames [k, c, h, w] as [k, h, w, 3] in 0 .. 1; missing pixels are grey.

    Values far outside 0 .. 1 are scaled by the frames' own range.
    """
    values = frames.double().nan_to_num(0.5)
    low, high = float(values.min()), float(values.max())
    if low < -1 or high > 2:
        values = (values - low) / max(high - low, 1e-300)
    values = values.clamp(0, 1).permute(0, 2, 3, 1)
    return values.expand(*values.shape[:3], 3).numpy()


def spread_out(count: int, among: int) -> list[int]:
    """`count` indices spread evenly over 0 .. among - 1 (all of them where there are fewer)."""
    return sorted({round(i) for i in np.linspace(0, among - 1, min(count, among))})
