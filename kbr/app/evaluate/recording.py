"""evaluate.py run=... data.path=new.csv: a run's filters on a recording they have not seen."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from kbr.app.config.resolvers import model_name
from kbr.app.figures.run import recording_figures, run_figures
from kbr.app.models.kernel import Outcome
from kbr.app.models.own_filter import OwnFilter
from kbr.app.recordings.files import title_of
from kbr.app.recordings.new import notes_of, read_new
from kbr.app.recordings.recording import Recording
from kbr.app.recordings.task import standardised_error
from kbr.app.run.folder import DATA, read_json, write_bytes, write_json
from kbr.app.run.train import trial_seeds, write_outcome
from kbr.core.errors import KbrError
from kbr.core.filters.result import FilterResult
from kbr.core.units.outside import ADVICE, Outside
from kbr.core.units.training_range import truths_outside
from kbr.core.units.units import Units
from kbr.loading import load_filter

STANDARDISED = "test/mse_standardised"
ANSWERS = ("mean", "cov", "raw_cov", "evidence", "truth")


@dataclass(frozen=True, kw_only=True)
class NewRecording:
    """What tables of results say about a new recording, and how its errors are measured."""

    name: str
    rows: int
    units: Units
    outside: Sequence[Outside] = ()

    def columns(self) -> dict[str, object]:
        return {"data": self.name, "rows": self.rows}

    def extra_metrics(self, mean: Tensor, truth: Tensor) -> dict[str, float]:
        left = {
            f"test/rows_outside/{'z/' if one.truth else ''}{one.column}": float(one.rows)
            for found in self.outside
            for one in found.columns
        }
        return {STANDARDISED: standardised_error(self.units, mean, truth), **left}


def evaluate_recording(
    folder: Path, saved: DictConfig, keys: Mapping[str, Any], trust: Sequence[str] = ()
) -> float | None:
    """Writes evaluation/<name of the file>/; the standardised error where the truth is there."""
    paths = keys["path"] if isinstance(keys["path"], str) else [*map(str, keys["path"])]
    seeds, path = trial_seeds(saved), paths if isinstance(paths, str) else ", ".join(paths)
    reading = {key: value for key, value in keys.items() if key not in ("path", "seed")}
    filters = [load_filter(folder, trial=k, trust=trust) for k in range(len(seeds))]
    first = filters[0]
    units: Units = first.recorded if isinstance(first, OwnFilter) else first.units
    if units.z_names is None:
        raise KbrError(
            f"data.path gives a new recording to runs on own data (data=recording); {folder} is of "
            f"data={saved.data.name}. Leave out data.path, or set data.seed for fresh sequences."
        )
    recording = read_new(units, paths, reading)
    model = model_name(saved.model)
    print(f"{model} on {path}, {len(recording)} rows, {len(seeds)} trial(s)")
    for note in notes_of(units, recording):
        print(f"  note: {note}")
    back = torch.from_numpy(np.argsort(recording.row))  # to the order of the file
    results = [filt.filter(recording) for filt in filters]
    outcome = _outcome(recording, units, results, back)
    outside = _outside(recording, units, results[0])
    print_outside(outside)
    if results[0].surprised:
        print(f"  sensor: {results[0].surprised}")
    title = title_of(paths)
    target = _target(folder / "evaluation", title, recording)
    record = {"path": path, "content": recording.digest(), "rows": len(recording)}
    record["outside_training"] = [one for found in outside for one in found.record()]
    write_json(target / DATA, record)
    borders = {"sequence": recording.ids, "time": recording.stamps}
    there = {name: value[back.numpy()] for name, value in borders.items() if value is not None}
    answers = ANSWERS if recording.has_truth else ANSWERS[:-1]
    rows = np.arange(len(recording))
    save_posterior(target / "posterior.npz", outcome, answers, row=rows, **there)
    error = None
    if recording.has_truth:
        known = torch.from_numpy(~recording.z_missing)[back]
        if not bool(known.any()):
            raise KbrError("no row of the recording has a known z. Take its columns of z out.")
        scored = replace(outcome, **{name: getattr(outcome, name)[:, known] for name in ANSWERS})
        name = Path(path).name if isinstance(paths, str) else title
        problem = NewRecording(name=name, rows=len(recording), units=units, outside=outside)
        metrics = write_outcome(target, problem, model, seeds, scored)  # type: ignore[arg-type]
        run_figures(target / "figures", scored)
        print_errors(metrics, outcome.labels or ())
        error = float(metrics[STANDARDISED])
    else:
        recording_figures(target / "figures", outcome)
        absent = ", ".join(units.z_names)
        print(f"  no truth:  {path} has not all of {absent}; beliefs alone are written")
    print(f"  written:   {target}")
    return error


def print_errors(metrics: Mapping[str, Any], labels: tuple[str, ...]) -> None:
    """Errors column by column in their units, then what may be added over the columns."""
    for label in labels:
        print(f"  test/rmse             {metrics[f'test/rmse/{label}']:<10.4g} {label}")
    print(f"  {STANDARDISED} {metrics[STANDARDISED]:<10.4g} in variances of the training z")
    if "test/coverage_90" in metrics:
        share = metrics["test/coverage_90"]
        print(f"  test/coverage_90      {share:<10.3f} of the truths in their 90 % regions")


def print_outside(outside: Sequence[Outside]) -> None:
    """Which columns leave the range of training, a line each; nothing where none does."""
    lines = [line for found in outside for line in found.lines]
    for line in (*lines, ADVICE) if lines else ():
        print(f"  range: {line}")


def _outside(recording: Recording, units: Units, result: FilterResult) -> tuple[Outside, ...]:
    """Of what the filter saw and, where they are known, of the truths."""
    truths = truths_outside(units, torch.from_numpy(recording.z)) if recording.has_truth else None
    return tuple(found for found in (result.outside, truths) if found is not None)


def _outcome(
    recording: Recording, units: Units, results: list[FilterResult], back: Tensor
) -> Outcome:
    """Answers of all trials at all rows, in the order of the file; NaN where z is not known."""

    def stacked(name: str) -> Tensor:
        return torch.stack([getattr(result, name) for result in results])[:, back].double()

    mean = stacked("mean")
    truth = torch.from_numpy(recording.z)[back].expand_as(mean)
    return Outcome(
        mean=mean,
        cov=stacked("cov"),
        raw_cov=stacked("raw_cov"),
        truth=units.z.nearest(truth, mean),
        evidence=torch.stack([result.evidence for result in results])[:, back],
        labels=units.labels or units.z_names,
    )


def _target(folder: Path, name: str, recording: Recording) -> Path:
    """A folder of the file's name; with a number, where that is of other data."""
    content, target = recording.digest(), folder / name
    for number in count(2):
        if not target.exists() or (read_json(target / DATA) or {}).get("content") == content:
            break
        target = folder / f"{name}_{number}"
    return target


def save_posterior(
    path: Path, outcome: Outcome, answers: Sequence[str] = ANSWERS, **more: Any
) -> None:
    """posterior.npz: the answers of every trial, and `more` arrays beside them."""
    arrays = {name: getattr(outcome, name) for name in answers}
    content = {name: value.numpy() for name, value in arrays.items() if value is not None}
    if outcome.labels is not None:
        content["labels"] = np.array(outcome.labels)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **content, **more)
    write_bytes(path, buffer.getvalue())
