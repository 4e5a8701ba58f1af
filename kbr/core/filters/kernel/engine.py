"""One update of the kernel Bayes filter in rank-sized operations, for many sequences at once.

With finite features Phi of the latents and Psi of the observations, the ratio, the update and the
embedding cost O(n rank) each. What remains is second = Psi' diag(r) Psi, in four forms:

    low_rank    the product itself, O(n d^2);
    compressed  second is linear in r and lies in the span of psi_q psi_q' of q pivots (a pivoted
                Cholesky factor of the elementwise square of the Gram matrix), O(n q + q d^2);
    active_set  no features of x at all: the Gram matrix of the points with r_i > 0, for kernels of
                full rank (images, tiny bandwidths);
    local       the same for many points, on those near the prediction and the observation: see
                `engines/local.py`.

Shapes: *b data sets fitted together, s sequences (or ridges) filtered together in each.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap, Features, pivot_triangle, take_rows
from kbr.core.kernels import Kernel
from kbr.core.linalg import pivoted_cholesky
from kbr.core.rules import Rule
from kbr.core.tables import at_rows, blocks, by_feature, extended, sum_rows, weighted_gram

Points = Float[Tensor, "*b q dx"]
Coordinates = Float[Tensor, "*b q c"]
Weights = Float[Tensor, "*b s n"]
State = Float[Tensor, "*b s p"]
Query = Float[Tensor, "*b s c"]
Ridge = Float[Tensor, "*b s"]
Flags = Bool[Tensor, "*b s"]
# Of points with these features over the pivots, and the part of each that is left out.
Mixing = Callable[[Tensor], tuple[Tensor, Tensor]]

ENGINES = ("auto", "low_rank", "compressed", "active_set", "local")

LEFT_OUT = 1e-9  # of k(x, x)^2: less is lost in rounding
GROUP = 2**17  # numbers in the Gram matrices that are solved at once: 1 MB, in the cache


@runtime_checkable
class Update(Protocol):
    """Weights of the posterior from the ratio and the observation's coordinates."""

    @property
    def name(self) -> str: ...

    def observe(self, x: Points) -> Coordinates:
        """Coordinates of observations, computed once for a whole sequence."""
        ...

    def weights(self, rule: Rule, ratio: Weights, query: Query, lam: Ridge) -> Weights: ...


@runtime_checkable
class Engine(Protocol):
    """Builds the update: what the setting `engine` may be, besides a name.

    Dataclasses derived from it can be saved.
    """

    def build(self, features: FeatureMap, x: Float[Tensor, "*b n dx"], *, lam: float) -> Update:
        """The update on training observations x, for ridges of `lam` and more.

        `features` has the chosen bandwidth: `features.fit(x)`, or its `kernel` where it has one.
        """
        ...


@runtime_checkable
class Growing(Protocol):
    """An update that more training observations can be added to: for `partial_fit`."""

    def grown(self, x: Points, *, lam: float) -> Update:
        """The same update with these too, after the others, for ridges of `lam` and more."""
        ...


def with_more(update: Update, x: Points, lam: float) -> Update:
    """The update with more training observations, where it takes them."""
    if not isinstance(update, Growing):
        raise KbrError(
            f"the update {type(update).__name__} of an engine of your own cannot take more rows. "
            "Give it a method grown(x, lam) that returns it with these observations too, or call "
            "fit with all rows."
        )
    return update.grown(x, lam=lam)


@dataclass(frozen=True, eq=False)
class LowRank:
    """second = Psi' diag(r) Psi by one product per sequence."""

    features: Features
    name: ClassVar[str] = "low_rank"

    def grown(self, x: Points, *, lam: float) -> "LowRank":
        return replace(self, features=self.features.grown(x))

    def by_feature(self) -> "LowRank":
        """The same update with its tables laid out for steps of one sequence."""
        return replace(self, features=self.features.by_feature())

    def observe(self, x: Points) -> Coordinates:
        return self.features(x)

    def second(self, ratio: Weights) -> Float[Tensor, "*b s d d"]:
        return weighted_gram(ratio, self.features.train)

    def weights(self, rule: Rule, ratio: Weights, query: Query, lam: Ridge) -> Weights:
        psi = self.features.train
        if is_shared(ratio, lam):
            second = self.second(ratio[..., :1, :]).squeeze(-3)
            s = rule.coefficients(second, query.mT, psi.shape[-2], lam[..., 0]).mT
        else:
            columns = query.unsqueeze(-1)
            s = rule.coefficients(self.second(ratio), columns, psi.shape[-2], lam).squeeze(-1)
        return ratio * at_rows(s, psi)


@dataclass(frozen=True, eq=False)
class Compressed(LowRank):
    """second = Psi_q' diag(T'r) Psi_q with few pivots q, exact on the squared kernel's span."""

    mixing: Float[Tensor, "*b n q"]
    pivots: Float[Tensor, "*b q d"]
    mix: Mixing  # over the first pivots, `base` of them
    base: int
    name: ClassVar[str] = "compressed"

    def grown(self, x: Points, *, lam: float) -> LowRank:
        """New points that the pivots leave out too much of become pivots themselves.

        Too much is psi_i psi_i' off by half of lam: with less, second + n lam I stays positive. If
        that makes twice the pivots or more, compression no longer pays.
        """
        update, left = self.filled(x)
        whole = self.pivots.square().sum(-1).square().amax(-1, keepdim=True)
        off = left > (LEFT_OUT * whole).clamp_min((lam / 2) ** 2)
        n, rows = self.mixing.shape[-2], off.reshape(-1, off.shape[-1]).any(0).nonzero().squeeze(-1)
        few = len(rows) + self.pivots.shape[-2] < 2 * self.base
        return update.with_pivots(n + rows) if few else LowRank(update.features)

    def filled(self, x: Points) -> tuple["Compressed", Float[Tensor, "*b m"]]:
        """With more points over the same pivots, and what these leave out of each."""
        n, more, left = self.mixing.shape[-2], x.shape[-2], []
        psi, mixing = (extended(table, more) for table in (self.features.train, self.mixing))
        mixing[..., n:, self.base :] = 0.0
        for rows in blocks(more):
            at, some = slice(n + rows.start, n + rows.stop), self.features(x[..., rows, :].double())
            mixed, lost = self.mix(some)
            psi[..., at, :], mixing[..., at, : self.base] = some, mixed
            left.append(lost)
        update = replace(self, features=replace(self.features, train=psi), mixing=mixing)
        return update, torch.cat(left, -1)

    def with_pivots(self, rows: Int[Tensor, "k"]) -> "Compressed":
        """These points are pivots too, each over itself alone."""
        if not len(rows):
            return self
        pivots = self.features.train.index_select(-2, rows).to(self.pivots)
        mixing = self.mixing.index_fill(-2, rows, 0.0)
        own = mixing.new_zeros(*mixing.shape[:-1], len(rows))
        own[..., rows, torch.arange(len(rows), device=rows.device)] = 1.0
        mixing, pivots = torch.cat([mixing, own], -1), torch.cat([self.pivots, pivots], -2)
        return replace(self, mixing=mixing, pivots=pivots)

    def second(self, ratio: Weights) -> Float[Tensor, "*b s d d"]:
        return weighted_gram(sum_rows(ratio, self.mixing), self.pivots)

    def by_feature(self) -> "Compressed":
        made, tables = super().by_feature(), (self.mixing, self.pivots)
        mixing, pivots = (by_feature(table) for table in tables)
        return replace(self, features=made.features, mixing=mixing, pivots=pivots)


@dataclass(frozen=True, eq=False)
class ActiveSet:
    """Gram form on the points with a ratio, for groups of sequences that have about as many."""

    kernel: Kernel
    points: Float[Tensor, "*b n dx"]
    gram: Float[Tensor, "*b n n"]
    name: ClassVar[str] = "active_set"

    def grown(self, x: Points, *, lam: float) -> "ActiveSet":
        points = torch.cat([self.points, x.to(self.points)], -2)
        n, below = self.points.shape[-2], self.kernel(x.to(self.points), points)
        right = torch.cat([self.gram, below[..., :n].mT], -1)
        return replace(self, points=points, gram=torch.cat([right, below], -2))

    def observe(self, x: Points) -> Coordinates:
        return self.kernel(x, self.points)

    def weights(self, rule: Rule, ratio: Weights, query: Query, lam: Ridge) -> Weights:
        lams = lam.expand(ratio.shape[:-1])
        if is_shared(ratio, lam):  # its sequences are columns of one system
            each = self._columns(rule, ratio[..., :1, :], query.mT.unsqueeze(-3), lams[..., :1])
            return each.squeeze(-3).mT
        cross = query.expand_as(ratio).unsqueeze(-1)
        return self._columns(rule, ratio, cross, lams).squeeze(-1)

    def _columns(
        self, rule: Rule, ratio: Weights, query: Float[Tensor, "*b s n c"], lam: Ridge
    ) -> Float[Tensor, "*b s n c"]:
        """Weights at c observations for each ratio."""
        *lead, n, c = query.shape
        flat, cross, lams = ratio.reshape(-1, n), query.reshape(-1, n, c), lam.reshape(-1)
        grams = self.gram.reshape(-1, n, n)
        owner = torch.arange(len(flat), device=ratio.device) // ratio.shape[-2]
        counts = (flat != 0).sum(-1)
        order = counts.argsort()
        parts = []
        for some in torch.split(order, max(1, GROUP // max(int(counts.max()), 1) ** 2)):
            r = flat[some]
            index = r.abs().topk(max(int(counts[some[-1]]), 1), -1).indices
            index = index.sort(-1).values  # read in order, rows and columns are quicker found
            rows = grams[owner[some].unsqueeze(-1), index]
            gram = rows.gather(-1, index.unsqueeze(-2).expand(-1, index.shape[-1], -1))
            at, near = index.unsqueeze(-1).expand(-1, -1, c), cross[some]
            part = rule.gram_weights(gram, near.gather(-2, at), r.gather(-1, index), n, lams[some])
            parts.append(torch.zeros_like(near).scatter(-2, at, part))
        return torch.cat(parts)[order.argsort()].reshape(*lead, n, c)


def is_shared(ratio: Weights, lam: Ridge) -> bool:
    """Whether all sequences have one ratio and one ridge, expanded: one factor then serves all.

    So it is at the first step, before any of them has seen an observation.
    """
    several = ratio.shape[-2] > 1 and ratio.stride(-2) == 0
    return several and lam.expand(ratio.shape[:-1]).stride(-1) == 0


def compress(features: Features, *, tolerance: float) -> Compressed:
    """Pivots and mixing of the squared Gram matrix.

    Math: <psi_i psi_i', psi_j psi_j'> = k(x_i, x_j)^2, so k^2 ~ T k_q^2 gives
          psi_i psi_i' ~ sum_q T_iq psi_q psi_q'.
    """
    psi = features.train
    factor, pivots = square_pivots(psi, tolerance=tolerance)
    triangle, used = pivot_triangle(factor, pivots)
    mixing = torch.linalg.solve_triangular(triangle, factor, upper=False, left=False)
    few = by_feature(take_rows(psi, pivots))
    mix = mixer(few, triangle, used)
    return Compressed(features, mixing.contiguous(), few, mix, few.shape[-2])


def mixer(
    pivots: Float[Tensor, "*b q d"], triangle: Float[Tensor, "*b q q"], used: Bool[Tensor, "*b q"]
) -> Mixing:
    """The mixing of any point over the pivots.

    Math: T(x) = K_qq^-1 k(q, x)^2 with K_qq the pivots' squared Gram matrix = triangle triangle';
          it leaves out k(x, x)^2 - |triangle^-1 k(q, x)^2|^2.
    """

    def mixing(psi: Float[Tensor, "*b m d"]) -> tuple[Tensor, Tensor]:
        squared = (pivots @ psi.mT).square() * used.unsqueeze(-1)
        half = torch.linalg.solve_triangular(triangle, squared, upper=False)
        mixed = torch.linalg.solve_triangular(triangle.mT, half, upper=True).mT
        return mixed, psi.square().sum(-1).square() - half.square().sum(-2)

    return mixing


def beside_unit(lam: float, psi: Float[Tensor, "*b n d"]) -> float:
    """The ridge beside features of length one: those of a network may be far longer."""
    return lam / max(float(psi.square().sum(-1).max()), 1.0)


def square_pivots(
    psi: Float[Tensor, "*b n d"], *, tolerance: float, max_rank: int | None = None
) -> tuple[Float[Tensor, "*b n q"], Int[Tensor, "*b q"]]:
    """Pivoted Cholesky factor of the elementwise square of the Gram matrix, and its pivots."""

    def column(index: Tensor) -> Tensor:
        return (psi @ take_rows(psi, index.unsqueeze(-1)).mT).squeeze(-1).square()

    diagonal = psi.square().sum(-1).square()
    return pivoted_cholesky(diagonal, column, tolerance=tolerance, max_rank=max_rank)
