"""The moving filter as the command line runs it: one fit for each seed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

import torch

from kbr.app.config.values import Node
from kbr.app.models.announce import grid_progress
from kbr.app.models.outcome import Outcome, sequential, stacked
from kbr.app.run.folder import BEST, RunContext
from kbr.app.tasks.task import Problem, Sequential
from kbr.core.filters.moving.filter import MovingFilter
from kbr.core.filters.moving.storing import KIND
from kbr.core.io import checkpoint


@dataclass(frozen=True, kw_only=True)
class MovingMethod:
    """`MovingFilter`, whose settings are those of `filter`."""

    name: str
    filter: Annotated[MovingFilter, Node]

    takes_sensors: ClassVar[bool] = True
    takes_controls: ClassVar[bool] = True

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        problem = sequential(problem, self.name)
        started, fitted = time.perf_counter(), []
        for seed in seeds:
            data = problem.data(seed)
            u, units = getattr(data, "u_train", None), problem.filter_units
            controls = {} if u is None else {"u": u}
            filt = MovingFilter(**self.filter.get_params(deep=False))
            progress = grid_progress(1, context.quiet)
            fitted.append(
                filt.fit(data.x_train, data.z_train, **controls, units=units, progress=progress)
            )
        return self._outcome(fitted, problem, seeds, time.perf_counter() - started)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        problem, started = sequential(problem, self.name), time.perf_counter()
        states = checkpoint.load(folder / BEST, kind=KIND)["trials"]
        fitted = [MovingFilter.from_state(state) for state in states]
        return self._outcome(fitted, problem, seeds, time.perf_counter() - started)

    def _outcome(
        self,
        fitted: Sequence[MovingFilter],
        problem: Sequential,
        seeds: Sequence[int],
        spent: float,
    ) -> Outcome:
        started, trials = time.perf_counter(), []
        for filt, seed in zip(fitted, seeds, strict=True):
            trials.append(problem.test(filt, problem.data(seed)))  # type: ignore[arg-type]
        chosen = [{**filt.chosen, problem.val_name: filt.val_mse} for filt in fitted]
        first = fitted[0].model
        return stacked(
            trials,
            chosen={name: torch.tensor([one[name] for one in chosen]) for name in chosen[0]},
            fit_seconds=spent,
            test_seconds=time.perf_counter() - started,
            info={
                "filter/sensing": first.sensing.kind,
                "filter/rank_dynamics": first.dynamics.rank,
                **problem.info(),
            },
            labels=problem.labels,
            notes=problem.notes,
            state={"kind": KIND, "trials": [filt.state() for filt in fitted]},
            view=cache(lambda: problem.view(problem.data(seeds[0]))),  # type: ignore[arg-type]
            summary=fitted[-1].summary,
        )
