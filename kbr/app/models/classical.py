"""Filters that have nothing to fit: they know the true model, or are shown more than others."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from kbr.app.config.schema import Part
from kbr.app.models.outcome import Outcome, sequential
from kbr.app.run.folder import RunContext
from kbr.app.tasks.task import Filtering, Problem
from kbr.core.datasets.heading import Heading
from kbr.core.errors import KbrError


@dataclass(frozen=True, kw_only=True)
class ModelMethod:
    """A classical filter (EKF, UKF, particles) that is given the true model."""

    name: str
    filter: Part  # builds the filter from model=StateSpaceModel

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        return self.evaluate(problem, seeds, context.folder)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        problem = sequential(problem, self.name)
        filt = self.filter(model=problem.state_space())
        data = problem.trials(seeds)
        started = time.perf_counter()
        result, truth = problem.test(filt, data)  # type: ignore[arg-type]
        return Outcome(
            mean=result.mean,
            cov=result.cov,
            evidence=result.evidence,
            truth=truth,
            labels=problem.labels,
            test_seconds=time.perf_counter() - started,
            view=cache(lambda: problem.view(data)),  # type: ignore[arg-type]
            summary=filt.summary,
        )


@dataclass(frozen=True, kw_only=True)
class OracleMethod:
    """The floor of the heading task: the circular Kalman filter on the noisy headings themselves,
    not on the frames."""

    name: str

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        return self.evaluate(problem, seeds, context.folder)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        if not (isinstance(problem, Filtering) and isinstance(problem.task, Heading)):
            raise KbrError(
                f"model={self.name} needs data with noisy headings; data={problem.name} has none. "
                "Use data=dmlab, or a filter that knows the true model: model=particle (model=ekf "
                "or ukf where observations are vectors)."
            )
        task, n_train, n_test = problem.task, problem.n_train, problem.n_test
        drawn = [task.noisy_headings(n_train=n_train, n_test=n_test, seed=s) for s in seeds]
        noisy = torch.stack([test for _, test in drawn])
        truth = torch.stack([problem.data(seed).whole("z_test") for seed in seeds])
        started = time.perf_counter()
        result = task.oracle.filter(noisy)
        return Outcome(
            mean=result.mean,
            cov=result.cov,
            evidence=result.evidence,
            truth=truth,
            test_seconds=time.perf_counter() - started,
        )
