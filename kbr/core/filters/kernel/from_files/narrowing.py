"""Bandwidths and lam chosen again, for a filter of very many pairs.

What `fit` chooses is right for the 10,000 rows it looks at, and told by 200 of them. A filter of
very many pairs bears narrower bandwidths. So landmark filters of some of the files are made with
these, and bandwidths and lam are those of the least error on 5000 of the 10,000 rows, which are so
few of all that they count as held out.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.filters.kernel.choosing.search import Choice
from kbr.core.filters.kernel.choosing.tuning import with_ridges
from kbr.core.filters.kernel.engines.large import RECENT
from kbr.core.filters.kernel.from_files.carrying import Source
from kbr.core.filters.kernel.from_files.passes import Pass
from kbr.core.filters.kernel.settings import is_free
from kbr.core.filters.training_data import TrainingData

MANY = 100 * RECENT  # rows from which a filter is tried with narrower bandwidths
NARROWER = (1.0, 0.7, 0.5)  # factors of both bandwidths
RIDGES = (0.1, 1.0, 10.0)  # factors of lam
PIECES = 4  # of the files, for the sums of a trial
CANDIDATES, LANDMARKS = 8000, 500  # of a trial, at most
TRACKS, TRACK = 20, 250  # sequences that are filtered, at most, and rows of each


def narrows(source: Source, choice: Choice) -> bool:
    """Whether the rows are many, and the bandwidths were searched for, both together."""
    settings, rule = source.builder.settings, source.builder.rule
    free = settings.scales is None and is_free(rule.kernel_x) and is_free(rule.kernel_z)
    return free and source.pairs.n >= MANY and bool(choice.floor.isnan())


@dataclass(frozen=True, eq=False)
class Trials(Pass):
    """A table of errors, by bandwidths and lam. A piece is a bandwidth: workers share these."""

    source: Source
    choice: Choice
    recent: TrainingData
    title = "narrower bandwidths"

    @property
    def key(self) -> Tensor:
        return torch.stack([self.choice.scale_x, self.choice.scale_z, self.choice.lam])

    def pieces(self) -> list[tuple[int, int]]:
        return [(k, k + 1) for k in range(len(NARROWER))]

    def __call__(self, piece: tuple[int, int]) -> np.ndarray:
        errors = np.zeros((len(NARROWER), len(RIDGES)))
        errors[piece[0]] = self.errors(NARROWER[piece[0]])
        return np.append(errors, 1)

    def best(self, total: Tensor) -> Choice:
        """The choice of the least error in the table."""
        table = total.reshape(len(NARROWER), len(RIDGES))
        at, k = divmod(int(table.argmin()), len(RIDGES))
        error = table[at, k]
        return replace(self.narrowed(NARROWER[at]), lam=self.lams()[k], val_mse=error)

    def narrowed(self, factor: float) -> Choice:
        """Bandwidths times this, with the ridges that suit them."""
        scales = {name: factor * getattr(self.choice, name) for name in ("scale_x", "scale_z")}
        return with_ridges(
            replace(self.choice, **scales, edges=()), self.source.builder, self.recent
        )

    def lams(self) -> Float[Tensor, "l"]:
        """Those to try, within the bounds of the search."""
        builder, lam = self.source.builder, self.choice.lam
        space = builder.settings.space(self.recent.observed.shape[-1], builder.least_lam)
        tried = lam * lam.new_tensor(RIDGES)
        return lam.expand_as(tried) if space.lam_bounds is None else tried.clamp(*space.lam_bounds)

    def errors(self, factor: float) -> list[float]:
        """Of every lam, on the recent rows in short sequences."""
        x, z = self.tracks()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that is said of the filter itself
            few = self.source.thinned(CANDIDATES, LANDMARKS)
            made, _ = few.carried(self.narrowed(factor), _of_some, lambda make: make())
        errors = []
        for lam in self.lams():
            data = replace(made.data, choice=replace(made.data.choice, lam=lam))
            filt = type(made).build(made.settings, data)
            errors.append(float((filt.filtered(x).mean - z).square().sum(-1).mean()))
        return errors

    def tracks(self) -> tuple[Tensor, Tensor]:
        """Recent rows [s t ...], as far as their sequences hold whole pieces, evenly spaced."""
        parts = self.recent.inside(range(len(self.recent.z)))
        size = min(TRACK, max(self.recent.lengths))
        columns = zip(*parts, strict=True)
        x, z = (torch.cat([_cut(rows, size) for rows in column]) for column in columns)
        some = torch.linspace(0, len(z) - 1, min(len(z), TRACKS), device=z.device).round().long()
        return x[some].reshape(-1, size, *self.recent.shape), z[some]


def _cut(rows: Float[Tensor, "n d"], size: int) -> Float[Tensor, "s t d"]:
    count = len(rows) // size
    return rows[: count * size].reshape(count, size, rows.shape[-1])


def _of_some(task: Pass) -> tuple[Tensor, int]:
    """The sum over a few evenly spaced pieces."""
    pieces = task.pieces()
    some = pieces[:: max(1, len(pieces) // PIECES)][:PIECES]
    total = torch.from_numpy(sum(task(piece) for piece in some))
    return total[:-1], round(float(total[-1]))
