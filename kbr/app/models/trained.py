"""Models whose network is trained: one training for each seed, then an outcome like any other."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from hydra.utils import instantiate

from kbr.app.config.values import Node
from kbr.app.figures.frames import encoder_figure
from kbr.app.figures.view import View, spread_out
from kbr.app.models.outcome import (
    Alternative,
    Outcome,
    edge_notes,
    sequential,
    stacked,
    trial_folder,
)
from kbr.app.run.folder import BEST, RunContext
from kbr.app.tasks.task import Filtering, Problem, Sequential
from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.search import Edge
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.result import mean_squared_error
from kbr.core.io.file_rows import FileRows
from kbr.core.units.units import Units
from kbr.training.callbacks.bar import EpochBar, quiet_lightning
from kbr.training.callbacks.gaze import LogGaze
from kbr.training.encoders import MLP
from kbr.training.filters.learned import LearnedFilter
from kbr.training.filters.on_features import FilterOnFeatures
from kbr.training.filters.trained import TrainedFilter
from kbr.training.resuming import LAST

TRIED_EPOCHS = 50  # of vectors: more do not validate better
MOST_RAW = 20_000  # observations up to which the kernel filter on raw ones runs beside
MOST_TRIED = 5000  # rows on which learned features are trained just to compare them
GAZE_FRAMES = 4  # training frames on which TensorBoard shows what the encoder looks at


@dataclass(frozen=True, kw_only=True)
class TrainedMethod:
    """A trained filter; with `compare_raw` the kernel filter on raw observations runs beside it.

    `device` is where the network runs when it is evaluated; training has the trainer's.
    """

    name: str
    filter: Annotated[TrainedFilter, Node]
    compare_raw: bool = False
    device: str = "cpu"

    trains: ClassVar[bool] = True  # so several workers are of use

    @property
    def takes_sensors(self) -> bool:
        return self.filter.takes_sensors

    @property
    def takes_controls(self) -> bool:
        return self.filter.takes_controls

    def run(self, problem: Problem, seeds: Sequence[int], context: RunContext) -> Outcome:
        problem = sequential(problem, self.name)
        filt, notes = self._suited(problem)
        quiet_lightning()
        trials, chosen, started, spent = [], [], time.perf_counter(), 0.0
        raw: list[tuple[torch.Tensor, float]] = []  # test and validation error of the raw kernel
        edges: list[Edge] = []
        for number, seed in enumerate(seeds, 1):
            trial_started = time.time()
            data = problem.data(seed)
            kept = self._train(filt, problem, data, seed, seeds, context)
            if not context.is_first:
                continue
            edges += [replace(edge, of=len(seeds)) for edge in filt.edges]
            began = time.perf_counter()
            trials.append(problem.test(filt, data))  # type: ignore[arg-type]
            spent += time.perf_counter() - began
            chosen.append(_chosen(filt, problem))
            if self.compare_raw and not too_many(data.x_train):
                plain = KernelBayesFilter(standardize=False)
                plain.fit(data.x_train, data.z_train, units=problem.filter_units)
                result, truth = problem.test(plain, data)  # type: ignore[arg-type]
                error = mean_squared_error(result.mean, truth)
                raw.append((error, float(plain.choice.val_mse)))
            if context.sweep is not None:
                context.sweep.trial_ended(trial_started, number, len(seeds), skipped=kept)
        if not context.is_first:
            raise SystemExit(0)  # the first worker tests and writes
        info: dict[str, Any] = {"fit/epochs": filt.n_epochs, **problem.info()}
        seconds, columns = time.perf_counter() - started - spent, _columns(chosen)
        alternative = None
        if raw:
            info["test/mse_of_raw_kernel"] = float(torch.stack([error for error, _ in raw]).mean())
            alternative = Alternative(
                model="iw",
                what="the kernel on raw observations",
                error=sum(error for _, error in raw) / len(raw),
                own_error=float(columns[problem.val_name].mean()),
            )
        elif self.compare_raw:
            why = "frames stay in their file" if in_file(data.x_train) else "there are many frames"
            notes = (*notes, f"{why}: no kernel filter on raw ones beside it")
        return stacked(
            trials,
            chosen=columns,
            fit_seconds=seconds,
            test_seconds=spent,
            info=info,
            labels=problem.labels,
            alternative=alternative,
            notes=(*problem.notes, *notes, *edge_notes(edges, "model.filter")),
            edges=tuple(edges),
            view=cache(lambda: self._view(problem, seeds, context.folder)),
            summary=filt.summary,
        )

    def _train(
        self,
        filt: TrainedFilter,
        problem: Sequential,
        data: Any,
        seed: int,
        seeds: Sequence[int],
        context: RunContext,
    ) -> bool:
        """One trial, from where it stopped; whether it was finished before."""
        folder = trial_folder(context.folder, seed, seeds)
        resume = context.resume and trial_folder(context.resume, seed, seeds)
        if resume and not (resume / LAST).is_file():
            resume = None  # this trial had not begun
        units = problem.filter_units or Units.none(data.z_train[0])  # the paper's tasks have none
        u, kept = getattr(data, "u_train", None), False
        if not context.resume:
            state = filt.training_in(folder, data.x_train, data.z_train, seed, u=u, units=units)
            kept = state == "finished" and context.sweep is not None
            resume = folder if kept or state == "unfinished" else None
            if context.is_shown and resume:
                print(f"  going on from {folder / LAST}")
        trainer = {
            "enable_progress_bar": False,
            **context.trainer,
            "logger": context.logger_in(folder),
            "callbacks": self._callbacks(problem, data.x_train, seed, context),
        }
        filt.fit(
            data.x_train,
            data.z_train,
            u=u,
            units=units,
            seed=seed,
            folder=folder,
            trainer=trainer,
            resume=resume,
        )
        return kept

    def evaluate(self, problem: Problem, seeds: Sequence[int], folder: Path) -> Outcome:
        problem = sequential(problem, self.name)
        trials, chosen, began = [], [], time.perf_counter()
        for seed in seeds:
            data = problem.data(seed)
            loaded = self._load(problem, seed, seeds, folder)
            loaded.to(self.device)
            trials.append(problem.test(loaded, data))  # type: ignore[arg-type]
            chosen.append(_chosen(loaded, problem))
        return stacked(
            trials,
            chosen=_columns(chosen),
            test_seconds=time.perf_counter() - began,
            info=problem.info(),
            labels=problem.labels,
            view=cache(lambda: self._view(problem, seeds, folder)),
        )

    def _view(self, problem: Sequential, seeds: Sequence[int], folder: Path) -> View:
        loaded = self._load(problem, seeds[0], seeds, folder)
        weighing = loaded if isinstance(loaded, FilterOnFeatures) else None
        return problem.view(problem.data(seeds[0]), weighing, loaded.gaze)  # type: ignore[arg-type]

    def _load(
        self, problem: Sequential, seed: int, seeds: Sequence[int], folder: Path
    ) -> TrainedFilter:
        path = trial_folder(folder, seed, seeds) / BEST
        return type(self.filter).load(path, encoder=self._suited(problem)[0].encoder)

    def _callbacks(
        self, problem: Sequential, x_train: Any, seed: int, context: RunContext
    ) -> list[Any]:
        """Those of the config; only the first worker shows anything, and none of a sweep."""
        callbacks = [instantiate(entry) for entry in context.callbacks]
        if not context.is_shown:
            return [one for one in callbacks if not isinstance(one, EpochBar)]
        for one in callbacks:
            if isinstance(one, EpochBar) and one.title is None:
                one.title = f"{self.name} seed {seed}"
        pieces = [x_train] if isinstance(x_train, torch.Tensor) else x_train
        places = [(piece, i) for piece in pieces for i in range(len(piece))]
        taken = (places[k] for k in spread_out(GAZE_FRAMES, len(places)))
        few = torch.cat([piece[[i]] for piece, i in taken])
        inner = few if problem.filter_units is None else problem.filter_units.x.apply(few).float()
        return [*callbacks, LogGaze(inner, lambda _, *gaze: encoder_figure(few, *gaze))]

    def _suited(self, problem: Sequential) -> tuple[TrainedFilter, tuple[str, ...]]:
        """The filter with an encoder that takes these observations: own vectors need the MLP.

        Frames beside columns get a `SensorEncoder` from the filter itself: that is said.
        """
        encoder = self.filter.encoder
        kind = encoder.func if isinstance(encoder, partial) else encoder
        units = problem.filter_units
        sensors = None if units is None else units.sensors
        if getattr(kind, "takes_parts", False):
            return self.filter, ()
        if sensors is not None and sensors.frames:
            cameras, name = ", ".join(sensors.frames), getattr(kind, "__name__", str(kind))
            note = (
                f"x has frames beside columns: encoder=sensors is used, with {name} for {cameras}"
            )
            return self.filter, (note,)
        if isinstance(problem, Filtering) or problem.recording.has_images or kind is MLP:
            return self.filter, ()
        return replace(self.filter, encoder=partial(MLP)), ("x are vectors: encoder=mlp is used",)


def tried(
    alternative: Alternative, outcome: Outcome, problem: Sequential, seed: int
) -> Alternative:
    """Learned features, trained in passing to know their validation error."""
    data = problem.data(seed)
    rows = sum(len(piece) for piece in data.x_train)
    if in_file(data.x_train) or rows > MOST_TRIED:
        return replace(alternative, why_not=f"not tried on {rows:,} rows")
    filt = LearnedFilter(encoder=partial(MLP), epochs=TRIED_EPOCHS)
    quiet_lightning()
    bar = EpochBar("a trained encoder, to compare")
    trainer = {"enable_progress_bar": False, "callbacks": [bar]}
    try:
        filt.fit(data.x_train, data.z_train, units=problem.filter_units, seed=seed, trainer=trainer)
    except KbrError as error:
        return replace(alternative, why_not=f"could not be trained: {error}")
    return replace(
        alternative,
        what=f"an encoder trained for {TRIED_EPOCHS} epochs",
        error=filt.val_mse,
        own_error=float(outcome.chosen[problem.val_name][0]),
    )


def in_file(x_train: Any) -> bool:
    """Whether frames stay in their file: too many for the kernel filter on raw observations."""
    return isinstance(x_train, list) and isinstance(x_train[0], FileRows)


def too_many(x_train: Any) -> bool:
    """Whether raw observations are more than the kernel filter takes in passing."""
    if isinstance(x_train, torch.Tensor):
        return len(x_train) > MOST_RAW
    return in_file(x_train) or sum(len(piece) for piece in x_train) > MOST_RAW


def _chosen(filt: TrainedFilter, problem: Sequential) -> dict[str, float]:
    """What a trial chose, with its validation error."""
    return {**filt.chosen, problem.val_name: filt.val_mse}


def _columns(chosen: list[dict[str, float]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([one[name] for one in chosen]) for name in chosen[0]}
