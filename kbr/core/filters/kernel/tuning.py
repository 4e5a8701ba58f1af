"""Hyper-parameters of the kernel Bayes filter, chosen on the end of the training sequence.

For every bandwidth scale, eta is chosen by leave-one-out and a few lams are filtered as one batch.
Ref: Xu et al. 2022, section 5.2 (the last 200 steps of the training sequence as validation set).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choice import Choice
from kbr.core.filters.kernel.known_transition import TransitionRatio
from kbr.core.filters.kernel.search import Progress, Space, edges_of, search
from kbr.core.filters.kernel.validation import errors_on, even_blocks, validation_block


def choose(
    builder: Builder,
    x: Float[Tensor, "*b n dx"],
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
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
    batch, widths = z.shape[:-2], builder.settings.tried_widths
    space = builder.settings.space(x.shape[-1], builder.least_lam) if space is None else space
    if space.is_one_cell and len(widths) == 1 and not scored:
        like = z.new_zeros(batch)
        scale, lam = (torch.full_like(like, v) for v in (space.scales[0], space.lams[0]))
        return _choice(scale, widths[0], lam, torch.full_like(like, torch.nan))
    last = validation_block(z.shape[-2])
    blocks = [last] if folds == 1 else even_blocks(last.stop, folds)
    row_of = errors_on(builder, x, z, lengths, blocks)
    best = search(row_of, space, z.new_zeros(batch.numel()), progress)
    if not bool(best.error.isfinite().all()):
        raise KbrError("no setting that was tried gave finite errors: raise lams or scales.")
    parts = (best.scale, z.new_tensor(widths)[best.width], best.lam, best.error)
    scale, width, lam, error = (part.reshape(batch) for part in parts)
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
    choice: Choice, builder: Builder, z: Float[Tensor, "*b n dz"], lengths: Sequence[int]
) -> Choice:
    """The choice with the ridges of all latents, and whether eta lies on an edge."""
    _, ridges = builder.ridged_latents(z, choice.scale_z, lengths)
    eta, lam_transition = ridges["eta"], ridges["lam_transition"]
    choice = replace(choice, eta=eta, lam_transition=lam_transition)
    settings = builder.settings
    if settings.given_eta is not None or isinstance(settings.rule.ratio, TransitionRatio):
        return choice  # not chosen, or not used
    bounds = builder.eta_bounds if settings.etas is None else None
    edges = edges_of("eta", choice.eta, settings.etas or (), bounds)
    if settings.etas is None:  # the least value is meant as a bound: see ETA_BOUNDS
        edges = tuple(edge for edge in edges if edge.end == "upper")
    return replace(choice, edges=(*choice.edges, *edges))
