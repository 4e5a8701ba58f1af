"""Hyper-parameters of the kernel Bayes filter, chosen on the end of the training sequence.

For every bandwidth scale, eta is chosen by leave-one-out and a few lams are filtered as one batch.
Ref: Xu et al. 2022, section 5.2 (the last 200 steps of the training sequence as validation set).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.known_transition import TransitionRatio
from kbr.core.filters.kernel.recipe import TOLERANCE, Recipe
from kbr.core.filters.kernel.run import run_filter
from kbr.core.filters.kernel.search import Edge, Progress, Row, RowOf, Space, edges_of, search
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.result import mean_squared_error

VALIDATION_STEPS = 200
MINIMUM_STEPS = 6

Pair = tuple[Float[Tensor, "*b _ dx"], Float[Tensor, "*b _ dz"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What is in use for each data set, its validation error, and which edges it lies on."""

    scale_x: Float[Tensor, "*b"]
    scale_z: Float[Tensor, "*b"]
    lam: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam_transition: Float[Tensor, "*b"]
    val_mse: Float[Tensor, "*b"]
    edges: tuple[Edge, ...] = ()


CHOICES = ("scale_x", "scale_z", "lam", "eta", "lam_transition", "val_mse")


def choose(
    recipe: Recipe,
    x: Float[Tensor, "*b n dx"],
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    progress: Progress | None = None,
    space: Space | None = None,
) -> Choice:
    """Bandwidths and lam by validation where there is a choice; eta is set by the final fit."""
    space = recipe.space().of_observations(x.shape[-1]) if space is None else space
    if space.is_one_cell and len(recipe.tried_widths()) == 1:
        like = z.new_zeros(z.shape[:-2])
        scale, lam = (torch.full_like(like, v) for v in (space.scales[0], space.lams[0]))
        return _choice(scale, recipe.tried_widths()[0], lam, torch.full_like(like, torch.nan))
    cut = validation_start(z.shape[-2])
    fit_lengths, pieces = split_lengths(lengths, cut)
    flat_x, flat_z = x.reshape(-1, *x.shape[-2:]), z.reshape(-1, *z.shape[-2:])
    measured = recipe.measured(flat_x[:, :cut], flat_z[:, :cut])

    def row_of(members: Tensor, scale: float) -> Row:
        some_x, some_z = (_members(rows, members) for rows in (flat_x, flat_z))
        held_out = [(some_x[:, a:b], some_z[:, a:b]) for a, b in pieces]
        fitted = (some_x[:, :cut], some_z[:, :cut])
        total = block_errors(measured.of_members(members), fitted, fit_lengths, held_out, scale)
        return lambda lam: total(lam) / (z.shape[-2] - cut)

    return chosen_by(row_of, recipe, space, z, progress)


def chosen_by(
    row_of: RowOf, recipe: Recipe, space: Space, z: Tensor, progress: Progress | None = None
) -> Choice:
    """What the search finds with these errors, in the shape of the data sets z [*b n dz]."""
    batch = z.shape[:-2]
    best = search(row_of, space, z.new_zeros(batch.numel()), progress)
    if not bool(best.error.isfinite().all()):
        raise KbrError("no setting that was tried gave finite errors: raise lams or scales.")
    width = z.new_tensor(recipe.tried_widths())[best.width]
    made = (part.reshape(batch) for part in (best.scale, width, best.lam, best.error))
    scale, width, lam, error = made
    edges = (
        *edges_of("scale", scale, space.scales, space.scale_bounds),
        *edges_of("lam", lam, space.lams, space.lam_bounds),
    )
    return replace(_choice(scale, width, lam, error), edges=edges)


def _choice(scale: Tensor, width: float | Tensor, lam: Tensor, error: Tensor) -> Choice:
    none = torch.full_like(scale, torch.nan)
    return Choice(
        scale_x=scale * width,
        scale_z=scale,
        lam=lam,
        eta=none,
        lam_transition=none,
        val_mse=error,
    )


def with_ridges(
    choice: Choice, recipe: Recipe, z: Float[Tensor, "*b n dz"], lengths: Sequence[int]
) -> Choice:
    """The choice with the ridges of all latents, and whether eta lies on an edge."""
    _, ridges = recipe.ridged_latents(z, choice.scale_z, lengths)
    eta = ridges["eta"]
    made = replace(choice, eta=eta, lam_transition=ridges["lam_transition"])
    if recipe.given_eta is not None or isinstance(recipe.rule.ratio, TransitionRatio):
        return made  # not chosen, or not used
    edges = edges_of(
        "eta", eta, recipe.etas or (), recipe.eta_bounds if recipe.etas is None else None
    )
    if recipe.etas is None:  # the least value is meant as a bound: see ETA_BOUNDS
        edges = tuple(edge for edge in edges if edge.end == "upper")
    return replace(made, edges=(*made.edges, *edges))


def validation_start(n: int) -> int:
    """First row of the validation block: the last 200 steps, a third where there are under 600."""
    if n < MINIMUM_STEPS:
        raise KbrError(
            f"tuning needs at least {MINIMUM_STEPS} training steps to hold some out; got {n}. "
            "Raise n_train, or set the bandwidths, eta and lam so that nothing is tuned."
        )
    return n - (VALIDATION_STEPS if n >= 3 * VALIDATION_STEPS else n // 3)


def block_errors(
    recipe: Recipe,
    fitted: Pair,
    lengths: Sequence[int],
    held_out: Sequence[Pair],
    scale: float,
) -> Row:
    """Squared errors, summed over the steps held out, of filters fitted to the other steps.

    A function of lam [*b l] that gives errors [*b w l] for every width of the recipe. The factors
    of the latents belong to the scale, those of the observations to scale and width: they are made
    once, whatever lams are asked for.
    """
    x, z = fitted
    latents, ridges = recipe.ridged_latents(z, scale, lengths)
    made: dict[float, tuple[float, Operators]] = {}

    def operators(width: float, least: float) -> Operators:
        """Those of this width, made again where a lam is less than any before."""
        if width not in made or least < made[width][0]:
            update = recipe.update(x, scale * width, TOLERANCE, lam=least, rough=True)
            new = recipe.operators(update, latents, z, lengths, **ridges)
            made[width] = (least, new)
        return made[width][1]

    def errors(lam: Float[Tensor, "*b l"]) -> Float[Tensor, "*b w l"]:
        found = []
        for width in recipe.tried_widths():
            given, total = operators(width, float(lam.min())), torch.zeros_like(lam)
            for some, truth in held_out:
                query = given.update.observe(some).unsqueeze(-3)
                query = query.expand(*lam.shape, *query.shape[-2:])
                seen = torch.ones(query.shape[:-1], dtype=torch.bool, device=query.device)
                mean = run_filter(given, query, seen, lam).mean
                total = total + truth.shape[-2] * mean_squared_error(
                    mean, truth.unsqueeze(-3).expand_as(mean)
                )
            found.append(total)
        return torch.stack(found, -2)

    return errors


def _members(rows: Tensor, members: Tensor) -> Tensor:
    """The rows of some data sets; no copy where it is all of them."""
    return rows if len(members) == len(rows) else rows[members]


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
