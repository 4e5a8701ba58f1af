"""The simulated data sets of the command line: what `_target_` of configs/data/*.yaml names."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from kbr.app.tasks.frames import heading_frames
from kbr.app.tasks.task import Filtering, FilteringTask, PosteriorMean, sprite_source
from kbr.core.datasets.dsprites import DSprites
from kbr.core.datasets.dynamics import Oscillatory, Rotation
from kbr.core.datasets.gaussian import GaussianTask
from kbr.core.datasets.heading import Heading
from kbr.core.datasets.lorenz import LorenzImages
from kbr.core.datasets.pendulum import PendulumImages


def filtering(task: Callable[..., FilteringTask], *more: Callable[..., Any]) -> Any:
    """A function of name, n_train, n_test and the settings of `task` and of what it calls.

    Its signature is what the config check may expect.
    """

    def build(*, name: str, n_train: int, n_test: int, **settings: Any) -> Filtering:
        return Filtering(name=name, n_train=n_train, n_test=n_test, task=task(**settings))

    functions: list[Callable[..., Any]] = [build, task, *more]
    every = [one for each in functions for one in signature(each).parameters.values()]
    named = {one.name: one for one in reversed(every) if one.kind is not Parameter.VAR_KEYWORD}
    keys = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in named.values()]
    build.__signature__ = Signature(keys)  # type: ignore[attr-defined]
    return build


def _dsprites(*, source: str, path: str | None, **settings: Any) -> DSprites:
    return DSprites(source=sprite_source(source, path), **settings)


def _heading(**settings: Any) -> Heading:
    keys = [key for key in signature(heading_frames).parameters if key in settings]
    table = heading_frames(**{key: settings.pop(key) for key in keys})
    return Heading(frames=table, **settings)


rotation = filtering(Rotation)
oscillatory = filtering(Oscillatory)
dsprites = filtering(_dsprites, DSprites)
dmlab = filtering(_heading, heading_frames, Heading)
lorenz_images = filtering(LorenzImages)
pendulum_images = filtering(PendulumImages)


def gaussian(*, name: str, dim: int, n_train: int, n_prior: int, n_test: int) -> PosteriorMean:
    task = GaussianTask(dim=dim, n_train=n_train, n_prior=n_prior, n_test=n_test)
    return PosteriorMean(name=name, task=task)
