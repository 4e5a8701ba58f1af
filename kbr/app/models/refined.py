"""The refined kernel Bayes filter as the command line runs it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from kbr.app.models.announce import announce
from kbr.app.models.kernel import KernelMethod
from kbr.app.models.outcome import Outcome, sequential
from kbr.app.models.progress import grid_progress
from kbr.app.run.folder import BEST, RunContext
from kbr.app.tasks.task import Problem
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.refined.filter import KIND, RefinedFilter
from kbr.core.io import checkpoint


@dataclass(frozen=True, kw_only=True)
class RefinedMethod(KernelMethod):
    """`KernelMethod`, then gradient steps on what it chose and a linear readout."""

    steps: int = 30
    rate: float = 0.1
    ridge: float | None = 1.0

    takes_controls: ClassVar[bool] = False

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        problem = sequential(problem, self.name)
        announce(int(str(problem.columns()["n_train"])), len(seeds), quiet=context.quiet)
        data = problem.trials(seeds)
        started = time.perf_counter()
        base = self._filter(problem)
        made = RefinedFilter(base=base, steps=self.steps, rate=self.rate, ridge=self.ridge)
        progress = grid_progress(len(seeds) * len(self._lams()), context.quiet)
        made.fit(data.x_train, data.z_train, units=problem.filter_units, progress=progress)
        return self._outcome(made, problem, data, time.perf_counter() - started)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        problem = sequential(problem, self.name)
        started = time.perf_counter()
        made = RefinedFilter.from_state(checkpoint.load(folder / BEST, kind=KIND)["refined"])
        seconds = time.perf_counter() - started
        return self._outcome(made, problem, problem.trials(seeds), seconds)

    def _outcome(self, made, problem, data, seconds) -> Outcome:  # type: ignore[no-untyped-def]
        outcome = self._filtered(made, problem, data, seconds)
        return replace(outcome, state={"kind": KIND, "refined": made.state()})

    def _first(self, made, problem) -> KernelBayesFilter | None:  # type: ignore[no-untyped-def]
        """Pictures show the weights of one filter alone; a batch has bandwidths of its own."""
        state = made.kernel_filter.state()
        return made.kernel_filter if state["z"].ndim == 2 else None
