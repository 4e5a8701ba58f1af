"""The kernel Bayes filter: no model of the dynamics or the sensor, only training sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief, KernelFilterResult
from kbr.core.filters.operators import FilterOperators, Step
from kbr.core.filters.recipe import Engine, Recipe, latent_tolerance, observation_tolerance
from kbr.core.filters.run import run_filter, run_smoother
from kbr.core.filters.transition import transition_pairs
from kbr.core.filters.tuning import CHOICES, Choice, Progress, choose, with_ridges
from kbr.core.inputs import ArrayLike, as_pairs, as_tensor
from kbr.core.rules import ImportanceWeightedRule, Rule

SCALES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
WIDTHS = (2.0,)  # bandwidth of x over that of z, in medians: 1 in the paper, 2 filters better
ETAS = tuple(10.0 ** (k / 2) for k in range(-14, -5))  # 1e-7 .. 1e-3


@dataclass(frozen=True, eq=False)
class _Fitted:
    """What `fit` leaves: the training data, what was chosen, and the operators made from both."""

    x: Float[Tensor, "*b n dx"]
    lengths: list[int]
    shape: tuple[int, ...]
    choice: Choice
    operators: FilterOperators


@dataclass(kw_only=True, eq=False, repr=False)
class KernelBayesFilter:
    """Filtering by kernel Bayes' rule, learned from sequences of pairs (x_t, z_t).

    What is None is chosen from the training data alone: eta by KuLSIF's leave-one-out, bandwidths
    and lam by the filter's error on the end of the training sequence. `rule` is the update; with
    `ImportanceWeightedRule(normalize=False)` and `widths=(1,)` this is the paper's algorithm to the
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
        names = ("rule", "eta", "lam_transition", "scales", "widths", "etas", "lams", "engine")
        self._recipe = Recipe(**{name: getattr(self, name) for name in names})
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
        """The fitted operators."""
        return self._get().operators

    @property
    def choice(self) -> Choice:
        """The hyper-parameters in use, one for each data set fitted together."""
        return self._get().choice

    def fit(
        self,
        x: ArrayLike | Sequence[ArrayLike],
        z: ArrayLike | Sequence[ArrayLike],
        *,
        progress: Progress | None = None,
    ) -> "KernelBayesFilter":
        """Learn from x [*b T ...] and z [*b T dz], or from lists of sequences of any lengths.

        Batch dimensions of z are independent data sets, each with its own hyper-parameters.
        """
        x_, z_, lengths, shape = training_sequences(x, z)
        transition_pairs(lengths)  # fails early where there is no step to learn from
        wide_x, wide_z = x_.to(torch.float64), z_.to(torch.float64)
        choice = choose(self._recipe, wide_x, wide_z, lengths, progress)
        self._fitted = self._finish(x_, wide_z, lengths, shape, choice)
        return self

    def filter(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step of x [*b *s T ...]; rows with NaN are missing and are predicted."""
        query, seen, sequences = self._sequences(x)
        result = run_filter(self.operators, query, seen, self._lam(query.shape[-3]))
        return _reshape(result, sequences)

    def smooth(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step given the whole sequence, past and future."""
        query, seen, sequences = self._sequences(x)
        lam, backward = self._lam(query.shape[-3]), self.choice.lam_transition
        result = run_smoother(self.operators, query, seen, lam, backward)
        return _reshape(result, sequences)

    def init(self) -> Belief:
        """The belief before any observation: every training latent equally likely."""
        return self._belief(self.operators.start(1), 0)

    def step(self, belief: Belief, x: ArrayLike) -> Belief:
        """The belief after one more observation x [*b ...]; NaN in x: a prediction only."""
        batch, one = self.operators.points.shape[:-2], as_tensor(x, name="x")
        expected = (*batch, *self._get().shape)
        if tuple(one.shape) != expected:
            raise KbrError(
                f"a step takes one observation x of shape {list(expected)}; got "
                f"{list(one.shape)}. For whole sequences use filter(x)."
            )
        query, seen, _ = self._sequences(one.unsqueeze(len(batch)))
        prior = self.operators.start(1) if belief.steps == 0 else None
        state = belief.state.unsqueeze(-2)
        made = self.operators.step(prior, state, query[..., 0, :], seen[..., 0], self._lam(1))
        return self._belief(made, belief.steps + 1)

    def forecast(self, belief: Belief, steps: int = 1) -> Belief:
        """The belief `steps` ahead, with no observation in between."""
        if steps < 1:
            raise KbrError(f"steps must be at least 1; got {steps}.")
        for _ in range(steps):
            # Before the first observation, the start itself is the prediction of step 1.
            made = self.operators.predict(belief.state.unsqueeze(-2))
            ahead = self._belief(made, belief.steps + 1)
            belief = ahead if belief.steps else replace(belief, steps=1)
        return belief

    def state(self) -> dict[str, object]:
        """Plain tensors and numbers from which `restore` makes the same filter again."""
        fitted = self._get()
        choice = {name: getattr(fitted.choice, name) for name in CHOICES}
        return {
            "x": fitted.x,
            "z": fitted.operators.points,
            "lengths": list(fitted.lengths),
            "shape": list(fitted.shape),
            "choice": choice,
            "edges": list(fitted.choice.edges),
        }

    def restore(self, state: dict[str, object]) -> "KernelBayesFilter":
        """The inverse of `state`, for a filter constructed with the same hyper-parameters."""
        x, z, values = state["x"], state["z"], state["choice"]
        lengths, shape, edges = state["lengths"], state["shape"], state["edges"]
        assert isinstance(x, Tensor)
        assert isinstance(z, Tensor)
        assert isinstance(values, dict)
        assert isinstance(lengths, list)
        assert isinstance(shape, list)
        assert isinstance(edges, list)
        choice = Choice(**values, edges=tuple(edges))
        self._fitted = self._finish(x, z, lengths, tuple(shape), choice)
        return self

    def _finish(
        self, x: Tensor, z: Tensor, lengths: list[int], shape: tuple[int, ...], choice: Choice
    ) -> _Fitted:
        """The operators for all training data with the chosen values."""
        recipe, smallest = self._recipe, float(choice.lam.min())
        if bool(choice.eta.isnan().any()):
            close = recipe.latents(z, choice.scale_z, latent_tolerance(min(recipe.etas)))
            choice = with_ridges(choice, *recipe.ridges(close.train, lengths), recipe)
        eta = float(torch.minimum(choice.eta, choice.lam_transition).min())
        latents = recipe.latents(z, choice.scale_z, latent_tolerance(eta))
        wide, tolerance = x.to(torch.float64), observation_tolerance(smallest)
        update = recipe.update(wide, choice.scale_x, tolerance, lam=smallest)
        ridges = {"eta": choice.eta, "lam_transition": choice.lam_transition}
        operators = recipe.operators(update, latents, z, lengths, **ridges)
        return _Fitted(x, lengths, shape, choice, operators)

    def _belief(self, step: Step, steps: int) -> Belief:
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

    def _lam(self, sequences: int) -> Tensor:
        lam = self.choice.lam
        return lam.unsqueeze(-1).expand(*lam.shape, sequences)

    def _sequences(self, x: ArrayLike) -> tuple[Tensor, Bool[Tensor, "*b s t"], tuple[int, ...]]:
        """Coordinates of observations [*b s t c], which of them are there, and the shape of s."""
        fitted = self._get()
        batch = tuple(fitted.operators.points.shape[:-2])
        tensor = as_tensor(x, name="x").to(fitted.operators.phi)
        lead = tuple(tensor.shape[: tensor.ndim - len(fitted.shape)])
        short = len(lead) < len(batch) + 1
        if short or tuple(tensor.shape[len(lead) :]) != fitted.shape or lead[: len(batch)] != batch:
            raise KbrError(
                f"observations x must have shape {[*batch, '...', 'T', *fitted.shape]}, as in "
                f"training; got {list(tensor.shape)}."
            )
        if lead[-1] == 0:
            raise KbrError("a sequence of observations needs at least one step; got none.")
        flat = tensor.reshape(*batch, -1, lead[-1], fitted.x.shape[-1])
        seen = flat.isfinite().all(-1)
        flat = torch.where(seen.unsqueeze(-1), flat, torch.zeros_like(flat))
        query = fitted.operators.update.observe(flat.flatten(-3, -2))
        query = query.reshape(*flat.shape[:-1], query.shape[-1])
        return query, seen, lead[len(batch) : -1]


def training_sequences(
    x: ArrayLike | Sequence[ArrayLike], z: ArrayLike | Sequence[ArrayLike]
) -> tuple[Tensor, Tensor, list[int], tuple[int, ...]]:
    """Checked pairs laid end to end, with the sequences' lengths and one observation's shape."""
    if not (isinstance(x, list | tuple) and isinstance(z, list | tuple)):
        x_, z_, shape = as_pairs(x, z)  # type: ignore[arg-type]
        return x_, z_, [z_.shape[-2]], shape
    if len(x) != len(z) or not x:
        raise KbrError(f"x and z must be as many sequences; got {len(x)} of x and {len(z)} of z.")
    parts = [as_pairs(a, b) for a, b in zip(x, z, strict=True)]
    shapes = {part[2] for part in parts}
    if len(shapes) != 1:
        raise KbrError(f"all sequences need observations of one shape; got {sorted(shapes)}.")
    joined_x = torch.cat([part[0] for part in parts], -2)
    joined_z = torch.cat([part[1] for part in parts], -2)
    return joined_x, joined_z, [part[1].shape[-2] for part in parts], shapes.pop()


def _reshape(result: KernelFilterResult, sequences: tuple[int, ...]) -> KernelFilterResult:
    """Sequences back in the caller's shape."""

    def shaped(tensor: Tensor, trailing: int) -> Tensor:
        axis = tensor.ndim - trailing - 1
        return tensor.reshape(*tensor.shape[:axis], *sequences, *tensor.shape[axis + 1 :])

    assert result.effective_sample_size is not None
    assert result.states is not None
    return KernelFilterResult(
        shaped(result.mean, 2),
        shaped(result.cov, 3),
        shaped(result.evidence, 1),
        shaped(result.effective_sample_size, 1),
        shaped(result.states, 2),
    )
