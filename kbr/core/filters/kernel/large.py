"""The kernel Bayes filter on very many points: linear in n, in time and in memory.

The rank of a smooth kernel does not grow with n. Pivots are found among evenly spaced points, and
everything else is a function of them: tables of features, filled block by block and kept in
float32, and sums over all points, made in float64. Hyper-parameters are chosen on the last steps
alone, which choose as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap, Features, PivotedCholesky, pivot_triangle, take_rows
from kbr.core.filters.belief import MomentsTable
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.engine import Compressed, LowRank, Update, square_pivots
from kbr.core.filters.kernel.known_transition import TransitionRatio
from kbr.core.filters.kernel.operators import LearnedOperators
from kbr.core.filters.kernel.settings import Engine, Settings
from kbr.core.filters.kernel.transition import transition_pairs
from kbr.core.filters.kernel.validation import lengths_outside
from kbr.core.io.memory import check_memory
from kbr.core.linalg import ridge_cholesky
from kbr.core.tables import at_rows, blocks

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


def tuning_part(
    builder: Builder, x: Tensor, z: Tensor, lengths: Sequence[int]
) -> tuple[Builder, Tensor, Tensor, list[int]]:
    """What hyper-parameters are chosen on: all points or, of very many, the last ones.

    Then ridges too small for float32 tables are not among those tried unless asked for.
    """
    n = z.shape[-2]
    if not is_large(n):
        return builder, x, z, list(lengths)
    builder = replace(builder, least_lam=SMALLEST_LAM, least_eta=SMALLEST_ETA)
    return builder, x[..., -RECENT:, :], z[..., -RECENT:, :], last_lengths(lengths, RECENT)


@dataclass(frozen=True, eq=False)
class LatentSums:
    """Second moments of the latents' features over the steps: earlier points, later ones, both."""

    total: Float[Tensor, "*b p p"]
    early: Float[Tensor, "*b p p"]
    late: Float[Tensor, "*b p p"]
    cross: Float[Tensor, "*b p p"]

    @property
    def reversed(self) -> "LatentSums":
        return LatentSums(self.total, self.late, self.early, self.cross.mT)


@dataclass(frozen=True, kw_only=True, eq=False)
class LargeOperators(LearnedOperators):
    """Operators that keep no table of predictions: the features of the points do.

    Math: w+ = Phi_prev (C_prev,prev + lam' I)^-1 u / k; `ridged` is the Cholesky factor.
    `notes` say where a kernel's rank was cut at a limit of this module, and what to set instead.
    """

    sums: LatentSums
    ridged: Float[Tensor, "*b p p"]
    before: Int[Tensor, "k"]
    notes: tuple[str, ...] = ()

    def later(self, state: Float[Tensor, "*b s p"]) -> Float[Tensor, "*b s k"]:
        solved = torch.cholesky_solve(state.mT, self.ridged).mT / len(self.before)
        return at_rows(solved, self.phi).index_select(-1, self.before)

    def forecast_table(self) -> Float[Tensor, "*b p c"]:
        columns, k = self.readout.columns, len(self.before)
        total = columns.new_zeros(*self.phi.shape[:-2], self.phi.shape[-1], columns.shape[-1])
        for rows in blocks(k):
            early = self.phi.index_select(-2, self.before[rows]).to(columns.dtype)
            total += early.mT @ columns.index_select(-2, self.after[rows])
        return torch.cholesky_solve(total / k, self.ridged)

    def reverse(self, lam_transition: Float[Tensor, "*b"]) -> "LargeOperators":
        sums, k = self.sums.reversed, len(self.before)
        ridged, transition = _dynamics(sums, k, lam_transition)
        return replace(
            self,
            sums=sums,
            ridged=ridged,
            transition=transition,
            after=self.before,
            before=self.after,
        )


def large_operators(
    builder: Builder,
    x: Float[Tensor, "*b n dx"],
    z: Float[Tensor, "*b n dz"],
    lengths: Sequence[int],
    *,
    scales: tuple[Tensor, Tensor],
    lam: float,
    eta: Tensor,
    lam_transition: Tensor,
) -> tuple[LargeOperators, Callable[[Tensor], Tensor]]:
    """All operators of a filter, and the features of latents.

    `scales` are those of x and z, `lam` the smallest ridge in use.
    """
    _check(builder.settings, x)
    ridge = float(torch.minimum(eta, lam_transition).min())
    map_z = builder.latent_map(scales[1], _latent_tolerance(ridge))
    map_x = builder.observation_map(scales[0], _observation_tolerance(lam))
    latents, note_z = _pivots(map_z, z, limit=LATENT_RANK, name="z")
    observed, note_x = _pivots(map_x, x, limit=OBSERVATION_RANK, name="x")
    mixer = _mixer(builder.settings.engine, observed, lam)
    columns = latents.train.shape[-1] + observed.train.shape[-1]
    columns += 0 if mixer is None else mixer.pivots.shape[-2]
    n, k = z.shape[-2], z.shape[-2] - len(lengths)
    check_memory(
        z.shape[:-2].numel() * n * _row_bytes(columns),
        what=f"a filter on {n:,} points in each of {z.shape[:-2].numel()} data set(s)",
        advice="Lower n_train, or fit fewer data sets at once (trials).",
        device=z.device,
    )
    phi, sums = _latent_table(latents, z, lengths)
    ridged, transition = _dynamics(sums, k, lam_transition)
    before, after = (rows.to(z.device) for rows in transition_pairs(lengths))
    operators = LargeOperators(
        rule=builder.rule,
        update=_update(observed, mixer, x),
        points=z,
        phi=phi,
        marginal=ridge_cholesky(sums.total / n, ridge=eta, name="eta"),
        transition=transition,
        after=after,
        readout=MomentsTable.of(z),
        sums=sums,
        ridged=ridged,
        before=before,
        notes=tuple(note for note in (note_x, note_z) if note),
    )
    return operators, latents.function


def _latent_tolerance(eta: float) -> float:
    """Of the factor of G_Z: a tenth of the ridge that is added to it."""
    return min(max(0.1 * eta, 1e-9), 1e-6)


def _observation_tolerance(lam: float) -> float:
    """Of the factor of G_X; float32 bears no more digits."""
    return min(max(1e-3 * lam**2, 1e-10), 1e-7)


def _check(settings: Settings, x: Tensor) -> None:
    n = x.shape[-2]
    if isinstance(settings.rule.ratio, TransitionRatio):
        raise KbrError(
            f"TransitionRatio tabulates n x n densities, here of {n:,} points. Use at most "
            f"{LARGE:,} points (n_train), or KuLSIF."
        )
    if settings.engine == "active_set":
        raise KbrError(
            f"engine='active_set' forms n x n Gram matrices, here of {n:,} points. Use "
            f"engine='auto', or at most {LARGE:,} points (n_train)."
        )


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
    made = replace(chosen, kernel=kernel, max_rank=chosen.max_rank or limit).fit(few)
    if chosen.max_rank is not None or made.train.shape[-1] < limit:
        return made, ""
    whole = kernel.diagonal(few)
    left_out = float(((whole - made.train.square().sum(-1)) / whole.amax()).amax())
    if left_out <= chosen.tolerance:
        return made, ""
    return made, (
        f"rank of {name} cut at {limit} of {len(keep):,} points; largest residual {left_out:.0e}; "
        f"pass kernel_{name}=PivotedCholesky(max_rank=...) for more"
    )


@dataclass(frozen=True, eq=False)
class Mixer:
    """Pivots of the squared Gram matrix, and the mixing of any point over them.

    Math: T(x) = K_qq^-1 k(q, x)^2 with K_qq the pivots' squared Gram matrix = triangle triangle'.
    """

    pivots: Float[Tensor, "*b q d"]
    triangle: Float[Tensor, "*b q q"]
    used: Bool[Tensor, "*b q"]

    def __call__(self, psi: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b m q"]:
        squared = (self.pivots @ psi.mT).square() * self.used.unsqueeze(-1)
        return torch.cholesky_solve(squared, self.triangle).mT


def _mixer(engine: Engine, observed: Features, lam: float) -> Mixer | None:
    """The compression of the update, where its pivots are few enough to pay."""
    if engine == "low_rank" or (engine == "auto" and lam < SMALLEST_LAM):
        return None
    limit = None if engine == "compressed" else COMPRESSED_RANK + 1
    psi = observed.train.to(torch.float64)
    factor, pivots = square_pivots(psi, tolerance=max(1e-9, 1e-3 * lam**2), max_rank=limit)
    if limit is not None and pivots.shape[-1] == limit:
        return None
    return Mixer(take_rows(psi, pivots).contiguous(), *pivot_triangle(factor, pivots))


def _update(observed: Features, mixer: Mixer | None, x: Float[Tensor, "*b n dx"]) -> Update:
    """The update with its tables of features, and of mixing where it is compressed."""
    *batch, n, _ = x.shape
    psi = _empty(*batch, n, observed.train.shape[-1], like=x)
    mixing = None if mixer is None else _empty(*batch, n, mixer.pivots.shape[-2], like=x)
    for rows in blocks(n):
        made = observed(x[..., rows, :].to(torch.float64))
        psi[..., rows, :] = made
        if mixer is not None and mixing is not None:
            mixing[..., rows, :] = mixer(made)
    features = Features(psi, observed.function, observed.kernel)
    if mixer is None or mixing is None:
        return LowRank(features)
    return Compressed(features, mixing, mixer.pivots)


def _latent_table(
    latents: Features, z: Float[Tensor, "*b n dz"], lengths: Sequence[int]
) -> tuple[Float[Tensor, "*b n p"], LatentSums]:
    """Features of all latents in float32, and their second moments in float64."""
    *batch, n, _ = z.shape
    p = latents.train.shape[-1]
    phi = _empty(*batch, n, p, like=z)
    total, cross = (z.new_zeros(*batch, p, p) for _ in range(2))
    last = z.new_zeros(*batch, 1, p)
    ends = torch.tensor(lengths, device=z.device).cumsum(0)
    follows = torch.ones(n, 1, dtype=z.dtype, device=z.device)
    follows[0] = 0
    follows[ends[:-1]] = 0
    for rows in blocks(n):
        made = latents(z[..., rows, :])
        phi[..., rows, :] = made
        total += made.mT @ made
        early = torch.cat([last, made[..., :-1, :]], -2) * follows[rows]
        cross += early.mT @ made
        last = made[..., -1:, :]
    lost = (ends - 1, torch.cat([ends.new_zeros(1), ends[:-1]]))  # rows with no later, no earlier
    early, late = (total - _gram(latents, z.index_select(-2, rows)) for rows in lost)
    return phi, LatentSums(total, early, late, cross)


def _gram(latents: Features, z: Float[Tensor, "*b n dz"]) -> Float[Tensor, "*b p p"]:
    parts = (latents(z[..., rows, :]) for rows in blocks(z.shape[-2]))
    return torch.stack([made.mT @ made for made in parts]).sum(0)


def _dynamics(sums: LatentSums, k: int, lam: Tensor) -> tuple[Tensor, Tensor]:
    """The ridged factor of the earlier points' second moment, and the transition E."""
    ridged = ridge_cholesky(sums.early / k, ridge=lam, name="lam_transition")
    return ridged, torch.cholesky_solve(sums.cross / k, ridged)


def _empty(*shape: int, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=STORED, device=like.device)


def _row_bytes(columns: int) -> float:
    """Memory for one point: its rows of the tables, its moments, weights and intermediate ones."""
    return float(columns * STORED.itemsize + 24 * torch.float64.itemsize)


def last_lengths(lengths: Sequence[int], count: int) -> list[int]:
    """Lengths of what the last `count` rows hold of every sequence."""
    return lengths_outside(lengths, range(sum(lengths) - count))
