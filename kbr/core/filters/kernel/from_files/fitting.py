"""A filter of very many pairs in files: two passes over them, then few weighted pairs carry it.

Settings are chosen on the last rows, units and bandwidths are those of evenly spaced rows, the
candidates, by which `carrying` makes the filter; of very many rows, bandwidths and lam are those
that do best in it. From where to where the rows reach is told by a look at all of them before.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

import kbr
from kbr.core.errors import KbrError
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choosing.held_out import measured_on
from kbr.core.filters.kernel.choosing.search import CHOICES, Choice, Edge
from kbr.core.filters.kernel.choosing.tuning import choose, with_ridges
from kbr.core.filters.kernel.choosing.validation import (
    MINIMUM_STEPS,
    data_outside,
    validation_block,
)
from kbr.core.filters.kernel.engines.compression import with_cost
from kbr.core.filters.kernel.engines.large import RECENT, is_large, of_many
from kbr.core.filters.kernel.engines.local import MEDIUM
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.from_files.carrying import Source
from kbr.core.filters.kernel.from_files.journal import Journal, key_of
from kbr.core.filters.kernel.from_files.narrowing import Trials, narrows
from kbr.core.filters.kernel.from_files.pairs import FilePairs
from kbr.core.filters.kernel.from_files.passes import Pass, summed, whole_rows
from kbr.core.filters.kernel.from_files.reaching import ranges_in
from kbr.core.filters.kernel.from_files.team import Team, team_of
from kbr.core.filters.kernel.novelty import reach_of
from kbr.core.filters.kernel.settings import Settings
from kbr.core.filters.kernel.storing.saving import describe
from kbr.core.filters.kernel.storing.storage import FittedData
from kbr.core.filters.sequences import held_order, held_sequences
from kbr.core.filters.training_data import TrainingData, training_data
from kbr.core.ratios import KuLSIF
from kbr.core.showing.progress import bar_of
from kbr.core.units.ranges import Ranges

CANDIDATES = 20_000  # evenly spaced pairs, among which landmarks are found
LOSS = 0.05  # growth of the error that is said
PART = ".kbr_fit.part"  # what was done so far, in the folder of the files


def fitted_to_files(
    settings: Settings,
    folder: str | Path,
    *,
    n_landmarks: int,
    workers: int,
    resume: bool | str | Path,
    progress: Any,
    **about: Any,
) -> Fitted:
    """The filter of all pairs in a folder; `about` is for `training_data`."""
    _check(settings)
    pairs = FilePairs.of(folder)
    candidates = whole_rows(*pairs.evenly(CANDIDATES))
    if not len(candidates[1]):
        raise KbrError(f"every row of {folder} that was looked at has a missing value in x or z.")
    path, key = Path(folder) / PART if resume is True else Path(resume) if resume else None, ""
    if path is not None:
        own = {name: describe(value) for name, value in settings.values.items()}
        key = key_of(kbr.__version__, own, n_landmarks, about, pairs.identity, candidates)
    few = training_data(*candidates, standardize=settings.standardized, **about)
    with team_of(workers) as team:
        journal = Journal(path, key, team)
        made = _fit(settings, pairs, few, n_landmarks, team, journal, progress)
        journal.remove()
    return made


def _check(settings: Settings) -> None:
    if settings.lifts != [(1, False)]:
        raise KbrError(
            "fit_files takes one row at a time: history=1 and velocity=False. Write earlier rows "
            "beside each other into x, or use fit on fewer rows."
        )
    if not isinstance(settings.rule.ratio, KuLSIF):
        raise KbrError(
            "fit_files is for filters whose ratio is KuLSIF; got "
            f"{type(settings.rule.ratio).__name__}."
        )


def _fit(
    settings: Settings,
    pairs: FilePairs,
    few: TrainingData,
    n_landmarks: int,
    team: Team,
    journal: Journal,
    progress: Any,
) -> Fitted:
    recent = _recent(pairs, few)
    builder = of_many(Builder(settings)) if is_large(pairs.n) else Builder(settings)
    chosen = journal.once("choice", lambda: _packed(_choice(builder, recent, progress)))
    choice = Choice(**chosen["values"], edges=tuple(Edge(**edge) for edge in chosen["edges"]))
    x = few.x.double()
    reached = journal.once("ranges", lambda: (r := ranges_in(pairs, few.units)) and r.record())
    units = replace(few.units, ranges=None if reached is None else Ranges.from_record(reached))
    last = recent.x[validation_block(len(recent.z)).start :] if len(recent.z) > 5 else recent.x[:0]
    reach = reach_of(x, last.double(), len(x))
    source = Source(builder, pairs, units, replace(few, x=x), reach, n_landmarks)

    def added(task: Pass) -> tuple[Tensor, int]:
        return summed(task, team, journal, bar_of(progress, task.title, " pieces"))

    if narrows(source, choice):
        trials = Trials(pairs, units, source, choice, replace(recent, x=recent.x.double()))
        errors, _ = added(trials)
        choice = team.once(lambda: trials.best(errors))
    small, count = source.carried(choice, added, team.once)
    if count < pairs.n:
        warnings.warn(
            f"{pairs.n - count:,} of {pairs.n:,} rows have missing values and are left out; "
            "their latents, where they are known, still tell the dynamics.",
            stacklevel=4,
        )
    return _compared(settings, measured_on(small, recent), recent, choice, count)


def _choice(builder: Builder, recent: TrainingData, progress: Any) -> Choice:
    exact = replace(recent, x=recent.x.double())
    made = choose(builder, exact, progress=bar_of(progress))
    return with_ridges(made, builder, exact) if bool(made.eta.isnan()) else made


def _packed(choice: Choice) -> dict[str, Any]:
    values = {name: getattr(choice, name) for name in CHOICES}
    return {"values": values, "edges": [dict(vars(edge)) for edge in choice.edges]}


def _recent(pairs: FilePairs, few: TrainingData) -> TrainingData:
    """The rows that settings are chosen on, in order: those that `fit` takes of so many."""
    lengths, count = pairs.lengths, RECENT if is_large(pairs.n) else pairs.n
    many = pairs.n > MEDIUM and held_sequences(lengths) > 0
    order = held_order(lengths) if many else range(len(lengths))
    spans = list(_last(order, pairs.starts.tolist(), lengths, count))[::-1]
    x, z = ([part(*span) for span in spans] for part in (pairs.x, pairs.z))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing values: said of all rows, once
        return training_data(x, z, units=few.units)


def _last(
    order: Sequence[int], starts: list[int], lengths: list[int], count: int
) -> Iterator[tuple[int, int]]:
    """Rows (start, stop) of the last sequences in this order, `count` of them in all, backwards."""
    for k in reversed(order):
        size = min(lengths[k], count)
        if size:
            stop = starts[k] + lengths[k]
            yield stop - size, stop
        count -= size


def _compared(
    settings: Settings, small: Fitted, recent: TrainingData, choice: Choice, count: int
) -> Fitted:
    """With its error beside that of a filter on the last rows, of which both see the end."""
    n = len(recent.z)
    if n < MINIMUM_STEPS:
        return small
    block, data = validation_block(n), FittedData(**vars(recent), choice=choice)
    rest = replace(data_outside(data, block), units=recent.units, shape=recent.shape)
    x, z = recent.inside(block)[-1]
    truth, _ = recent.units.z.undo(z, z.new_zeros(*z.shape, z.shape[-1]))
    seen = x.reshape(len(x), *recent.shape)
    made = with_cost(small, Fitted.build(settings, rest), seen, truth, count)
    cost = made.data.compression
    if cost is not None and cost.loss > LOSS:
        warnings.warn(
            f"on held-out steps, {cost.n_landmarks} landmarks err {cost.loss:.0%} more than a "
            f"filter of the last {cost.compared:,} pairs: raise n_landmarks.",
            stacklevel=5,
        )
    return made
