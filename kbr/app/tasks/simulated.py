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


def filtering(*tasks: Callable[..., FilteringTask]) -> Callable[..., Filtering]:
    """A function of name, n_train, n_test and the settings of the task, which the first makes.

    Its further settings are those of the second: what the config check may expect.
    """

    def build(*, name: str, n_train: int, n_test: int, **settings: Any) -> Filtering:
        return Filtering(name=name, n_train=n_train, n_test=n_test, task=tasks[0](**settings))

    functions: list[Callable[..., Any]] = [build, *tasks]
    every = [one for each in functions for one in signature(each).parameters.values()]
    named = {one.name: one for one in reversed(every) if one.kind is not Parameter.VAR_KEYWORD}
    build.__signature__ = Signature([*named.values()])  # type: ignore[attr-defined]
    return build


def _dsprites(*, source: str, path: str | None, **settings: Any) -> DSprites:
    return DSprites(source=sprite_source(source, path), **settings)


def _heading(
    *,
    frames: str | None,
    maze_seed: int,
    n_frames: int,
    height: int,
    width: int,
    cache: str,
    **settings: Any,
) -> Heading:
    table = heading_frames(
        frames=frames,
        maze_seed=maze_seed,
        n_frames=n_frames,
        height=height,
        width=width,
        cache=cache,
    )
    return Heading(frames=table, **settings)


rotation = filtering(Rotation)
oscillatory = filtering(Oscillatory)
dsprites = filtering(_dsprites, DSprites)
dmlab = filtering(_heading, Heading)


def gaussian(*, name: str, dim: int, n_train: int, n_prior: int, n_test: int) -> PosteriorMean:
    task = GaussianTask(dim=dim, n_train=n_train, n_prior=n_prior, n_test=n_test)
    return PosteriorMean(name=name, task=task)
