"""Blocks of a training sequence, each to be filtered by operators of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kbr.core.features import Features
from kbr.core.filters.kernel.engine import ActiveSet, Compressed, LowRank, Update
from kbr.core.filters.kernel.recipe import TOLERANCE, Recipe
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storage import Stored
from kbr.core.filters.kernel.tuning import split_lengths

FOLDS = 3


@dataclass(frozen=True, eq=False)
class LeaveOut:
    """Operators of all steps but a block's, with the filter's own hyper-parameters.

    Features are computed once for all rows; a block's rows are then left out of them. They are as
    rough as those that settings are chosen with, as errors need fewer digits than answers.
    """

    recipe: Recipe
    stored: Stored
    update: Update
    latents: Features

    @classmethod
    def of(cls, recipe: Recipe, stored: Stored, update: Update) -> "LeaveOut":
        """`update` is the filter's own, which is kept where the kernel has full rank."""
        choice, x = stored.choice, stored.x.double()
        recipe = recipe.measured(x, stored.z)
        if not isinstance(update, ActiveSet):
            lam = float(choice.lam.min())
            update = recipe.update(x, choice.scale_x, TOLERANCE, lam=lam, rough=True)
        return cls(recipe, stored, update, recipe.latents(stored.z, choice.scale_z, TOLERANCE))

    def operators(self, block: range) -> Operators:
        stored, choice = self.stored, self.stored.choice
        rows = _outside(stored, block)
        return self.recipe.operators(
            _at(self.update, rows),
            replace(self.latents, train=self.latents.train.index_select(-2, rows)),
            stored.z.index_select(-2, rows),
            lengths_outside(stored.lengths, block),
            eta=choice.eta,
            lam_transition=choice.lam_transition,
        )


def _at(update: Update, rows: Tensor) -> Update:
    """The update of some of its training rows."""
    if isinstance(update, ActiveSet):
        gram = update.gram.index_select(-2, rows).index_select(-1, rows)
        return replace(update, points=update.points.index_select(-2, rows), gram=gram)
    assert isinstance(update, LowRank)
    features = replace(update.features, train=update.features.train.index_select(-2, rows))
    if isinstance(update, Compressed):
        return replace(update, features=features, mixing=update.mixing.index_select(-2, rows))
    return replace(update, features=features)


def even_blocks(n: int, count: int = FOLDS) -> list[range]:
    """Rows 0 .. n - 1 in so many blocks."""
    return [range(k * n // count, (k + 1) * n // count) for k in range(count)]


def rows_outside(stored: Stored, block: range) -> Stored:
    """The training data without the rows of a block, observations flat."""
    keep = _outside(stored, block)
    return replace(
        stored,
        x=stored.x[..., keep, :],
        z=stored.z[..., keep, :],
        lengths=lengths_outside(stored.lengths, block),
        shape=(stored.x.shape[-1],),
        calibration=None,
        smoothing=None,
        reach=None,
        units=None,
    )


def _outside(stored: Stored, block: range) -> Tensor:
    rows = torch.arange(stored.z.shape[-2], device=stored.z.device)
    return torch.cat([rows[: block.start], rows[block.stop :]])


def lengths_outside(lengths: Sequence[int], block: range) -> list[int]:
    """Sequence lengths of the rows that are not in the block: what it cuts falls in two."""
    found, start = [], 0
    for length in lengths:
        stop = start + length
        parts = (min(stop, block.start) - start, stop - max(start, block.stop))
        found += [part for part in parts if part > 0]
        start = stop
    return found


def pieces_inside(lengths: Sequence[int], block: range) -> list[tuple[int, int]]:
    """(start, stop) rows of the sequences' parts inside the block."""
    _, pieces = split_lengths(lengths, block.start)
    return [(a, min(b, block.stop)) for a, b in pieces if a < block.stop]
