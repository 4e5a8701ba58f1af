"""Kernel Bayes' rule as the command line runs it: all trials as one batch."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor

from kbr.app.config.schema import Auto, Count, Engine, Fusion, Grid, Positive, SensorKernels
from kbr.app.config.values import Node
from kbr.app.models.announce import announce, grid_progress
from kbr.app.models.outcome import Alternative, Method, Outcome, edge_notes
from kbr.app.recordings.task import OwnData
from kbr.app.run.folder import BEST, RunContext
from kbr.app.tasks.task import PosteriorMean, Problem, Sequential
from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap
from kbr.core.filters.kernel.choosing.search import CHOICES
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.engines.large import is_large
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.settings import WIDTHS
from kbr.core.filters.kernel.storing.storage import (
    RUN_KIND as KIND,  # of the checkpoints written here
)
from kbr.core.filters.kernel.storing.storage import member
from kbr.core.io import checkpoint
from kbr.core.kernels import Kernel
from kbr.core.moments import ShrunkenMean
from kbr.core.ratios import ExactRatio, KuLSIF, Ratio
from kbr.core.rule_tuning import tune_rule
from kbr.core.rules import ImportanceWeightedRule, Rule

__all__ = ["KernelMethod", "Method", "Outcome"]  # the last two: their place before outcome.py
PAPER_RIDGE = 0.2  # eta = lam in the paper's posterior-mean experiment


@dataclass(frozen=True, kw_only=True)
class KernelMethod:
    """Kernel Bayes' rule: a posterior for each observation, or a filter, as the problem asks."""

    name: str
    rule: Annotated[Rule, Node]
    lam: Positive | None = None
    eta: Positive | None = None
    lam_transition: Positive | None = None
    tune: bool = False
    true_ratio: bool = False
    scales: Grid | None = None
    widths: Grid = WIDTHS
    etas: Grid | None = None
    lams: Grid | None = None
    engine: Engine = "auto"  # a name, or an engine of the user's own
    compare_learned: bool = False
    history: Count | Auto = 1
    velocity: bool | Auto = False
    fusion: Fusion = "auto"
    sensor_kernels: SensorKernels | None = None
    correction: Positive | Auto | None = "auto"

    takes_sensors: ClassVar[bool] = True
    takes_controls: ClassVar[bool] = True

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        if isinstance(problem, PosteriorMean):
            return self._posterior(problem, seeds, None)
        announce(int(str(problem.columns()["n_train"])), len(seeds), quiet=context.quiet)
        data = problem.trials(seeds)
        started = time.perf_counter()
        filt = self._unfitted(problem)
        progress = grid_progress(len(seeds) * len(self._lams()), context.quiet)
        u, units = getattr(data, "u_train", None), problem.filter_units
        controls = {} if u is None else {"u": u}
        filt.fit(data.x_train, data.z_train, **controls, units=units, progress=progress)
        seconds = time.perf_counter() - started
        return self._filtered(filt, problem, data, seconds)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        state = checkpoint.load(folder / BEST, kind=KIND)
        if isinstance(problem, PosteriorMean):
            return self._posterior(problem, seeds, state)
        started = time.perf_counter()
        filt = self._filter(problem).restore(state["filter"])
        seconds = time.perf_counter() - started
        return self._filtered(filt, problem, problem.trials(seeds), seconds)

    def _unfitted(self, problem: Sequential) -> Any:
        return self._filter(problem)

    def _lams(self) -> Sequence[float]:
        if self.lam is not None:
            return [self.lam]
        return self.lams if self.lams is not None else self.rule.LAMS

    def _filter(self, problem: Sequential) -> KernelBayesFilter:
        rule = replace(self.rule, lam=self.lam)
        if self.true_ratio:
            rule = replace(rule, ratio=TransitionRatio(model=problem.state_space()))
        return KernelBayesFilter(
            rule=rule,
            eta=self.eta,
            lam_transition=self.lam_transition,
            scales=None if self.scales is None else tuple(self.scales),
            widths=tuple(self.widths),
            etas=None if self.etas is None else tuple(self.etas),
            lams=None if self.lams is None else tuple(self.lams),
            engine=cast(Any, self.engine),
            standardize=False,  # the problem's units do, where it has any
            history=self.history,
            velocity=self.velocity,
            fusion=self.fusion,
            sensor_kernels=cast(Any, self.sensor_kernels),
            correction=self.correction,
        )

    def _filtered(
        self, filt: KernelBayesFilter, problem: Sequential, data: Any, seconds: float
    ) -> Outcome:
        started = time.perf_counter()
        result, truth = problem.test(filt, data)
        spent = time.perf_counter() - started
        operators, trials = filt.operators, result.mean.shape[:-2]
        kernel: KernelBayesFilter = getattr(filt, "kernel_filter", filt)
        chosen = {name: getattr(filt.choice, name).expand(trials) for name in CHOICES}
        chosen[problem.val_name] = chosen.pop("val_mse")
        learned = Alternative(model="iw_nn", what="a trained encoder")
        return Outcome(
            mean=result.mean,
            cov=result.cov,
            raw_cov=result.raw_cov,
            evidence=result.evidence,
            truth=truth,
            labels=problem.labels,
            chosen=chosen,
            fit_seconds=seconds,
            test_seconds=spent,
            info={
                "filter/engine": operators.update.name,
                "filter/rank_z": operators.rank,
                **{f"filter/{name}": value for name, value in kernel.lift.items()},
                **problem.info(),
            },
            notes=(
                *problem.notes,
                *getattr(operators, "notes", ()),
                *edge_notes(filt.choice.edges, "model"),
            ),
            edges=filt.choice.edges,
            alternative=learned if isinstance(problem, OwnData) else None,
            state={"kind": KIND, "filter": filt.state()},
            view=cache(lambda: problem.view(data, self._first(filt, problem))),
            summary=filt.summary,
        )

    def _first(self, filt: KernelBayesFilter, problem: Sequential) -> KernelBayesFilter | None:
        """The filter of the first trial alone; none whose weights are too many to be shown."""
        if is_large(filt.operators.n):
            return None
        state: dict[str, Any] = filt.state()
        if state["z"].ndim == 2:
            return filt
        return self._filter(problem).restore(member(state, 0))

    def _posterior(
        self, problem: PosteriorMean, seeds: Sequence[int], state: dict[str, Any] | None
    ) -> Outcome:
        data = problem.trials(seeds)
        prior = Embedding.from_samples(data.z_prior)
        started = time.perf_counter()
        chosen: dict[str, Tensor] = {}
        shrunken = self.tune  # the ratio that tuned settings go with
        if state is not None:
            chosen = state["chosen"]
            shrunken = state.get("shrunken", False)  # runs from before this key were not
        elif self.tune:
            usual = isinstance(self.rule.ratio, KuLSIF) and not self.true_ratio
            if not (usual and isinstance(self.rule, ImportanceWeightedRule)):
                raise KbrError(
                    f"model.tune=true chooses for importance weighting with KuLSIF; got "
                    f"model={self.name}. Use model=iw or model=iw_paper."
                )
            tuned = tune_rule(self.rule, data.x_train, data.z_train, prior)
            chosen = {
                "scale_x": tuned.scale_x,
                "scale_z": torch.ones_like(tuned.eta),
                "eta": tuned.eta,
                "lam": tuned.lam,
            }
        else:
            settings = {
                "scale_x": getattr(self.rule.kernel_x, "scale", 1.0),
                "scale_z": getattr(self.rule.kernel_z, "scale", 1.0),
                "eta": self._eta(),
                "lam": PAPER_RIDGE if self.lam is None else self.lam,
            }
            ones = torch.ones(len(seeds), dtype=torch.float64)
            chosen = {name: ones * value for name, value in settings.items()}
        ratio: Ratio = self.rule.ratio
        if self.true_ratio:
            ratio = ExactRatio(function=data.ratio)
        elif isinstance(ratio, KuLSIF):
            ratio = KuLSIF(eta=chosen["eta"])
            ratio = ShrunkenMean(ratio=ratio) if shrunken else ratio
        rule = replace(
            self.rule,
            kernel_x=_scaled(self.rule.kernel_x, chosen["scale_x"]),
            kernel_z=_scaled(self.rule.kernel_z, chosen["scale_z"]),
            ratio=ratio,
            lam=chosen["lam"],
        )
        fitted = rule.fit(data.x_train, data.z_train)
        middle = time.perf_counter()
        posterior = fitted.posterior(data.x_test, prior)
        return Outcome(
            mean=posterior.mean,
            cov=None if state is None else posterior.cov,
            truth=data.mean,
            chosen=chosen,
            fit_seconds=middle - started,
            test_seconds=time.perf_counter() - middle,
            info={"test/mse_of_zero": float(data.mean.square().sum(-1).mean())},
            state={"kind": KIND, "chosen": chosen, "shrunken": shrunken},
        )

    def _eta(self) -> float:
        """The ridge of KuLSIF; NaN where another ratio has settings of its own."""
        ratio = self.rule.ratio
        if not isinstance(ratio, KuLSIF):
            if self.eta is not None:
                raise KbrError(
                    f"model.eta is the ridge of KuLSIF, and model.rule.ratio is "
                    f"{type(ratio).__name__}. Leave out model.eta."
                )
            return math.nan
        eta = ratio.eta if self.eta is None else self.eta
        return PAPER_RIDGE if eta is None else float(eta)


def _scaled(kernel: Kernel | FeatureMap, scale: Tensor) -> Kernel | FeatureMap:
    """A kernel of so many bandwidths; other feature maps have none."""
    return replace(kernel, scale=scale) if isinstance(kernel, Kernel) else kernel
