"""Classical filters (EKF, UKF, particles) as the command line runs them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kbr.app.models.outcome import Outcome, sequential
from kbr.app.run.folder import RunContext
from kbr.app.tasks.task import Problem


@dataclass(frozen=True, kw_only=True)
class ModelMethod:
    """A classical filter that is given the true model; it has nothing to fit."""

    name: str
    filter: Any  # builds the filter from model=StateSpaceModel

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        return self.evaluate(problem, seeds, context.folder)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        problem = sequential(problem, self.name)
        made = self.filter(model=problem.state_space())
        data = problem.trials(seeds)
        started = time.perf_counter()
        result, truth = problem.test(made, data)  # type: ignore[arg-type]
        return Outcome(
            mean=result.mean,
            cov=result.cov,
            evidence=result.evidence,
            truth=truth,
            labels=problem.labels,
            test_seconds=time.perf_counter() - started,
            view=cache(lambda: problem.view(data)),  # type: ignore[arg-type]
        )
