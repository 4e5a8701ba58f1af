"""The refined kernel Bayes filter as the command line runs it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from kbr.app.config.schema import Positive, Steps
from kbr.app.models.kernel import KernelMethod
from kbr.app.models.outcome import Outcome, sequential
from kbr.app.run.folder import BEST, RunContext
from kbr.app.tasks.task import Problem, Sequential
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.refined.filter import KIND, RefinedFilter
from kbr.core.io import checkpoint


@dataclass(frozen=True, kw_only=True)
class RefinedMethod(KernelMethod):
    """`KernelMethod`, with gradient steps on what it chose."""

    steps: Steps = 30
    rate: Positive = 0.1

    takes_controls: ClassVar[bool] = False
    takes_sensors: ClassVar[bool] = False

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        return super().run(sequential(problem, self.name), seeds, context)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        problem = sequential(problem, self.name)
        started = time.perf_counter()
        filt = RefinedFilter.from_state(checkpoint.load(folder / BEST, kind=KIND)["refined"])
        seconds = time.perf_counter() - started
        return self._filtered(filt, problem, problem.trials(seeds), seconds)

    def _unfitted(self, problem: Sequential) -> Any:
        base = self._filter(problem)
        return RefinedFilter(base=base, steps=self.steps, rate=self.rate)

    def _filtered(self, filt, problem, data, seconds) -> Outcome:  # type: ignore[no-untyped-def]
        outcome = super()._filtered(filt, problem, data, seconds)
        return replace(outcome, state={"kind": KIND, "refined": filt.state()})

    def _first(self, filt, problem) -> KernelBayesFilter | None:  # type: ignore[no-untyped-def]
        """Pictures show the weights of one filter alone; a batch has bandwidths of its own."""
        state = filt.kernel_filter.state()
        return filt.kernel_filter if state["z"].ndim == 2 else None
