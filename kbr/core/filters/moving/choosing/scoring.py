"""How good beliefs of a model are at rows that it does not know, and whether others are better."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.filters.moving.model import MovingModel, Tempering
from kbr.core.filters.sequences import LEAD, Piece, split
from kbr.core.uncertainty.regions import squared_mahalanobis, widened

GAIN = 0.05  # by which another setting's score must be lower, on 200 steps
STEPS = 200
SURE = 1.1  # standard errors, likewise, to be sure: one piece alone makes a difference of one
DOF = 4.0  # of the t distribution that beliefs are scored by
TRIED = 200  # points while settings are compared


@dataclass(frozen=True, eq=False)
class Part:
    """A block of rows, a model of the others, and what of the block is filtered by it."""

    block: range
    model: MovingModel
    pieces: list[Piece]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """How good beliefs of the answered latents are, once a filter has found the track.

    scores   of each piece of rows, low where errors e are small and covariances C, before
             calibration, fit them: mean of (log det C + (v + dz) log(1 + e'C^-1 e / v)) / dz, of a
             Student's t with v degrees of freedom, so that a lost track does not decide alone;
    steps    of each piece that these are means of;
    mse      the mean squared error.
    """

    scores: Float[Tensor, "p"]
    steps: Float[Tensor, "p"]
    mse: float

    @property
    def score(self) -> float:
        return float((self.scores * self.steps).sum() / self.steps.sum())

    def better_than(self, other: "HeldOut", *, sure: bool = False) -> bool:
        """Whether the score is lower by more than chance makes it; with `sure`, in most pieces.

        Math: d < -GAIN (STEPS / n)^.5,  d the mean difference over n steps; and d < -SURE s, s its
              standard error where steps of a piece are alike, so that pieces count, not steps.
        """
        steps, total, count = self.steps, float(self.steps.sum()), len(self.steps)
        apart = self.scores - other.scores
        lower = float((apart * steps).sum()) / total
        least = GAIN * math.sqrt(STEPS / total)
        if sure and count > 1:
            squares = float(((apart - lower) * steps).square().sum())
            least = max(least, SURE * math.sqrt(squares * count / (count - 1)) / total)
        return lower < -least


def held_out(parts: Iterable[Part], temperings: Sequence[Tempering], rates: int) -> list[HeldOut]:
    """Of models with these temperings and fewer points, each on its own block."""
    scores: list[Tensor] = []
    squares: list[Tensor] = []
    counts: list[Tensor] = []
    for part in parts:
        x, z, there = side_by_side(part.pieces, part.model.controls)
        each = Tempering.each([one for one in temperings for _ in x], part.model.start)
        model = part.model.tempered(each, particles=min(TRIED, part.model.particles))
        rows, u = split(x.repeat(len(temperings), 1, 1), model.controls)
        result, kept = model.filtered(rows, u), z.shape[-1] - rates
        mean, cov = result.mean[..., :kept], result.cov[..., :kept, :kept]
        truth = z[..., :kept].repeat(len(temperings), 1, 1)
        volume = torch.linalg.slogdet(widened(cov)).logabsdet
        far = squared_mahalanobis(mean, cov, truth)
        score = (volume + (DOF + kept) * torch.log1p(far / DOF)) / kept
        for found, row in ((scores, score), (squares, (mean - truth).square().sum(-1))):
            found.append((row.unflatten(0, (len(temperings), -1)) * there).sum(-1))
        counts.append(there.sum(-1))
    steps = torch.cat(counts).to(torch.float64)
    mse = torch.cat(squares, -1).sum(-1) / steps.sum()
    means = torch.cat(scores, -1) / steps
    return [HeldOut(*one) for one in zip(means, steps.expand_as(means), mse.tolist(), strict=True)]


def side_by_side(
    pieces: Sequence[Piece], controls: int = 0
) -> tuple[Float[Tensor, "p t dx"], Float[Tensor, "p t dz"], Bool[Tensor, "p t"]]:
    """Pieces of any length as one batch, and which of its steps count.

    After the end of a piece nothing is observed; in its beginning a filter finds the track.
    """
    longest = max(len(piece.z) for piece in pieces)
    x = pieces[0].x.new_zeros(len(pieces), longest, pieces[0].x.shape[-1])
    split(x, controls)[0].fill_(torch.nan)
    z = x.new_zeros(len(pieces), longest, pieces[0].z.shape[-1])
    there = torch.zeros(len(pieces), longest, dtype=torch.bool, device=x.device)
    for k, piece in enumerate(pieces):
        steps = len(piece.z)
        x[k, :steps], z[k, :steps] = piece.x, piece.z
        there[k, min(LEAD, steps // 2) : steps] = True
    return x, z, there
