"""Hyper-parameters of the kernel Bayes filter, chosen on the end of the training sequence.

For every bandwidth scale, eta is chosen by leave-one-out and all lams are filtered as one batch.
Ref: Xu et al. 2022, section 5.2 (the last 200 steps of the training sequence as validation set).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.recipe import Recipe
from kbr.core.filters.result import mean_squared_error
from kbr.core.filters.run import run_filter

Progress = Callable[[Sequence[tuple[float, float]]], Iterable[tuple[float, float]]]
VALIDATION_STEPS = 200
MINIMUM_STEPS = 6
TOLERANCE = 1e-7  # choosing needs fewer digits than filtering


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What is in use for each data set, its validation error, and which grid edges it lies on."""

    scale_x: Float[Tensor, "*b"]
    scale_z: Float[Tensor, "*b"]
    lam: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam_transition: Float[Tensor, "*b"]
    val_mse: Float[Tensor, "*b"]
    edges: tuple[str, ...] = ()


CHOICES = ("scale_x", "scale_z", "lam", "eta", "lam_transition", "val_mse")


def choose(
    recipe: Recipe,
    x: Float[Tensor, "*b n dx"],
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    progress: Progress | None = None,
) -> Choice:
    """Bandwidths and lam by validation where there is a choice; eta is set by the final fit."""
    grid, lams = recipe.bandwidth_grid(), recipe.ridge_grid()
    none = x.new_full(z.shape[:-2], torch.nan)
    if len(grid) * len(lams) == 1:
        scale, width = (torch.full_like(none, value) for value in grid[0])
        lam = torch.full_like(none, lams[0])
        return Choice(
            scale_x=scale * width,
            scale_z=scale,
            lam=lam,
            eta=none,
            lam_transition=none,
            val_mse=none,
        )
    table = torch.stack(
        list(_scores(recipe, x, z, lengths, progress(grid) if progress is not None else grid, lams))
    )
    table = torch.where(table.isfinite(), table, torch.inf).movedim(-1, 1)
    best, index = table.flatten(0, 1).min(0)
    if not bool(best.isfinite().all()):
        raise KbrError("no setting of the grid gave finite errors: raise lams or scales.")
    pair = x.new_tensor(grid)[index // len(lams)]
    scale, lam = pair[..., 0], x.new_tensor(lams)[index % len(lams)]
    return Choice(
        scale_x=scale * pair[..., 1],
        scale_z=scale,
        lam=lam,
        eta=none,
        lam_transition=none,
        val_mse=best,
        edges=(*_edges("scale", scale, recipe.scales), *_edges("lam", lam, lams)),
    )


def with_ridges(choice: Choice, eta: Tensor, lam_transition: Tensor, recipe: Recipe) -> Choice:
    """The choice with the ridges of the final fit, and whether eta lies on its grid's edge."""
    edges = _edges("eta", eta, recipe.etas)
    return replace(choice, eta=eta, lam_transition=lam_transition, edges=(*choice.edges, *edges))


def validation_start(n: int) -> int:
    """First row of the validation block: the last 200 steps, a third where there are under 600."""
    if n < MINIMUM_STEPS:
        raise KbrError(
            f"tuning needs at least {MINIMUM_STEPS} training steps to hold some out; got {n}. "
            "Raise n_train, or set the bandwidths, eta and lam so that nothing is tuned."
        )
    return n - (VALIDATION_STEPS if n >= 3 * VALIDATION_STEPS else n // 3)


def _scores(
    recipe: Recipe,
    x: Tensor,
    z: Tensor,
    lengths: Sequence[int],
    grid: Iterable[tuple[float, float]],
    lams: tuple[float, ...],
) -> Iterable[Float[Tensor, "*b l"]]:
    """Validation error of every lam, one bandwidth setting at a time."""
    cut = validation_start(z.shape[-2])
    fit_lengths, pieces = split_lengths(lengths, cut)
    x_fit, z_fit, batch = x[..., :cut, :], z[..., :cut, :], z.shape[:-2]
    lam = x.new_tensor(lams).expand(*batch, len(lams))
    for scale, width in grid:
        latents = recipe.latents(z_fit, scale, TOLERANCE)
        eta, lam_transition = recipe.ridges(latents.train, fit_lengths)
        update = recipe.update(x_fit, scale * width, TOLERANCE, lam=min(lams), rough=True)
        operators = recipe.operators(
            update, latents, z_fit, fit_lengths, eta=eta, lam_transition=lam_transition
        )
        total = x.new_zeros(*batch, len(lams))
        for start, stop in pieces:
            query = update.observe(x[..., start:stop, :]).unsqueeze(-3)
            query = query.expand(*batch, len(lams), *query.shape[-2:])
            seen = torch.ones(query.shape[:-1], dtype=torch.bool, device=x.device)
            mean = run_filter(operators, query, seen, lam).mean
            truth = z[..., start:stop, :].unsqueeze(-3).expand_as(mean)
            total += (stop - start) * mean_squared_error(mean, truth)
        yield total / (z.shape[-2] - cut)


def split_lengths(lengths: Sequence[int], cut: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Sequence lengths before row `cut`, and the (start, stop) rows of the pieces after it."""
    fit, pieces, start = [], [], 0
    for length in lengths:
        stop = start + length
        if start < cut:
            fit.append(min(stop, cut) - start)
        if stop > cut:
            pieces.append((max(start, cut), stop))
        start = stop
    return fit, pieces


def _edges(name: str, chosen: Tensor, grid: Sequence[float]) -> list[str]:
    """Which ends of a grid were chosen, and how often, as words for a report."""
    found = []
    for end, value in (("lower", min(grid)), ("upper", max(grid))):
        count = int((chosen == value).sum())
        if len(grid) > 1 and count:
            found.append(f"{name} at the {end} edge ({value:g}) in {count} of {chosen.numel()}")
    return found
