"""Models as the command line runs them: several independent trials in one call.

A method takes a problem and seeds and gives an `Outcome`; closed-form methods run all seeds as one
batch. `evaluate` gives the same outcome again from the checkpoint's contents.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from kbr.app.figures.view import View
from kbr.app.run.folder import RunContext
from kbr.app.tasks.task import PosteriorMean, Problem, Sequential
from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.search import Edge
from kbr.core.filters.result import FilterResult
from kbr.core.showing.summary import Summary


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """The model that suits the same data otherwise; its validation error, if it was measured."""

    model: str
    what: str
    why_not: str = "not tried"  # where there is no error
    error: float | None = None
    own_error: float | None = None  # of the model that ran

    @property
    def is_worth_a_try(self) -> bool:
        return self.error is None or self.own_error is None or self.error < self.own_error

    def __str__(self) -> str:
        if self.error is None or self.own_error is None:
            return f"{self.what} {self.why_not}"
        better = "better" if self.is_worth_a_try else "no better"
        return f"{self.what} validates {better}: {self.error:.4g} against {self.own_error:.4g}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Answers and truth of every trial, what was chosen, how long it took, what to keep."""

    mean: Tensor  # [trials, steps, dz]
    cov: Tensor | None  # [trials, steps, dz, dz]; None where nothing asks for it
    raw_cov: Tensor | None = None  # before calibration, where it was calibrated
    truth: Tensor  # [trials, steps, dz]
    chosen: dict[str, Tensor] = field(default_factory=dict)  # each [trials]
    fit_seconds: float = 0.0
    test_seconds: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()  # what the notes say of choices at an end, as values
    state: dict[str, Any] = field(default_factory=dict)
    evidence: Tensor | None = None
    labels: tuple[str, ...] | None = None  # of the columns, with units; None: z_1, z_2, ...
    alternative: Alternative | None = None
    view: Callable[[], View] | None = None  # for pictures; made only where they are drawn
    summary: Callable[[], Summary] | None = None  # of the filter, or of the last trial's

    @property
    def mse(self) -> Tensor:
        """Squared distance summed over coordinates, averaged over steps: one number a trial."""
        return (self.mean - self.truth).square().sum(-1).mean(-1)

    @property
    def shown_spread(self) -> str:
        """What pictures call two standard deviations of it."""
        return "2 sd" if self.raw_cov is None else "2 sd, calibrated"


def stacked(trials: Iterable[tuple[FilterResult, Tensor]], **others: Any) -> Outcome:
    """The outcome of trials that ran one after the other: beliefs and truth of each."""
    results, truths = zip(*trials, strict=True)
    mean = torch.stack([one.mean for one in results]).double()
    raw = [one.raw_cov.double() for one in results if one.raw_cov is not None]
    return Outcome(
        mean=mean,
        cov=torch.stack([one.cov for one in results]).double(),
        raw_cov=torch.stack(raw) if raw else None,
        evidence=torch.stack([one.evidence for one in results]),
        truth=torch.stack(truths).to(mean),
        **others,
    )


class Method(Protocol):
    """One model of the command line."""

    name: str

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome: ...

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome: ...


def sequential(problem: Problem, model: str) -> Sequential:
    """The problem, for a model that filters; an error where it has no sequences."""
    if isinstance(problem, PosteriorMean):
        raise KbrError(
            f"model={model} is a filter; data={problem.name} has no dynamics. Use model=iw, "
            "iw_paper, original or iw_true_ratio, or another data."
        )
    return problem


def trial_folder(folder: Path, seed: int, seeds: Sequence[int]) -> Path:
    """The run folder itself, or a folder for each seed where there are several."""
    return folder if len(seeds) == 1 else folder / f"seed_{seed}"


def edge_notes(edges: Iterable[Edge], keys: str) -> tuple[str, ...]:
    """Each edge once, counted over trials, with the key that widens it; `keys` is its group."""
    counted: dict[tuple[str, str, float], Edge] = {}
    for edge in edges:
        place = (edge.name, edge.end, edge.value)
        before = counted.get(place)
        counted[place] = replace(edge, count=edge.count + (before.count if before else 0))
    return tuple(
        f"{edge}; try others with {keys}.{edge.setting}=[...]" for edge in counted.values()
    )
