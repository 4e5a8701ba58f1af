"""The kernel Bayes filter: no model of the dynamics, none of the sensor, only training sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap, Features, PivotedCholesky, as_feature_map
from kbr.core.filters.belief import Belief, KernelFilterResult
from kbr.core.filters.engine import (
    COMPRESSED_LAM,
    COMPRESSED_SHARE,
    FULL_RANK,
    ActiveSet,
    LowRank,
    Update,
    compress,
)
from kbr.core.filters.operators import FilterOperators, build_operators, fit_map
from kbr.core.filters.result import mean_squared_error
from kbr.core.filters.run import run_filter, smooth
from kbr.core.filters.transition import conditional_leave_one_out, transition_pairs
from kbr.core.filters.tuning import Choice, Progress, edges_hit, split_lengths, validation_start
from kbr.core.inputs import ArrayLike, as_pairs, as_tensor, check_positive
from kbr.core.kernels import Kernel
from kbr.core.ratios import KuLSIF
from kbr.core.rules import ImportanceWeightedRule, Rule

Engine = Literal["auto", "low_rank", "compressed", "active_set"]
SCALES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
WIDTHS = (2.0,)  # bandwidth of x over that of z, in medians; 1 in the paper, 2 is better
ETAS = tuple(10.0 ** (k / 2) for k in range(-14, -5))  # 1e-7 .. 1e-3
TUNING_TOLERANCE = 1e-7  # choosing needs fewer digits than filtering


@dataclass(frozen=True, eq=False)
class _Fitted:
    operators: FilterOperators
    choice: Choice
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(kw_only=True, eq=False, repr=False)
class KernelBayesFilter:
    """Filtering by kernel Bayes' rule, learned from sequences of pairs (x_t, z_t).

    What is None is chosen from the training data alone: eta by KuLSIF's leave-one-out, the bandwidth
    scale and lam by the filter's error on the end of the training sequence. `rule` is the update:
    `ImportanceWeightedRule()` by default; with `normalize=False` it is the paper's algorithm to the
    letter, without normalised weights and without recovery from outliers.

    Ref: Xu et al. 2022, Algorithm 2.
    """

    rule: Rule = field(default_factory=ImportanceWeightedRule)
    eta: float | None = None
    lam_transition: float | None = None
    scales: Sequence[float] = SCALES
    widths: Sequence[float] = WIDTHS
    etas: Sequence[float] = ETAS
    lams: Sequence[float] | None = None
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        for name in ("eta", "lam_transition"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name=name)
        for name in ("scales", "widths", "etas", "lams"):
            grid = getattr(self, name)
            if grid is not None:
                if len(grid) == 0:
                    raise KbrError(f"{name} must hold at least one value; got none.")
                check_positive(torch.as_tensor(tuple(grid)), name=name)
        self._fitted: _Fitted | None = None

    def __repr__(self) -> str:
        if self._fitted is None:
            return f"KernelBayesFilter(rule={type(self.rule).__name__}, not fitted)"
        operators = self._fitted.operators
        return (
            f"KernelBayesFilter(rule={type(self.rule).__name__}, n={operators.n}, "
            f"engine={operators.update.name}, rank_z={operators.phi.shape[-1]})"
        )

    @property
    def operators(self) -> FilterOperators:
        """The fitted operators; an error before `fit`."""
        return self._get().operators

    @property
    def choice(self) -> Choice:
        """The hyper-parameters in use, one for each data set fitted together."""
        return self._get().choice

    def fit(
        self,
        x: ArrayLike | Sequence[Tensor],
        z: ArrayLike | Sequence[Tensor],
        *,
        progress: Progress | None = None,
    ) -> "KernelBayesFilter":
        """Learn from x [*b T ...] and z [*b T dz], or from lists of sequences of any lengths.

        Batch dimensions of z are independent data sets, each with its own hyper-parameters.
        """
        x_, z_, lengths, shape = _training_sequences(x, z)
        dtype = z_.dtype
        x_, z_ = x_.to(torch.float64), z_.to(torch.float64)
        transition_pairs(lengths)
        grid = self._grid()
        lams = self._lams()
        if len(grid) * len(lams) > 1:
            choice = self._tune(x_, z_, lengths, grid, lams, progress)
        else:
            ones = z_.new_ones(z_.shape[:-2])
            scale, width = grid[0]
            choice = Choice(
                scale * width * ones, scale * ones, ones, ones, lams[0] * ones, torch.nan * ones
            )
        tolerance = float((1e-7 * choice.lam.min()).clamp(1e-13, 1e-9))
        latents = fit_map(self._map(self.rule.kernel_z, choice.scale_z, tolerance), z_)
        eta, lam_transition = self._ridges(latents.train, lengths)
        choice = replace(choice, eta=eta, lam_transition=lam_transition)
        update = self._update(x_, choice.scale_x, tolerance, float(choice.lam.min()))
        operators = self._operators(update, latents, z_, lengths, eta, lam_transition)
        self._fitted = _Fitted(operators, choice, shape, dtype)
        return self

    def filter(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step of x [*b *s T ...]; NaN rows are missing and are predicted."""
        fitted = self._get()
        query, seen, lead = self._sequences(x)
        result = run_filter(fitted.operators, query, seen, self._lam(query.shape[-3]))
        return _reshape(result, lead, fitted.dtype)

    def smooth(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step given the whole sequence: filtering, then a backward pass."""
        fitted = self._get()
        query, seen, lead = self._sequences(x)
        forward = run_filter(fitted.operators, query, seen, self._lam(query.shape[-3]))
        choice = fitted.choice
        back = smooth(fitted.operators, forward, eta=choice.eta, lam=choice.lam_transition)
        return _reshape(back, lead, fitted.dtype)

    def init(self) -> Belief:
        """The belief before any observation."""
        return self._belief(self.operators.start(1), 0)

    def step(self, belief: Belief, x: ArrayLike) -> Belief:
        """The belief after one more observation x [*b ...]; NaN anywhere in x: a prediction."""
        operators = self.operators
        query, seen, _ = self._sequences(as_tensor(x, name="x").unsqueeze(self._batch))
        state = belief.state.unsqueeze(-2)
        prior = operators.start(1) if belief.steps == 0 else None
        made = operators.step(prior, state, query[..., 0, :], seen[..., 0], self._lam(1))
        return self._belief(made, belief.steps + 1)

    def forecast(self, belief: Belief, steps: int = 1) -> Belief:
        """The belief `steps` ahead, with no observation in between."""
        if steps < 1:
            raise KbrError(f"steps must be at least 1; got {steps}.")
        for _ in range(steps):
            if belief.steps == 0:
                belief = replace(belief, steps=1)
                continue
            made = self.operators.predict(belief.state.unsqueeze(-2))
            belief = self._belief(made, belief.steps + 1)
        return belief

    def _belief(self, step: "object", steps: int) -> Belief:
        from kbr.core.filters.operators import Step

        assert isinstance(step, Step)
        return Belief(
            self.operators.points,
            step.weights.squeeze(-2),
            step.state.squeeze(-2),
            step.evidence.squeeze(-1),
            steps,
        )

    def _get(self) -> _Fitted:
        if self._fitted is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._fitted

    @property
    def _batch(self) -> int:
        return self.operators.points.ndim - 2

    def _lam(self, sequences: int) -> Tensor:
        lam = self.choice.lam
        return lam.unsqueeze(-1).expand(*lam.shape, sequences)

    def _lams(self) -> tuple[float, ...]:
        if self.rule.lam is not None:
            return (float(self.rule.lam),)
        return tuple(self.lams) if self.lams is not None else self.rule.LAMS

    def _grid(self) -> list[tuple[float, float]]:
        """Pairs (scale, width of x over z) to try; kernels with a bandwidth are left alone."""
        x_free, z_free = _is_free(self.rule.kernel_x), _is_free(self.rule.kernel_z)
        scales = tuple(self.scales) if x_free or z_free else (1.0,)
        widths = tuple(self.widths) if x_free else (1.0,)
        return [(scale, width) for scale in scales for width in widths]

    def _map(
        self, kernel: Kernel | FeatureMap, scale: float | Tensor, tolerance: float
    ) -> FeatureMap:
        if not isinstance(kernel, Kernel):
            return kernel
        if _is_free(kernel):
            kernel = replace(kernel, scale=kernel.scale * scale)
        made = as_feature_map(kernel)
        return replace(made, tolerance=tolerance) if isinstance(made, PivotedCholesky) else made

    def _update(
        self, x: Tensor, scale: float | Tensor, tolerance: float, lam: float, loose: bool = False
    ) -> Update:
        """The form that fits these data, or the one the user asked for."""
        n = x.shape[-2]
        chosen = self._map(self.rule.kernel_x, scale, tolerance)
        limit = int(n * FULL_RANK)
        if isinstance(chosen, PivotedCholesky) and self.engine == "auto":
            chosen = replace(chosen, max_rank=limit + 1)
        if isinstance(chosen, PivotedCholesky) and self.engine == "active_set":
            return self._active_set(chosen, x)
        features = fit_map(chosen, x)
        rank = features.train.shape[-1]
        if isinstance(chosen, PivotedCholesky) and self.engine == "auto" and rank > limit:
            return self._active_set(chosen, x)
        if self.engine == "low_rank":
            return LowRank(features)
        if self.engine == "auto" and lam < COMPRESSED_LAM and not loose:
            return LowRank(features)
        # psi_i psi_i' is off by the root of the tolerance, which must stay far below lam.
        compressed = compress(features, tolerance=1e-14 if not loose else max(1e-14, 1e-3 * lam**2))
        small = compressed.pivots.shape[-2] < COMPRESSED_SHARE * n
        return compressed if small or self.engine == "compressed" else LowRank(features)

    def _active_set(self, chosen: PivotedCholesky, x: Tensor) -> ActiveSet:
        kernel = chosen.kernel.fit(x)
        empty = Features(x.new_zeros(*x.shape[:-1], 0), lambda query: query, kernel)
        return ActiveSet(empty, x, kernel(x, x))

    def _ridges(self, phi: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """eta (leave-one-out unless given) and the transition's ridge (eta unless given)."""
        ones = phi.new_ones(phi.shape[:-2])
        given = self.eta
        if given is None and isinstance(self.rule.ratio, KuLSIF):
            fixed = self.rule.ratio.eta
            given = None if fixed is None else float(fixed)
        if given is not None:
            eta = given * ones
        else:
            before, after = (i.to(phi.device) for i in transition_pairs(lengths))
            scores = conditional_leave_one_out(
                phi, phi.index_select(-2, before), phi.index_select(-2, after), self.etas
            )
            eta = phi.new_tensor(self.etas)[scores.argmin(0)]
        return eta, eta if self.lam_transition is None else self.lam_transition * ones

    def _operators(
        self,
        update: Update,
        latents: Features,
        z: Tensor,
        lengths: Sequence[int],
        eta: Tensor,
        lam_transition: Tensor,
    ) -> FilterOperators:
        return build_operators(
            self.rule,
            update,
            latents,
            z,
            lengths,
            eta=eta,
            lam_transition=lam_transition,
            normalize=getattr(self.rule, "normalize", False),
        )

    def _tune(
        self,
        x: Tensor,
        z: Tensor,
        lengths: Sequence[int],
        grid: list[tuple[float, float]],
        lams: tuple[float, ...],
        progress: Progress | None,
    ) -> Choice:
        """Score every scale with all lams as one batch; nothing but training data is seen."""
        cut = validation_start(z.shape[-2])
        fit_lengths, pieces = split_lengths(lengths, cut)
        x_fit, z_fit = x[..., :cut, :], z[..., :cut, :]
        batch = z.shape[:-2]
        lam = x.new_tensor(lams).expand(*batch, len(lams))
        fixed = Choice(*(x.new_ones(batch) for _ in range(6)))
        scores = []
        cache: dict[float, tuple[Features, Tensor, Tensor]] = {}
        for scale, width in progress(grid) if progress is not None else grid:
            if scale not in cache:
                cache.clear()
                latents = fit_map(self._map(self.rule.kernel_z, scale, TUNING_TOLERANCE), z_fit)
                cache[scale] = (latents, *self._ridges(latents.train, fit_lengths))
            latents, eta, lam_transition = cache[scale]
            update = self._update(x_fit, scale * width, TUNING_TOLERANCE, min(lams), loose=True)
            operators = self._operators(update, latents, z_fit, fit_lengths, eta, lam_transition)
            total = x.new_zeros(*batch, len(lams))
            for start, stop in pieces:
                query = update.observe(x[..., start:stop, :]).unsqueeze(-3)
                query = query.expand(*batch, len(lams), *query.shape[-2:])
                seen = torch.ones(query.shape[:-1], dtype=torch.bool, device=x.device)
                mean = run_filter(operators, query, seen, lam).mean
                truth = z[..., start:stop, :].unsqueeze(-3)
                total += (stop - start) * mean_squared_error(mean, truth.expand_as(mean))
            scores.append(total / (z.shape[-2] - cut))
        table = torch.stack(scores)
        table = torch.where(table.isfinite(), table, torch.inf).movedim(-1, 1)
        best, index = table.flatten(0, 1).min(0)
        if not bool(best.isfinite().all()):
            raise KbrError("no setting of the grid gave finite errors: raise lams or scales.")
        pair = x.new_tensor(grid)[index // len(lams)]
        chosen = replace(
            fixed,
            scale_z=pair[..., 0],
            scale_x=pair[..., 0] * pair[..., 1],
            lam=x.new_tensor(lams)[index % len(lams)],
            val_mse=best,
        )
        edges = edges_hit("scale", chosen.scale_z, [scale for scale, _ in grid])
        return replace(chosen, edges=(*edges, *edges_hit("lam", chosen.lam, lams)))

    def _sequences(self, x: ArrayLike) -> tuple[Tensor, Bool[Tensor, "*b s t"], tuple[int, ...]]:
        """Coordinates of observations [*b s t c], which of them are there, and the shape of s."""
        fitted = self._get()
        batch = tuple(fitted.operators.points.shape[:-2])
        tensor = as_tensor(x, name="x").to(fitted.operators.phi)
        tail = len(fitted.shape)
        lead = tensor.shape[: tensor.ndim - tail]
        short = len(lead) < len(batch) + 1
        if short or tuple(tensor.shape[len(lead) :]) != fitted.shape or lead[: len(batch)] != batch:
            raise KbrError(
                f"observations x must have shape {[*batch, '...', 'T', *fitted.shape]}, as in "
                f"training; got {list(tensor.shape)}."
            )
        sequences, steps = tuple(lead[len(batch) : -1]), lead[-1]
        flat = tensor.reshape(*batch, -1, steps, max(1, tensor[(0,) * len(lead)].numel()))
        seen = flat.isfinite().all(-1)
        flat = torch.where(seen.unsqueeze(-1), flat, torch.zeros_like(flat))
        query = fitted.operators.update.observe(flat.flatten(-3, -2))
        return query.unflatten(-2, flat.shape[-3:-1]), seen, sequences


def _is_free(kernel: Kernel | FeatureMap) -> bool:
    from kbr.core.kernels import Linear

    return (
        isinstance(kernel, Kernel) and kernel.bandwidth is None and not isinstance(kernel, Linear)
    )


def _training_sequences(
    x: ArrayLike | Sequence[Tensor], z: ArrayLike | Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[int], tuple[int, ...]]:
    """Checked pairs laid end to end, with the sequences' lengths and one observation's shape."""
    if isinstance(x, list | tuple) and isinstance(z, list | tuple):
        if len(x) != len(z):
            raise KbrError(f"x and z must be as many sequences; got {len(x)} of x, {len(z)} of z.")
        parts = [as_pairs(a, b) for a, b in zip(x, z, strict=True)]
        shapes = {part[2] for part in parts}
        if len(shapes) != 1:
            raise KbrError(f"all sequences need observations of one shape; got {sorted(shapes)}.")
        joined = [torch.cat([part[i] for part in parts], -2) for i in (0, 1)]
        return joined[0], joined[1], [part[1].shape[-2] for part in parts], shapes.pop()
    x_, z_, shape = as_pairs(x, z)  # type: ignore[arg-type]
    return x_, z_, [z_.shape[-2]], shape


def _reshape(
    result: KernelFilterResult, sequences: tuple[int, ...], dtype: torch.dtype
) -> KernelFilterResult:
    """Sequences back in the caller's shape and dtype."""

    def shaped(t: Tensor, trailing: int) -> Tensor:
        axis = t.ndim - trailing - 1
        made = t.reshape(*t.shape[:axis], *sequences, *t.shape[axis + 1 :])
        return made.to(dtype) if made.is_floating_point() else made

    assert result.effective_sample_size is not None
    assert result.states is not None
    return KernelFilterResult(
        shaped(result.mean, 2),
        shaped(result.cov, 3),
        shaped(result.evidence, 1),
        shaped(result.effective_sample_size, 1),
        shaped(result.states, 2),
    )
