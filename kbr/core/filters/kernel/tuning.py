"""Hyper-parameters of the kernel Bayes filter, chosen on the end of the training sequence.

For every bandwidth scale, eta is chosen by leave-one-out and a few lams are filtered as one batch.
Ref: Xu et al. 2022, section 5.2 (the last 200 steps of the training sequence as validation set).
"""

from dataclasses import replace

import torch

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.known_transition import TransitionRatio
from kbr.core.filters.kernel.search import (
    Choice,
    Edge,
    Progress,
    Space,
    edges_of,
    search,
    search_controls,
)
from kbr.core.filters.kernel.validation import errors_on, even_blocks, validation_block
from kbr.core.filters.sequences import Sequences


def choose(
    builder: Builder,
    data: Sequences,
    *,
    folds: int = 1,
    space: Space | None = None,
    progress: Progress | None = None,
    scored: bool = False,
) -> Choice:
    """Bandwidths and lam by the error on held-out blocks; eta is set by the final fit.

    One block, the end of the sequence, or the whole of it in so many `folds`. Where the settings
    leave no choice nothing is tried, unless the error is wanted (`scored`).
    """
    z, widths = data.z, builder.settings.tried_widths
    batch, coordinates = z.shape[:-2], data.observed.shape[-1]
    space = builder.settings.space(coordinates, builder.least_lam) if space is None else space
    none = z.new_full(batch, torch.nan)
    scale_u = None
    if space.is_one_cell and len(widths) == 1 and not scored and not data.controls:
        scale, lam = (torch.full_like(none, v) for v in (space.scales[0], space.lams[0]))
        width, error = torch.full_like(none, widths[0]), none
        edges: tuple[Edge, ...] = ()
    else:
        last = validation_block(z.shape[-2])
        blocks = [last] if folds == 1 else even_blocks(last.stop, folds)
        row_of = errors_on(builder, data, blocks)
        best = search(row_of, space, z.new_zeros(batch.numel()), progress)
        if not bool(best.error.isfinite().all()):
            raise KbrError("no setting that was tried gave finite errors: raise lams or scales.")
        if data.controls:
            scale_u = search_controls(row_of, best).reshape(batch)
        parts = (best.scale, z.new_tensor(widths)[best.width], best.lam, best.error)
        scale, width, lam, error = (part.reshape(batch) for part in parts)
        edges = edges_of("scale", scale, space.scales, space.scale_bounds)
        edges += edges_of("lam", lam, space.lams, space.lam_bounds)
    return Choice(
        scale_x=scale * width,
        scale_z=scale,
        lam=lam,
        eta=none,
        lam_transition=none,
        val_mse=error,
        edges=edges,
        scale_u=scale_u,
    )


def with_ridges(choice: Choice, builder: Builder, data: Sequences) -> Choice:
    """The choice with the ridges of all latents, and whether eta lies on an edge."""
    _, _, ridges = builder.ridged_latents(data, choice.scale_z)
    choice, settings = replace(choice, **ridges), builder.settings
    if settings.given_eta is not None or isinstance(settings.rule.ratio, TransitionRatio):
        return choice  # not chosen, or not used
    bounds = builder.eta_bounds if settings.etas is None else None
    edges = edges_of("eta", choice.eta, settings.etas or (), bounds)
    if settings.etas is None:  # the least value is meant as a bound: see ETA_BOUNDS
        edges = tuple(edge for edge in edges if edge.end == "upper")
    return replace(choice, edges=(*choice.edges, *edges))
