"""Models whose network is trained: one training for each seed, then an outcome like any other."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate

from kbr.app.methods import Outcome, calibrated_cov
from kbr.app.problems import Filtering, Problem
from kbr.app.run_folder import BEST, RunContext
from kbr.core.datasets.dynamics import FilteringData
from kbr.core.errors import KbrError
from kbr.core.filters.kernel_bayes import KernelBayesFilter
from kbr.core.filters.result import FilterResult, mean_squared_error
from kbr.training.progress import EpochBar, quiet_lightning
from kbr.training.trained_filter import TrainedFilter


@dataclass(frozen=True, kw_only=True)
class TrainedMethod:
    """A trained filter; with `compare_raw` the kernel filter on raw observations runs beside it."""

    name: str
    filter: TrainedFilter
    compare_raw: bool = False

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        self._check(problem)
        assert isinstance(problem, Filtering)
        quiet_lightning()
        parts, raw, started = [], [], time.perf_counter()
        spent = 0.0
        for seed in seeds:
            data = problem.data(seed)
            folder = _trial_folder(context.folder, seed, seeds)
            resume = context.resume and _trial_folder(context.resume, seed, seeds)
            if resume and not (resume / "checkpoints" / "last.ckpt").is_file():
                resume = None  # this trial had not begun
            self.filter.fit(
                data.x_train,
                data.z_train,
                seed=seed,
                folder=folder,
                trainer={
                    **context.trainer,
                    "logger": instantiate(context.logger)(save_dir=folder),
                    "enable_progress_bar": False,
                    "callbacks": [] if context.quiet else [EpochBar(f"{self.name} seed {seed}")],
                },
                resume=resume,
            )
            began = time.perf_counter()
            result = self.filter.filter(data.x_test)
            spent += time.perf_counter() - began
            parts.append(_part(self.filter, result, data))
            if self.compare_raw:
                made = KernelBayesFilter().fit(data.x_train, data.z_train)
                raw.append(mean_squared_error(made.filter(data.x_test).mean, data.z_test))
        info: dict[str, Any] = {"fit/epochs": self.filter.n_epochs}
        if raw:
            info["test/mse_of_raw_kernel"] = float(torch.stack(raw).mean())
        return _stack(parts, time.perf_counter() - started - spent, spent, info)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        self._check(problem)
        assert isinstance(problem, Filtering)
        parts, began = [], time.perf_counter()
        for seed in seeds:
            data = problem.data(seed)
            loaded = type(self.filter).load(_trial_folder(folder, seed, seeds) / BEST)
            parts.append(_part(loaded, loaded.filter(data.x_test), data))
        return _stack(parts, 0.0, time.perf_counter() - began, {})

    def _check(self, problem: Problem) -> None:
        if not isinstance(problem, Filtering):
            raise KbrError(
                f"model={self.name} is a filter; data={problem.name} has no sequences. Use "
                "model=iw, iw_paper, original or iw_true_ratio, or another data."
            )


def _trial_folder(folder: Path, seed: int, seeds: Sequence[int]) -> Path:
    """The run folder itself, or a folder for each seed where there are several."""
    return folder if len(seeds) == 1 else folder / f"seed_{seed}"


Part = tuple[FilterResult, torch.Tensor, dict[str, float], torch.Tensor | None]


def _part(filt: TrainedFilter, result: FilterResult, data: FilteringData) -> Part:
    """One trial: beliefs, truth, what was chosen, calibrated covariances."""
    chosen = {**filt.chosen, "val_mse": filt.val_mse}
    return result, data.z_test, chosen, calibrated_cov(filt, result, len(data.z_train))


def _stack(
    parts: list[Part],
    fit_seconds: float,
    test_seconds: float,
    info: dict[str, Any],
) -> Outcome:
    results = [part[0] for part in parts]
    mean = torch.stack([r.mean for r in results]).double()
    names = list(parts[0][2])
    calibrated = [part[3].double() for part in parts if part[3] is not None]
    return Outcome(
        mean=mean,
        cov=torch.stack([r.cov for r in results]).double(),
        calibrated=torch.stack(calibrated) if calibrated else None,
        evidence=torch.stack([r.evidence for r in results]),
        truth=torch.stack([part[1] for part in parts]).to(mean),
        chosen={name: torch.tensor([part[2][name] for part in parts]) for name in names},
        fit_seconds=fit_seconds,
        test_seconds=test_seconds,
        info=info,
    )
