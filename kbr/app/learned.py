"""Models whose network is trained: one training for each seed, then an outcome like any other."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from hydra.utils import instantiate

from kbr.app.image_figures import encoder_figure
from kbr.app.methods import Outcome
from kbr.app.problems import Filtering, Problem
from kbr.app.run_folder import BEST, RunContext
from kbr.app.view import View, first_weights, spread_out, view_of
from kbr.core.errors import KbrError
from kbr.core.filters.kernel_bayes import KernelBayesFilter
from kbr.core.filters.result import FilterResult, mean_squared_error
from kbr.training.gaze import LogGaze
from kbr.training.learned_filter import LearnedFilter
from kbr.training.progress import EpochBar, quiet_lightning
from kbr.training.trained_filter import TrainedFilter

GAZE_FRAMES = 4  # training frames on which TensorBoard shows what the encoder looks at


@dataclass(frozen=True, kw_only=True)
class TrainedMethod:
    """A trained filter; with `compare_raw` the kernel filter on raw observations runs beside it.

    `device` is where the network runs when it is evaluated; training has the trainer's.
    """

    name: str
    filter: TrainedFilter
    compare_raw: bool = False
    device: str = "cpu"

    trains: ClassVar[bool] = True  # so several workers are of use

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        self._check(problem)
        assert isinstance(problem, Filtering)
        quiet_lightning()
        shown = context.is_first and not context.quiet
        parts, raw, started = [], [], time.perf_counter()
        edges: list[str] = []
        spent = 0.0
        for seed in seeds:
            data = problem.data(seed)
            folder = _trial_folder(context.folder, seed, seeds)
            resume = context.resume and _trial_folder(context.resume, seed, seeds)
            if resume and not (resume / "checkpoints" / "last.ckpt").is_file():
                resume = None  # this trial had not begun
            if not context.resume and self.filter.was_interrupted(
                folder, data.x_train, data.z_train, seed
            ):
                resume = folder
                if shown:
                    print(f"  going on from {folder / 'checkpoints' / 'last.ckpt'}")
            self.filter.fit(
                data.x_train,
                data.z_train,
                seed=seed,
                folder=folder,
                trainer={
                    **context.trainer,
                    "logger": instantiate(context.logger)(save_dir=folder),
                    "enable_progress_bar": False,
                    "callbacks": self._callbacks(data.x_train, seed) if shown else [],
                },
                resume=resume,
            )
            if not context.is_first:
                continue
            edges += self.filter.edges
            began = time.perf_counter()
            parts.append((self.filter.filter(data.x_test), data.z_test, dict(self.filter.chosen)))
            parts[-1][2]["val_mse"] = self.filter.val_mse
            spent += time.perf_counter() - began
            if self.compare_raw:
                plain = KernelBayesFilter().fit(data.x_train, data.z_train)
                raw.append(mean_squared_error(plain.filter(data.x_test).mean, data.z_test))
        if not context.is_first:
            raise SystemExit(0)  # the first worker tests and writes
        info: dict[str, Any] = {"fit/epochs": self.filter.n_epochs}
        if raw:
            info["test/mse_of_raw_kernel"] = float(torch.stack(raw).mean())
        made = _stack(parts, time.perf_counter() - started - spent, spent, info)
        notes = _counted(edges, len(seeds))
        view = cache(lambda: self._view(problem, seeds, context.folder))
        return replace(made, notes=notes, view=view)

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        self._check(problem)
        assert isinstance(problem, Filtering)
        parts, began = [], time.perf_counter()
        for seed in seeds:
            data = problem.data(seed)
            loaded = type(self.filter).load(_trial_folder(folder, seed, seeds) / BEST)
            loaded.to(self.device)
            chosen = {**loaded.chosen, "val_mse": loaded.val_mse}
            parts.append((loaded.filter(data.x_test), data.z_test, chosen))
        made = _stack(parts, 0.0, time.perf_counter() - began, {})
        return replace(made, view=cache(lambda: self._view(problem, seeds, folder)))

    def _view(self, problem: Filtering, seeds: Sequence[int], folder: Path) -> View:
        data = problem.data(seeds[0])
        path = _trial_folder(folder, seeds[0], seeds) / BEST
        loaded = type(self.filter).load(path, encoder=self.filter.encoder)
        weights = None
        if isinstance(loaded, LearnedFilter):
            weights = first_weights(loaded, data.x_test)
        return view_of(problem.task, data, weights=weights, gaze=loaded.gaze)

    def _callbacks(self, x_train: torch.Tensor, seed: int) -> list[Any]:
        frames = x_train[spread_out(GAZE_FRAMES, len(x_train))]
        return [EpochBar(f"{self.name} seed {seed}"), LogGaze(frames, encoder_figure)]

    def _check(self, problem: Problem) -> None:
        if not isinstance(problem, Filtering):
            raise KbrError(
                f"model={self.name} is a filter; data={problem.name} has no sequences. Use "
                "model=iw, iw_paper, original or iw_true_ratio, or another data."
            )


def _trial_folder(folder: Path, seed: int, seeds: Sequence[int]) -> Path:
    """The run folder itself, or a folder for each seed where there are several."""
    return folder if len(seeds) == 1 else folder / f"seed_{seed}"


def _counted(edges: Sequence[str], trials: int) -> tuple[str, ...]:
    """Notes of single trainings, each `... in 1 of 1`, as one for all of them."""
    counts = Counter(note.removesuffix(" in 1 of 1") for note in edges)
    return tuple(f"{note} in {count} of {trials}" for note, count in counts.items())


def _stack(
    parts: list[tuple[FilterResult, torch.Tensor, dict[str, float]]],
    fit_seconds: float,
    test_seconds: float,
    info: dict[str, Any],
) -> Outcome:
    results = [part[0] for part in parts]
    mean = torch.stack([r.mean for r in results]).double()
    names = list(parts[0][2])
    return Outcome(
        mean=mean,
        cov=torch.stack([r.cov for r in results]).double(),
        evidence=torch.stack([r.evidence for r in results]),
        truth=torch.stack([part[1] for part in parts]).to(mean),
        chosen={name: torch.tensor([part[2][name] for part in parts]) for name in names},
        fit_seconds=fit_seconds,
        test_seconds=test_seconds,
        info=info,
    )
