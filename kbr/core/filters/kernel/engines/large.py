"""The kernel Bayes filter on very many points: linear in n, in time and in memory.

The rank of a smooth kernel does not grow with n. Pivots are found among evenly spaced points, and
everything else is a function of them: tables of features, filled block by block and kept in
float32, and sums over all points, made in float64. Hyper-parameters are chosen on the last steps
alone, which choose as well.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap, Features, PivotedCholesky, pivot_triangle, take_rows
from kbr.core.filters.kernel.building import LATENT_RANK as LOCAL_RANK
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.dynamics.lift import RANK, lift_tolerance
from kbr.core.filters.kernel.engine import (
    Compressed,
    LowRank,
    Mixing,
    Update,
    beside_unit,
    mixer,
    square_pivots,
)
from kbr.core.filters.kernel.engines.local import Local, LocalOperators, local_note
from kbr.core.filters.kernel.operators import (
    LatentSums,
    LearnedOperators,
    learned_operators,
    lifted_sums,
)
from kbr.core.filters.sequences import Sequences, lengths_outside
from kbr.core.io.memory import check_memory
from kbr.core.kernels import Kernel
from kbr.core.tables import blocks

LARGE = 20_000  # points above which a filter is built here
RECENT = 10_000  # last points on which hyper-parameters are chosen
SUBSET = 20_000  # evenly spaced points among which pivots are found
STORED = torch.float32  # of the tables
LATENT_RANK, OBSERVATION_RANK, COMPRESSED_RANK = 160, 96, 256  # columns of the tables at most
SMALLEST_LAM = 5e-5  # below this ridge float32 tables lose digits that show
SMALLEST_ETA = 1e-8  # their factor of the latents leaves out a tenth of it
SECONDS, CHOOSING = 30e-6, 1.2e-3  # on one core for each point: tables, and hyper-parameters


def is_large(n: int) -> bool:
    return n > LARGE


def estimate(n: int, *, batch: int = 1) -> tuple[float, float]:
    """Bytes and seconds that a filter on n points of a few coordinates takes, roughly."""
    columns = min(LATENT_RANK + OBSERVATION_RANK + COMPRESSED_RANK, 3 * n)
    seconds = batch * (n * SECONDS + min(n, RECENT) * CHOOSING)
    # Below, tables are in float64, and one of predictions is among them.
    size = _row_bytes(columns) if is_large(n) else 3 * _row_bytes(columns)
    return batch * n * size, seconds


def tuning_part(builder: Builder, data: Sequences) -> tuple[Builder, Sequences]:
    """What hyper-parameters are chosen on: all points or, of very many, the last ones.

    Then ridges too small for float32 tables are not among those tried unless asked for.
    """
    n = data.z.shape[-2]
    if not is_large(n):
        return builder, data
    return of_many(builder), data.outside(range(max(n - RECENT, 0)))


def of_many(builder: Builder) -> Builder:
    """The same for very many points."""
    return replace(builder, least_lam=SMALLEST_LAM, least_eta=SMALLEST_ETA)


def large_operators(
    builder: Builder,
    data: Sequences,
    *,
    scales: tuple[Tensor, Tensor],
    lam: float,
    eta: Tensor,
    lam_transition: Tensor,
) -> tuple[LearnedOperators, Features]:
    """All operators of a filter, and the features of latents.

    `scales` are those of x and z, `lam` the smallest ridge in use. Factors are exact to a tenth of
    the ridge that is added to G_Z, and for G_X to the digits that float32 bears.
    """
    x, z, lengths = data.observed, data.z, data.lengths
    (*batch, n, _), engine = z.shape, builder.settings.engine
    if isinstance(builder.rule.ratio, TransitionRatio):
        raise KbrError(
            f"TransitionRatio tabulates n x n densities, here of {n:,} points. Use at most "
            f"{LARGE:,} points (n_train), or KuLSIF."
        )
    if engine == "active_set" or not isinstance(engine, str):
        name = "active_set" if isinstance(engine, str) else type(engine).__name__
        raise KbrError(
            f"the {name} engine is for at most {LARGE:,} points (n_train): active_set forms n x n "
            f"Gram matrices, here of {n:,} points. Use engine='auto', 'low_rank' or 'compressed'."
        )
    ridge = float(torch.minimum(eta, lam_transition).min())
    map_z = builder.latent_map(scales[1], min(max(0.1 * ridge, 1e-9), 1e-6))
    map_x = builder.observation_map(scales[0], min(max(1e-3 * lam**2, 1e-10), 1e-7))
    kernel = map_x.kernel if isinstance(map_x, PivotedCholesky) else None
    local = kernel is not None and builder.is_local(kernel, x)
    limit = LOCAL_RANK if local else LATENT_RANK
    latents, note_z = _pivots(map_z, z, limit=limit, name="z")
    columns = latents.train.shape[-1] + (RANK if data.controls else 0)
    if kernel is not None and local:
        note_x, make = local_note(n), partial(_local, kernel, x)
    else:
        observed, note_x = _pivots(map_x, x, limit=OBSERVATION_RANK, name="x")
        mixing = _mixing(engine, observed, lam)
        columns += observed.train.shape[-1] + (0 if mixing is None else mixing[0].shape[-2])
        make = partial(tabulated, observed, mixing, x)
    trials = math.prod(batch)
    check_memory(
        trials * n * _row_bytes(columns),
        what=f"a filter on {n:,} points in each of {trials} data set(s)",
        advice="Lower n_train, or fit fewer data sets at once (trials).",
        device=z.device,
    )
    phi, sums = latent_table(latents, z, lengths)
    lift = builder.lift(phi, data, lift_tolerance(ridge))
    operators = learned_operators(
        builder.rule,
        make(),
        z,
        phi,
        lifted_sums(sums, lift, phi, lengths),
        lengths,
        eta=eta,
        lam_transition=lam_transition,
        notes=tuple(note for note in (note_x, note_z) if note),
        lift=lift,
    )
    cells = local and z.ndim == 2
    made = LocalOperators.of(operators, latents) if cells else operators
    return made, replace(latents, train=phi)


def _local(kernel: Kernel, x: Tensor) -> Update:
    return Local(kernel.fit(x), x.to(torch.float64))


def _pivots(
    chosen: FeatureMap, points: Float[Tensor, "*b n d"], *, limit: int, name: str
) -> tuple[Features, str]:
    """Features fitted to evenly spaced points, with the bandwidth of all of them, and a note.

    A kernel of higher rank than the limit is cut there, and the note says what that leaves out; a
    rank that was asked for by PivotedCholesky(max_rank=...) is kept.
    """
    n = points.shape[-2]
    keep = torch.linspace(0, n - 1, min(n, SUBSET), device=points.device).round().long()
    few = points.index_select(-2, keep).to(torch.float64)
    if not isinstance(chosen, PivotedCholesky):
        return chosen.fit(few), ""
    kernel = chosen.kernel.fit(points)
    features = replace(chosen, kernel=kernel, max_rank=chosen.max_rank or limit).fit(few)
    if chosen.max_rank is not None or features.train.shape[-1] < limit:
        return features, ""
    whole = kernel.diagonal(few)
    left_out = float(((whole - features.train.square().sum(-1)) / whole.amax()).amax())
    if left_out <= chosen.tolerance:
        return features, ""
    return features, (
        f"rank of {name} cut at {limit} of {len(keep):,} points; largest residual {left_out:.0e}; "
        f"pass kernel_{name}=PivotedCholesky(max_rank=...) for more"
    )


def _mixing(engine: str, observed: Features, lam: float) -> tuple[Tensor, Mixing] | None:
    """Pivots of the squared Gram matrix, and the mixing of any point over them.

    None where the pivots are not few enough for compression to pay.
    """
    psi = observed.train.to(torch.float64)
    lam = beside_unit(lam, psi)
    if engine == "low_rank" or (engine == "auto" and lam < SMALLEST_LAM):
        return None
    limit = None if engine == "compressed" else COMPRESSED_RANK + 1
    factor, rows = square_pivots(psi, tolerance=max(1e-9, 1e-3 * lam**2), max_rank=limit)
    if limit is not None and rows.shape[-1] == limit:
        return None
    pivots = take_rows(psi, rows).contiguous()
    return pivots, mixer(pivots, *pivot_triangle(factor, rows))


def tabulated(observed: Features, mixing: tuple[Tensor, Mixing] | None, x: Tensor) -> Update:
    """The update with its tables of features, and of mixing where it is compressed."""
    empty = replace(observed, train=observed.train[..., :0, :].to(STORED))
    if mixing is None:
        return LowRank(empty.grown(x))
    pivots, mix = mixing
    none = pivots.mT[..., :0, :].to(STORED)
    return Compressed(empty, none, pivots, mix, pivots.shape[-2]).filled(x)[0]


def latent_table(
    latents: Features,
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    dtype: torch.dtype = STORED,
) -> tuple[Float[Tensor, "*b n p"], LatentSums]:
    """Features of all latents, and their second moments in float64."""
    *batch, n, _ = z.shape
    p = latents.train.shape[-1]
    phi = z.new_empty(*batch, n, p, dtype=dtype)
    total, cross = (z.new_zeros(*batch, p, p) for _ in range(2))
    last = z.new_zeros(*batch, 1, p)
    ends = torch.tensor(lengths, device=z.device).cumsum(0)
    follows = torch.ones(n, 1, dtype=z.dtype, device=z.device)
    follows[0] = 0
    follows[ends[:-1]] = 0
    for rows in blocks(n):
        some = latents(z[..., rows, :])
        phi[..., rows, :] = some
        total += some.mT @ some
        early = torch.cat([last, some[..., :-1, :]], -2) * follows[rows]
        cross += early.mT @ some
        last = some[..., -1:, :]
    lost = (ends - 1, torch.cat([ends.new_zeros(1), ends[:-1]]))  # rows with no later, no earlier
    early, late = (total - _gram(latents, z.index_select(-2, rows)) for rows in lost)
    return phi, LatentSums(total, early, late, cross)


def _gram(latents: Features, z: Float[Tensor, "*b n dz"]) -> Float[Tensor, "*b p p"]:
    parts = (latents(z[..., rows, :]) for rows in blocks(z.shape[-2]))
    return torch.stack([some.mT @ some for some in parts]).sum(0)


def _row_bytes(columns: int) -> float:
    """Memory for one point: its rows of the tables, its moments, weights and intermediate ones."""
    return float(columns * STORED.itemsize + 24 * torch.float64.itemsize)


def last_lengths(lengths: Sequence[int], count: int) -> list[int]:
    """Lengths of what the last `count` rows hold of every sequence."""
    return lengths_outside(lengths, range(sum(lengths) - count))
