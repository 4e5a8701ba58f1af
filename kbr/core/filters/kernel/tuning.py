"""Hyper-parameters of the kernel Bayes filter, chosen on the end of the training sequence.

For every bandwidth scale, eta is chosen by leave-one-out and a few lams are filtered as one batch.
Ref: Xu et al. 2022, section 5.2 (the last 200 steps of the training sequence as validation set).
"""

import math
from dataclasses import replace

import torch

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.climb import Cell, climb
from kbr.core.filters.kernel.known_transition import TransitionRatio
from kbr.core.filters.kernel.search import (
    SCALE_BOUNDS,
    Choice,
    Edge,
    Progress,
    Space,
    edges_of,
    search,
)
from kbr.core.filters.kernel.settings import is_free
from kbr.core.filters.kernel.validation import (
    cell_errors,
    errors_on,
    even_blocks,
    validation_block,
)
from kbr.core.filters.sequences import Sequences
from kbr.core.kernels import Kernel
from kbr.core.rules import ImportanceWeightedRule


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
    batch, coordinates = z.shape[:-2], data.x.shape[-1]
    if space is None and folds == 1 and _climbs(builder, data):
        return _climbed(builder, data, progress)
    space = builder.settings.space(coordinates, builder.least_lam) if space is None else space
    none = z.new_full(batch, torch.nan)
    if space.is_one_cell and len(widths) == 1 and not scored:
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
        floor=none,
        edges=edges,
    )


def _climbs(builder: Builder, data: Sequences) -> bool:
    """Whether x has a high rank at any bandwidth, so that trials are few and single."""
    settings, rule = builder.settings, builder.rule
    free = is_free(rule.kernel_x) and is_free(rule.kernel_z) and settings.scales is None
    plain = isinstance(rule, ImportanceWeightedRule) and isinstance(rule.kernel_x, Kernel)
    return free and plain and data.z.ndim == 2 and builder.is_local(rule.kernel_x, data.x)


def _climbed(builder: Builder, data: Sequences, progress: Progress | None) -> Choice:
    """The choice for one data set of many points; a lam or floor of the rule's own stays."""
    rule, z = builder.rule, data.z
    space = builder.settings.space(data.x.shape[-1], builder.least_lam)
    lam_bounds = space.lam_bounds or (min(space.lams), max(space.lams))
    start = Cell()
    free = ["scale_z", "scale_x", "lam", "floor"]
    if lam_bounds[0] == lam_bounds[1]:
        start = replace(start, lam=lam_bounds[0])
        free.remove("lam")
    if rule.floor:
        start = replace(start, floor=float(rule.floor))
        free.remove("floor")
    block = validation_block(z.shape[-2])
    score = cell_errors(builder, data, block)
    best, error = climb(score, start, free, lam_bounds, progress)
    if not math.isfinite(error):
        raise KbrError("no setting that was tried gave finite errors: raise lams or scales.")
    none = torch.nan
    values = {**vars(best), "eta": none, "lam_transition": none, "val_mse": error}
    tensors = {name: z.new_tensor(value) for name, value in values.items()}
    edges = [edges_of("lam", tensors["lam"], (), lam_bounds)] if "lam" in free else []
    edges += [edges_of("scale", tensors[f"scale_{name}"], (), SCALE_BOUNDS) for name in "xz"]
    return Choice(**tensors, edges=sum(edges, ()))


def with_ridges(choice: Choice, builder: Builder, data: Sequences) -> Choice:
    """The choice with the ridges of all latents, and whether eta lies on an edge."""
    _, ridges = builder.ridged_latents(data.z, choice.scale_z, data.lengths)
    choice, settings = replace(choice, **ridges), builder.settings
    if settings.given_eta is not None or isinstance(settings.rule.ratio, TransitionRatio):
        return choice  # not chosen, or not used
    bounds = builder.eta_bounds if settings.etas is None else None
    edges = edges_of("eta", choice.eta, settings.etas or (), bounds)
    if settings.etas is None:  # the least value is meant as a bound: see ETA_BOUNDS
        edges = tuple(edge for edge in edges if edge.end == "upper")
    return replace(choice, edges=(*choice.edges, *edges))
