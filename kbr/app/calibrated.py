"""Calibrated covariances of a run, in the units of its data."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from kbr.app.problems import Sequential
from kbr.core.filters.result import FilterResult
from kbr.core.filters.tuning import MINIMUM_STEPS


@dataclass(frozen=True, eq=False)
class Remembered:
    """A filter that keeps its answers, so that nothing is filtered twice."""

    made: Any
    answers: list[FilterResult] = field(default_factory=list)

    def filter(self, x: Tensor) -> FilterResult:
        self.answers.append(self.made.filter(x))
        return self.answers[-1]


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers that are already there, in the order in which they are asked for."""

    given: list[FilterResult]

    def filter(self, x: Tensor) -> FilterResult:
        return self.given.pop(0)


def calibrated_cov(asked: Remembered, problem: Sequential, data: Any) -> Tensor | None:
    """Calibrated covariances of filters that have them, where there was something to hold out."""
    z = data.z_train
    steps = sum(map(len, z)) if isinstance(z, list) else z.shape[-2]
    if not hasattr(asked.made, "calibration") or steps < MINIMUM_STEPS:
        return None
    calibration = asked.made.calibration
    given = [replace(answer, cov=calibration.cov(answer.cov)) for answer in asked.answers]
    result, _ = problem.test(Answers(given), data)
    return result.cov
