"""Tuning once more, on every block of the training sequence instead of its end alone."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.filters.cross_fitting import even_blocks, pieces_inside, rows_outside
from kbr.core.filters.kernel_bayes import KernelBayesFilter
from kbr.core.filters.result import mean_squared_error
from kbr.core.filters.run import run_filter
from kbr.core.filters.tuning import TOLERANCE, Choice


def retune(filt: KernelBayesFilter) -> KernelBayesFilter:
    """The fitted filter with the setting of its grid whose cross-fitted error is least.

    Three blocks, each filtered by operators of the others: all training steps have a say, so that
    the choice depends less on chance than that of the validation block. `val_mse` is this error.
    """
    recipe, stored = filt._recipe, filt._get().stored
    grid, lams = recipe.bandwidth_grid(), recipe.ridge_grid()
    if len(grid) * len(lams) == 1:
        return filt
    scores = [cross_fitted_errors(filt, scale, scale * width) for scale, width in grid]
    table = torch.cat([torch.where(row.isfinite(), row, torch.inf) for row in scores], -1)
    best, index = table.min(-1)
    pair, none = best.new_tensor(grid)[index // len(lams)], torch.full_like(best, torch.nan)
    choice = Choice(
        scale_x=pair[..., 0] * pair[..., 1],
        scale_z=pair[..., 0],
        lam=best.new_tensor(lams)[index % len(lams)],
        eta=none,
        lam_transition=none,
        val_mse=best,
    )
    made = replace(filt)
    made._fitted = made._finish(replace(stored, choice=choice))
    return made


def cross_fitted_errors(
    filt: KernelBayesFilter, scale_z: float, scale_x: float
) -> Float[Tensor, "*b l"]:
    """Errors of every lam at these bandwidth scales, over all training steps."""
    recipe, stored = filt._recipe, filt._get().stored
    n, batch, lams = stored.z.shape[-2], stored.z.shape[:-2], recipe.ridge_grid()
    lam = stored.z.new_tensor(lams).expand(*batch, len(lams))
    total = torch.zeros_like(lam)
    for block in even_blocks(n):
        rest = rows_outside(stored, block)
        latents = recipe.latents(rest.z, scale_z, TOLERANCE)
        eta, lam_transition = recipe.ridges(latents.train, rest.lengths)
        update = recipe.update(rest.x.double(), scale_x, TOLERANCE, lam=min(lams), rough=True)
        ridges = {"eta": eta, "lam_transition": lam_transition}
        operators = recipe.operators(update, latents, rest.z, rest.lengths, **ridges)
        for start, stop in pieces_inside(stored.lengths, block):
            query = update.observe(stored.x[..., start:stop, :].double()).unsqueeze(-3)
            query = query.expand(*batch, len(lams), *query.shape[-2:])
            seen = torch.ones(query.shape[:-1], dtype=torch.bool, device=query.device)
            mean = run_filter(operators, query, seen, lam).mean
            truth = stored.z[..., start:stop, :].unsqueeze(-3).expand_as(mean)
            total = total + (stop - start) * mean_squared_error(mean, truth)
    return total / n
