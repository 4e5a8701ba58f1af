"""`partial_fit`: more training pairs for a filter that is fitted already."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Features
from kbr.core.filters.belief import KernelBelief
from kbr.core.filters.kernel.engine import LowRank
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.growing.more_rows import with_rows
from kbr.core.filters.kernel.operators import LearnedOperators
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storing.saving import SavedFilter

BADLY = 0.3  # share of k(z, z) that features may leave out of a new row
COMPARED = 512  # rows of the fit, evenly spaced, that new rows are compared with

Share = Float[Tensor, "*b _"]
Growable = TypeVar("Growable", bound="GrowingFilter")


class GrowingFilter(SavedFilter):
    """A filter that takes more pairs later."""

    def partial_fit(
        self: Growable,
        x: Any,
        z: Any,
        *,
        u: Any = None,
        time: Any = None,
        continues: bool = False,
        **about: Any,
    ) -> Growable:
        """Learn from more pairs x [*b T ...], z [*b T dz], or lists of sequences, as `fit` does.

        What `fit` chose stays: units, bandwidths, ridges, the features' pivots, and calibration,
        also that of smoothing. Sums and tables grow by the new rows, so that the filter is the one
        that a fit to all rows with these features gives. One warning tells where features made from
        the rows of the fit represent new ones badly; and where the data have become other or many
        more, `fit` to all of them chooses better.

        The new rows begin a sequence, unless the first of them `continues` where the last one
        ended: then the step between both is learned too. Tables may hold columns in any order.
        Of a filter that is not fitted yet this is `fit`, which `about` is for.
        """
        if self._fitted is None:
            return self.fit(x, z, u=u, time=time, **about)
        if about:
            raise KbrError(
                f"{', '.join(about)} was settled by the first fit and stays. Leave it out, or call "
                "fit with all rows."
            )
        fitted = self._fitted
        if fitted.data.landmarks is not None:
            raise KbrError(
                "a compressed filter has no longer the pairs that new ones would join. Call "
                "partial_fit on the filter that it came from, and compress again."
            )
        data = with_rows(fitted, x, z, u=u, time=time, continues=continues)
        grown = fitted.grown(data)
        warn_of_unlike(grown, fitted)
        self._fitted = grown
        return self


def check_belief(belief: KernelBelief, operators: Operators) -> None:
    """A belief lives on after rows were added if its coordinates do; one of no step does not."""
    points = belief.weights.shape[-1] if belief.steps == 0 else operators.n
    if belief.state.shape[-1] != operators.rank or points != operators.n:
        raise KbrError(
            f"this belief is of another filter, or of this one before partial_fit: it has "
            f"{belief.weights.shape[-1]:,} weights, and the filter {operators.n:,} points. Begin "
            "with init()."
        )


def warn_of_unlike(grown: Fitted, before: Fitted) -> None:
    """One warning if features leave out more of new rows than of any row of the fit, and much.

    Math: the share 1 - |phi(z)|^2 / k(z, z); the same for x, and for (z, u) of steps with controls.
    """
    words = []
    for name, first, new in _left_out(grown, before):
        limit = first.amax(-1, keepdim=True).clamp_min(BADLY)
        count = int((new > limit).reshape(-1, new.shape[-1]).any(0).sum())
        words += [f"{name} of {count}"] if count else []
    said = []
    if words:
        said.append(
            f"of {grown.n - before.n} new rows, {', '.join(words)} lie where there were none in "
            "fit: features are made from the rows of fit and represent these badly, so that little "
            "is learned from them"
        )
    engines = [fitted.operators.update.name for fitted in (before, grown)]
    if engines[0] != engines[1]:
        said.append(f"the {engines[0]} engine would need as many pivots again: {engines[1]} now")
    if said:
        warnings.warn(f"{'; '.join(said)}. Call fit with all rows.", stacklevel=3)


def _left_out(grown: Fitted, before: Fitted) -> Iterator[tuple[str, Share, Share]]:
    """Names, and shares that features leave out of some rows of the fit and of all new rows."""
    data, operators, first = grown.data, grown.operators, grown.data.founding
    sides: list[tuple[str, object, Tensor]] = [("z", grown.latents, data.z)]
    if isinstance(operators.update, LowRank):
        sides.append(("x", operators.update.features, data.observed))
    for name, features, points in sides:
        if isinstance(features, Features) and features.kernel is not None:
            counts = (first.z.shape[-2], before.n)
            whole = (features.kernel.diagonal(rows) for rows in _rows(points, *counts))
            yield name, *_shares(whole, _rows(features.train, *counts))
    if isinstance(operators, LearnedOperators) and operators.lift is not None:
        assert isinstance(before.operators, LearnedOperators)
        counts = (sum(first.lengths) - len(first.lengths), len(before.operators.before))
        starts = operators.phi.index_select(-2, operators.before)
        whole = (rows.square().sum(-1) for rows in _rows(starts, *counts))
        yield "u", *_shares(whole, _rows(operators.lift.rows, *counts))


def _rows(table: Float[Tensor, "*b n p"], first: int, known: int) -> tuple[Tensor, Tensor]:
    """Some of the first rows, evenly spaced, and all after those known, in float64."""
    some = torch.linspace(0, first - 1, min(first, COMPARED), device=table.device).round().long()
    return table.index_select(-2, some).double(), table[..., known:, :].double()


def _shares(whole: Iterable[Tensor], kept: tuple[Tensor, Tensor]) -> tuple[Share, Share]:
    first, new = (
        torch.where(k > 0, 1 - rows.square().sum(-1) / k, 0.0)
        for k, rows in zip(whole, kept, strict=True)
    )
    return first, new
