"""A model of the user's own as a filter that takes one observation at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kbr.app.building.trusted import method_of, saved_config
from kbr.app.models.outcome import trial_folder
from kbr.app.models.own import KIND, Answers, OwnModel, mean_and_cov, plain
from kbr.app.run.train import trial_seeds
from kbr.core.errors import KbrError
from kbr.core.filters.base import BaseFilter, never
from kbr.core.filters.belief import Answering, Belief, Moments
from kbr.core.filters.result import FilterResult
from kbr.core.io import checkpoint
from kbr.core.uncertainty.calibration import next_horizon
from kbr.core.units.scaling import Scaling
from kbr.core.units.units import Units


def own_filter(checkpoint_file: Path, *, trial: int = 0, trust: Sequence[str] = ()) -> "OwnFilter":
    """The model that a run has kept; `trust` names the module it is from."""
    folder = checkpoint_file.parent.parent
    config = saved_config(folder)
    method = method_of(config, trust)
    state = checkpoint.load(checkpoint_file, kind=KIND)
    seeds = trial_seeds(config)
    if not (isinstance(method, OwnModel) and "starts" in state and 0 <= trial < len(seeds)):
        raise KbrError(f"{checkpoint_file} holds no trial {trial} of a model of your own.")
    model = method.kept(trial_folder(folder, seeds[trial], seeds))
    if model is None:
        raise KbrError(
            f"{folder} has not kept its model: {type(method.model).__name__} has no save(path) and "
            "load(path). Give it both and train again."
        )
    record = state["units"]
    mean, variance = state["starts"][trial]
    return OwnFilter(
        answers=Answers(model, method.name, state["covs"][trial]),
        recorded=Units.none(state["covs"]) if record is None else Units.from_record(record),
        start=(mean, variance.diag()),
        shape=tuple(state["shape"]),
    )


@dataclass(frozen=True, eq=False, repr=False)
class OwnBelief(Belief):
    """The model's answer, and what its next step is given: its last belief, or all it has seen."""

    answer: Moments = field(kw_only=True)
    memory: Any = field(kw_only=True)

    def inner_moments(self) -> Moments:
        return self.answer


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnFilter(BaseFilter):
    """By the model's `belief = step(belief, x)`, None before the first; without, by `filter` of all
    rows so far. A belief is an answer as `filter` gives it, for one row: mean [dz], (mean, cov), or
    an object that has `mean` and perhaps `cov`.
    """

    answers: Answers
    recorded: Units  # those of the data; the model itself sees numbers as they are
    start: Moments
    shape: tuple[int, ...]
    calibration = None

    @property
    def units(self) -> Units:
        none = Scaling.none(self.start[0])
        return replace(self.recorded, x=none, z=none)

    def _filtered(self, x: Any) -> FilterResult:
        return self.answers.filter(x)

    def _start(self, prior: Any) -> OwnBelief:
        if prior is not None:
            raise KbrError("a model of your own starts from its own prior. Leave out prior.")
        return OwnBelief(
            evidence=torch.tensor(False),
            since=never(torch.zeros(())),
            steps=0,
            answering=Answering(self.units, None),
            answer=self.start,
            memory=None,
        )

    def _stepped(self, belief: OwnBelief, x: Tensor) -> OwnBelief:
        seen = x.numpy(force=True).reshape(self.shape)
        model, memory = self.answers.model, belief.memory
        if hasattr(model, "step"):
            memory = model.step(memory, seen)
            mean, cov = mean_and_cov(memory)
            means, covs = self.answers.moments(np.atleast_1d(plain(mean))[None], cov, steps=1)
        else:
            memory = seen[None] if memory is None else np.concatenate([memory, seen[None]])
            result = self.answers.filter(memory)
            means, covs = result.mean, result.cov
        known = torch.tensor(bool(np.isfinite(seen).all()))
        return replace(
            belief,
            evidence=known,
            since=next_horizon(belief.since, known),
            steps=belief.steps + 1,
            answer=(means[-1], covs[-1]),
            memory=memory,
        )

    def _ahead(self, belief: OwnBelief, steps: int) -> OwnBelief:
        for _ in range(steps):
            belief = self._stepped(belief, torch.full(self.shape, torch.nan))
        return belief
