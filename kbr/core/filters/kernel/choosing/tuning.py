"""Hyper-parameters of the kernel Bayes filter, chosen on the end of the training sequence.

For every bandwidth scale, eta is chosen by leave-one-out and a few lams are filtered as one batch.
Ref: Xu et al. 2022, section 5.2 (the last 200 steps of the training sequence as validation set).
Where rows are few, two more blocks have a say: one alone is noisy.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choosing.climb import Cell, climb
from kbr.core.filters.kernel.choosing.search import (
    ETA_BOUNDS,
    SCALE_BOUNDS,
    Best,
    Choice,
    Edge,
    Progress,
    RowOf,
    Space,
    edges_of,
    search,
    search_controls,
    search_sensors,
)
from kbr.core.filters.kernel.choosing.validation import (
    blocks_over,
    cell_errors,
    errors_on,
    held_out_block,
    validation_block,
)
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.settings import AUTO, WIDTHS, is_free
from kbr.core.filters.sequences import Sequences
from kbr.core.kernels import Kernel
from kbr.core.rules import ImportanceWeightedRule
from kbr.core.units.sensors import Sensors

STUCK_ETA = 1e-6  # below, with a floor of the ratio, beliefs get stuck where few latents are


def choose(
    builder: Builder,
    data: Sequences,
    *,
    in_order: bool = False,
    space: Space | None = None,
    progress: Progress | None = None,
    scored: bool = False,
) -> Choice:
    """Bandwidths and lam by the error on held-out blocks; eta is set by the final fit.

    Blocks are those of `blocks_over`; the last alone with `in_order`, and with rules to the letter,
    as in the paper. The error that is told is that of the last, the validation block. Where the
    settings leave no choice nothing is tried, unless the error is wanted (`scored`).
    """
    z, widths = data.z, builder.settings.tried_widths
    batch, coordinates = z.shape[:-2], data.observed.shape[-1]
    if space is None and _climbs(builder, data):
        return _climbed(builder, data, progress)
    space = builder.settings.space(coordinates, builder.least_lam) if space is None else space
    none = z.new_full(batch, torch.nan)
    scale_u, sensors = None, data.sensors
    more = bool(data.controls) or data.sensors is not None  # to choose
    if space.is_one_cell and len(widths) == 1 and not scored and not more:
        scale, lam = (torch.full_like(none, v) for v in (space.scales[0], space.lams[0]))
        width, error = torch.full_like(none, widths[0]), none
        edges: tuple[Edge, ...] = ()
    else:
        n, last_alone = z.shape[-2], in_order or not builder.rule.normalize
        blocks = [validation_block(n)] if last_alone else blocks_over(n)
        row_of = errors_on(builder, data, blocks)
        best = search(row_of, space, z.new_zeros(batch.numel()), progress)
        if not bool(best.error.isfinite().all()):
            raise KbrError("no setting that was tried gave finite errors: raise lams or scales.")
        if data.controls:
            scale_u = search_controls(row_of, best).reshape(batch)
        if data.sensors is not None:
            sensors = _sensors(builder, data.sensors, row_of, best, scale_u)
        error = best.error
        if len(blocks) > 1:
            error = _error_there(errors_on(builder, data, blocks[-1:]), best, scale_u, sensors)
        parts = (best.scale, z.new_tensor(widths)[best.width], best.lam, error)
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
        scale_u=scale_u,
        sensors=sensors,
    )


def _error_there(
    row_of: RowOf, best: Best, scale_u: Tensor | None, sensors: Sensors | None
) -> Tensor:
    """The error of what was chosen, on these blocks alone."""
    everyone = torch.arange(len(best.error), device=best.error.device)
    moves: Any = 1.0 if scale_u is None else scale_u.reshape(-1)
    about = () if sensors is None else (sensors,)
    errors = row_of(everyone, best.scale, moves, *about)(best.lam.unsqueeze(-1)).squeeze(-1)
    return errors.gather(-1, best.width.unsqueeze(-1)).squeeze(-1)


def _sensors(
    builder: Builder, sensors: Sensors, row_of: RowOf, best: Best, scale_u: Tensor | None
) -> Sensors:
    """The sensors' scales and fusion where all else is best, whose error `best` then has."""
    everyone = torch.zeros_like(best.error, dtype=torch.long)
    moves = 1.0 if scale_u is None else scale_u.view(1)

    def error(tried: Sensors) -> float:
        row = row_of(everyone, best.scale, moves, tried)(best.lam.unsqueeze(-1))
        return float(row[0, best.width[0], 0].nan_to_num(math.inf))

    fusion = builder.settings.fusion
    chosen, least = search_sensors(error, sensors, float(best.error), fusion=fusion == AUTO)
    best.error[:] = least
    return chosen


def _climbs(builder: Builder, data: Sequences) -> bool:
    """Whether x has a high rank at any bandwidth, so that trials are few and single.

    Values that the user lists are tried as they are.
    """
    settings, rule = builder.settings, builder.rule
    listed = settings.scales is not None or settings.lams is not None or settings.widths != WIDTHS
    free = is_free(rule.kernel_x) and is_free(rule.kernel_z) and not listed
    plain = isinstance(rule, ImportanceWeightedRule) and data.z.ndim == 2
    kernel = rule.kernel_x
    return free and plain and isinstance(kernel, Kernel) and builder.is_local(kernel, data.observed)


def _climbed(builder: Builder, data: Sequences, progress: Progress | None) -> Choice:
    """The choice for one data set of many points; a lam, eta or floor of the user's own stays."""
    rule, settings, z, start = builder.rule, builder.settings, data.z, Cell()
    assert isinstance(rule, ImportanceWeightedRule)
    lams = settings.space(data.observed.shape[-1], builder.least_lam).lam_bounds
    bounds = {"eta": (max(builder.least_eta, STUCK_ETA), ETA_BOUNDS[1]), "lam": lams or (0.0, 0.0)}
    eta = float(builder.ridged_latents(data, start.scale_z)[2]["eta"])
    is_fixed = settings.given_eta is not None or settings.etas is not None
    start = replace(start, eta=eta if is_fixed else max(eta, bounds["eta"][0]))
    fixed = {} if rule.lam is None else {"lam": float(rule.lam)}
    fixed |= {"floor": float(rule.floor)} if rule.floor else {}
    fixed |= {"eta": eta} if is_fixed else {}
    names = ("lam", "scale_x", "floor", "scale_z", "eta")
    free = [name for name in names if name not in fixed]
    score = cell_errors(builder, data, held_out_block(data.lengths))
    best, error = climb(score, replace(start, **fixed), free, bounds, progress)
    if not math.isfinite(error):
        raise KbrError("no setting that was tried gave finite errors: raise lam or scales.")
    given = settings.lam_transition
    values = {**vars(best), "lam_transition": best.eta if given is None else given}
    tensors = {name: z.new_tensor(v) for name, v in {**values, "val_mse": error}.items()}
    edges = edges_of("lam", tensors["lam"], (), lams) if lams else ()
    for name in ("scale_x", "scale_z"):
        edges += edges_of("scale", tensors[name], (), SCALE_BOUNDS)
    scale_u = torch.ones_like(tensors["lam"]) if data.controls else None
    sensors = data.sensors
    if sensors is not None:

        def scored(tried: Sensors) -> float:
            made = replace(builder, sensors=tried)
            return cell_errors(made, data, held_out_block(data.lengths))(best, math.inf)

        fusion = builder.settings.fusion == AUTO
        sensors, error = search_sensors(scored, sensors, error, fusion=fusion)
        tensors["val_mse"] = z.new_tensor(error)
    return Choice(**tensors, edges=edges, scale_u=scale_u, sensors=sensors)


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
