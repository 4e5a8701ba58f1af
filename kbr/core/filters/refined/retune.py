"""Tuning once more, on every block of the training sequence instead of its end alone."""

from dataclasses import replace

from torch import Tensor

from kbr.core.filters.kernel.cross_fitting import even_blocks, pieces_inside, rows_outside
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.recipe import Recipe
from kbr.core.filters.kernel.search import Row, RowOf
from kbr.core.filters.kernel.storage import Stored
from kbr.core.filters.kernel.tuning import block_errors, chosen_by


def retune(filt: KernelBayesFilter) -> KernelBayesFilter:
    """The fitted filter with the setting whose cross-fitted error is least.

    Three blocks, each filtered by operators of the others: all training steps have a say, so that
    the choice depends less on chance than that of the validation block. `val_mse` is this error.
    """
    recipe, stored = filt._recipe, filt._get().stored
    space = recipe.space().of_observations(stored.x.shape[-1])
    if space.is_one_cell and len(recipe.tried_widths()) == 1:
        return filt
    choice = chosen_by(cross_fitted(filt), recipe, space, stored.z)
    made = replace(filt)
    made._fitted = made._finish(replace(stored, choice=choice))
    return made


def cross_fitted(filt: KernelBayesFilter) -> RowOf:
    """Mean squared errors over all training steps, each block filtered by the others' operators."""
    stored = filt._get().stored
    x, z = (rows.reshape(-1, *rows.shape[-2:]) for rows in (stored.x.double(), stored.z))
    parts = []
    for block in even_blocks(z.shape[-2]):
        rest = rows_outside(replace(stored, x=x, z=z), block)
        parts.append((block, filt._recipe.measured(rest.x, rest.z)))

    def row_of(members: Tensor, scale: float) -> Row:
        some = replace(stored, x=x[members], z=z[members])
        rows = [_block(recipe.of_members(members), some, block, scale) for block, recipe in parts]
        return lambda lam: sum(row(lam) for row in rows) / z.shape[-2]  # type: ignore[return-value]

    return row_of


def _block(recipe: Recipe, some: Stored, block: range, scale: float) -> Row:
    """Errors on one block of operators of the rows outside it."""
    rest = rows_outside(some, block)
    pieces = pieces_inside(some.lengths, block)
    held_out = [(some.x[:, a:b], some.z[:, a:b]) for a, b in pieces]
    return block_errors(recipe, (rest.x, rest.z), rest.lengths, held_out, scale)
