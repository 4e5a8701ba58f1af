"""Operators with more training pairs: features stay, tables grow and sums are added to.

Features are functions of pivots that were found in the rows of the fit, so those of new rows are
evaluated, and second moments of all rows are the old ones and theirs. What is left to do again has
the size of a rank: Cholesky factors and the transition.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Features
from kbr.core.filters.kernel.dynamics.known_transition import KnownOperators
from kbr.core.filters.kernel.engine import ActiveSet, LowRank, with_more
from kbr.core.filters.kernel.engines.large import LARGE, is_large, latent_table
from kbr.core.filters.kernel.engines.local import LocalOperators, local_note
from kbr.core.filters.kernel.engines.sensors import SensorOperators
from kbr.core.filters.kernel.operators import (
    LatentSums,
    LearnedOperators,
    learned_operators,
    transition_pairs,
)
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storing.storage import FittedData
from kbr.core.filters.sequences import lengths_outside
from kbr.core.io.memory import check_memory


def goes_on(data: FittedData, n: int) -> bool:
    """Whether row n follows the one before it in one sequence."""
    return n not in accumulate(data.lengths, initial=0)


def grown(
    operators: Operators, latents: Callable[[Tensor], Tensor] | None, data: FittedData
) -> tuple[Operators, Features | None]:
    """The operators with all rows of the data, the first of which are theirs; and the features.

    Math: Phi'Phi and the sums over steps grow by those of the new rows; n and the number of steps
          that they are divided by are the new ones, and so is the n of n lam.
    """
    n, z = operators.n, data.z
    _check_size(operators, z.shape[-2])
    update = with_more(operators.update, data.observed[..., n:, :], float(data.choice.lam.min()))
    if isinstance(operators, KnownOperators):
        return KnownOperators.of(operators.rule, update, z), None
    assert isinstance(operators, LearnedOperators)
    assert isinstance(latents, Features)
    start = n - goes_on(data, n)  # a step from the last row to the first new one is new too
    phi, sums = latent_table(
        latents, z[..., start:, :], lengths_outside(data.lengths, range(start)), latents.train.dtype
    )
    if start < n:
        last = latents(z[..., start:n, :])
        phi, sums = phi[..., 1:, :], replace(sums, total=sums.total - last.mT @ last)
    phi = torch.cat([operators.phi, phi], -2)
    lift = operators.lift
    if lift is not None:
        before, after = (rows.to(z.device) for rows in transition_pairs(data.lengths))
        before, after = (rows[before >= start] for rows in (before, after))
        u = data.x[..., -data.controls :].index_select(-2, after).double()
        more = lift.of_steps(phi.index_select(-2, before), u)
        sums, lift = replace(sums, **more.sums(phi, after)), lift.joined(more)
    parts = vars(operators.sums)
    made = learned_operators(
        operators.rule,
        update,
        z,
        phi,
        LatentSums(**{name: parts[name] + getattr(sums, name) for name in parts}),
        data.lengths,
        eta=data.choice.eta,
        lam_transition=data.choice.lam_transition,
        lift=lift,
    )
    known, now = (local_note(rows) for rows in (n, z.shape[-2]))
    notes = tuple(now if note == known else note for note in operators.notes)
    made, latents = replace(made, notes=notes), replace(latents, train=phi)
    if isinstance(operators, LocalOperators):
        made = LocalOperators.of(made, latents)
    if isinstance(operators, SensorOperators):
        made = SensorOperators(**vars(made))
    return made, latents


def _check_size(operators: Operators, n: int) -> None:
    """Memory for the tables' copies, and for what is of size n x n."""
    update, known = operators.update, isinstance(operators, KnownOperators)
    if is_large(n) and (known or isinstance(update, ActiveSet)):
        what = "TransitionRatio" if known else f"the {update.name} engine"
        raise KbrError(
            f"{what} forms n x n matrices and is for at most {LARGE:,} points, here {n:,}. Call "
            "fit with all rows, engine='auto' and KuLSIF."
        )
    tables: list[Any] = [*vars(operators).values(), *vars(update).values()]
    tables += [update.features.train] if isinstance(update, LowRank) else []
    size = sum(t.numel() * t.element_size() for t in tables if isinstance(t, Tensor))
    check_memory(
        size * n / operators.n,
        what=f"a copy of the filter's tables, with {n:,} rows now,",
        advice="Compress the filter, or fit to fewer rows.",
        device=operators.points.device,
    )
