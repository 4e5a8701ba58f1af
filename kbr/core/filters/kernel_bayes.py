"""The kernel Bayes filter: no model of the dynamics or the sensor, only training sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

import kbr
from kbr.core import checkpoint
from kbr.core.calibration import Calibration, calibrate
from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief, KernelFilterResult
from kbr.core.filters.describe import build, describe
from kbr.core.filters.landmarks import (
    choose_landmarks,
    landmark_operators,
    landmark_tolerance,
)
from kbr.core.filters.operators import FilterOperators, Step
from kbr.core.filters.recipe import Engine, Recipe, latent_tolerance, observation_tolerance
from kbr.core.filters.result import mean_squared_error
from kbr.core.filters.run import run_filter, run_smoother
from kbr.core.filters.sequences import reshape_result, training_sequences
from kbr.core.filters.storage import KIND, Compression, Stored, pack, unpack
from kbr.core.filters.transition import transition_pairs
from kbr.core.filters.tuning import (
    MINIMUM_STEPS,
    VALIDATION_STEPS,
    Choice,
    Progress,
    choose,
    split_sequences,
    validation_start,
    with_ridges,
)
from kbr.core.inputs import ArrayLike, as_tensor
from kbr.core.rules import ImportanceWeightedRule, Rule
from kbr.core.uncertainty import Ellipsoid

SCALES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
WIDTHS = (2.0,)  # bandwidth of x over that of z, in medians: 1 in the paper, 2 filters better
SETTINGS = ("rule", "eta", "lam_transition", "scales", "widths", "etas", "lams", "engine")
ETAS = tuple(10.0 ** (k / 2) for k in range(-14, -5))  # 1e-7 .. 1e-3


@dataclass(frozen=True, eq=False)
class _Fitted:
    """What `fit` leaves: the training data, what was chosen, and the operators made from both."""

    stored: Stored
    operators: FilterOperators
    expected: torch.Size = field(init=False)
    row: tuple[int, ...] = field(init=False)
    lam: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """What every step asks for, once: shapes of an observation, and lam for one sequence."""
        batch, width = self.stored.z.shape[:-2], self.stored.x.shape[-1]
        object.__setattr__(self, "expected", torch.Size((*batch, *self.stored.shape)))
        object.__setattr__(self, "row", (*batch, 1, width))
        object.__setattr__(self, "lam", self.stored.choice.lam.unsqueeze(-1))


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
        self._recipe = Recipe(**{name: getattr(self, name) for name in SETTINGS})
        self._fitted: _Fitted | None = None
        self._calibration: Calibration | None = None

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
        return self._get().stored.choice

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
        self._fitted = self._finish(Stored(x_, wide_z, lengths, shape, choice))
        self._calibration = None
        return self

    def filter(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step of x [*b *s T ...]; rows with NaN are missing and are predicted."""
        query, seen, sequences = self._sequences(x)
        result = run_filter(self.operators, query, seen, self._lam(query.shape[-3]))
        return reshape_result(result, sequences)

    def smooth(self, x: ArrayLike) -> KernelFilterResult:
        """Beliefs at every step given the whole sequence, past and future."""
        query, seen, sequences = self._sequences(x)
        lam, backward = self._lam(query.shape[-3]), self.choice.lam_transition
        result = run_smoother(self.operators, query, seen, lam, backward)
        return reshape_result(result, sequences)

    def init(self) -> Belief:
        """The belief before any observation: every training latent equally likely."""
        return self._belief(self.operators.start(1), 0)

    def step(self, belief: Belief, x: ArrayLike) -> Belief:
        """The belief after one more observation x [*b ...]; NaN in x: a prediction only."""
        fitted = self._get()
        operators, one = fitted.operators, as_tensor(x, name="x")
        if one.shape != fitted.expected:
            raise KbrError(
                f"a step takes one observation x of shape {list(fitted.expected)}; got "
                f"{list(one.shape)}. For whole sequences use filter(x)."
            )
        row = one.to(operators.phi).reshape(fitted.row)
        seen = row.isfinite().all(-1)
        query = operators.update.observe(row.nan_to_num(0.0, 0.0, 0.0))
        prior = operators.start(1) if belief.steps == 0 else None
        made = operators.step(prior, belief.state.unsqueeze(-2), query, seen, fitted.lam)
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

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self._get().stored.shape

    @property
    def compression(self) -> Compression | None:
        """What compressing this filter cost; None if it is not compressed."""
        return self._get().stored.compression

    @property
    def calibration(self) -> Calibration:
        """What the end of the training sequence says about the covariances.

        A filter with these hyper-parameters is fitted to the steps before the validation block and
        filters that block; computed when first asked for.
        """
        if self._calibration is None:
            stored = self._get().stored
            cut = validation_start(stored.z.shape[-2])
            lengths, pieces = split_sequences(stored.lengths, cut)
            x, z, shape = stored.x[..., :cut, :], stored.z[..., :cut, :], stored.x.shape[-1:]
            early = replace(self)
            early._fitted = early._finish(Stored(x, z, lengths, tuple(shape), stored.choice))
            parts = [early.filter(stored.x[..., start:stop, :]) for start, stop in pieces]
            mean = torch.cat([part.mean for part in parts], -2)
            cov = torch.cat([part.cov for part in parts], -3)
            self._calibration = calibrate(mean, cov, stored.z[..., cut:, :])
        return self._calibration

    def calibrated(self, result: KernelFilterResult) -> KernelFilterResult:
        """The same beliefs with calibrated covariances."""
        return replace(result, cov=self.calibration.cov(result.cov))

    def credible_region(
        self, belief: Belief | KernelFilterResult, *, level: float = 0.9
    ) -> Ellipsoid:
        """Calibrated credible sets: `level` of the held-out truths lay in theirs."""
        return self.calibration.region(belief.mean, belief.cov, level=level)

    def compress(
        self, n_landmarks: int, *, x: ArrayLike | None = None, z: ArrayLike | None = None
    ) -> "KernelBayesFilter":
        """A filter of at most so many weighted training pairs, with what it cost measured.

        The cost, `compressed.compression`, is measured on x and z, or on the end of the training
        sequence. Smaller and faster by the ratio of the pairs; calibration is carried over.
        """
        stored = self._get().stored
        if stored.z.ndim > 2 or stored.landmarks is not None:
            raise KbrError(
                "compress takes a filter fitted to one data set, not compressed before; got a "
                f"batch {list(stored.z.shape[:-2])} or a compressed filter. Take one of the batch."
            )
        kernel_x, kernel_z = self._recipe.fitted_kernels(
            stored.x, stored.z, (stored.choice.scale_x, stored.choice.scale_z)
        )
        kept, landmarks = choose_landmarks(
            kernel_x,
            kernel_z,
            stored.x.to(torch.float64),
            stored.z,
            stored.lengths,
            n_landmarks=n_landmarks,
            eta=float(stored.choice.eta),
            lam_transition=float(stored.choice.lam_transition),
        )
        rule = replace(self.rule, kernel_x=kernel_x, kernel_z=kernel_z)
        made = replace(self, rule=rule)
        small = replace(
            stored, x=stored.x[kept], z=stored.z[kept], lengths=[len(kept)], landmarks=landmarks
        )
        made.restore(pack(small))
        made._calibration = self.calibration if len(stored.z) >= MINIMUM_STEPS else None
        return made._measured(self, x, z)

    def save(self, path: str | Path) -> None:
        """A file that `load` reads anywhere: tensors and plain values, nothing that runs."""
        settings = {name: describe(getattr(self, name)) for name in SETTINGS}
        content = {"kind": KIND, "kbr": kbr.__version__}
        state = {**self.state(), "settings": settings}
        checkpoint.save(Path(path), {**content, "filter": state})

    @classmethod
    def load(cls, path: str | Path) -> "KernelBayesFilter":
        """A filter from a file of `save`; nothing in the file is executed."""
        return cls.from_state(checkpoint.load(path, kind=KIND)["filter"])

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "KernelBayesFilter":
        """A filter from `state`, which says by itself how it was constructed."""
        settings = state.get("settings")
        if not isinstance(settings, dict):
            raise KbrError(
                "the file does not say how its filter was constructed: its ratio or kernels are "
                "code, which files do not hold. Construct it in Python and call restore(state)."
            )
        if sorted(settings) != sorted(SETTINGS):
            raise KbrError(f"a filter has the settings {SETTINGS}; the file has {list(settings)}.")
        try:
            made = cls(**{name: build(value) for name, value in settings.items()})
        except (TypeError, AttributeError, RuntimeError) as error:
            raise KbrError(f"the file's settings do not make a filter: {error}") from error
        return made.restore(state)

    def export(self, path: str | Path) -> None:
        """The step as a torch.export program, to run without kbr: see `kbr.core.filters.export`."""
        from kbr.core.filters.export import export_step

        stored = self._get().stored
        export_step(self.operators, stored.choice.lam, stored.shape, Path(path))

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers from which `restore` makes the same filter again."""
        try:
            settings = {name: describe(getattr(self, name)) for name in SETTINGS}
        except KbrError:
            settings = None  # a ratio or kernel that is code: the caller constructs it again
        stored = replace(self._get().stored, calibration=self._calibration)
        return {**pack(stored), "settings": settings}

    def restore(self, state: dict[str, Any]) -> "KernelBayesFilter":
        """The inverse of `state`, for a filter constructed with the same hyper-parameters."""
        stored = unpack(state)
        self._fitted = self._finish(stored)
        self._calibration = stored.calibration
        return self

    def _finish(self, stored: Stored) -> _Fitted:
        """The operators for all training data with the chosen values."""
        recipe, x, z, choice = self._recipe, stored.x, stored.z, stored.choice
        smallest = float(choice.lam.min())
        if bool(choice.eta.isnan().any()):
            close = recipe.latents(z, choice.scale_z, latent_tolerance(min(recipe.etas)))
            choice = with_ridges(choice, *recipe.ridges(close.train, stored.lengths), recipe)
        eta = float(torch.minimum(choice.eta, choice.lam_transition).min())
        wide, tolerance = x.to(torch.float64), observation_tolerance(smallest)
        if stored.landmarks is not None:
            coarse = landmark_tolerance(smallest)
            update = recipe.update(wide, choice.scale_x, coarse, lam=smallest, rough=True)
            few = landmark_operators(self.rule, update, z, stored.landmarks, eta=float(choice.eta))
            return _Fitted(replace(stored, choice=choice), few)
        update = recipe.update(wide, choice.scale_x, tolerance, lam=smallest)
        latents = recipe.latents(z, choice.scale_z, latent_tolerance(eta))
        ridges = {"eta": choice.eta, "lam_transition": choice.lam_transition}
        operators = recipe.operators(update, latents, z, stored.lengths, **ridges)
        return _Fitted(replace(stored, choice=choice), operators)

    def _measured(
        self, before: "KernelBayesFilter", x: ArrayLike | None, z: ArrayLike | None
    ) -> "KernelBayesFilter":
        """This compressed filter with its error beside that of the one it came from."""
        stored, fitted = before._get().stored, self._get()
        if x is None or z is None:
            flat, z = stored.x[-VALIDATION_STEPS:], stored.z[-VALIDATION_STEPS:]
            x = flat.reshape(len(flat), *stored.shape)
        truth = as_tensor(z, name="z").to(torch.float64)
        truth = truth.unsqueeze(-1) if truth.ndim == 1 else truth
        errors = [float(mean_squared_error(f.filter(x).mean, truth)) for f in (before, self)]
        made = Compression(before.operators.n, self.operators.n, *errors)
        self._fitted = replace(fitted, stored=replace(fitted.stored, compression=made))
        return self

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
        shape = fitted.stored.shape
        lead = tuple(tensor.shape[: tensor.ndim - len(shape)])
        short = len(lead) < len(batch) + 1
        if short or tuple(tensor.shape[len(lead) :]) != shape or lead[: len(batch)] != batch:
            raise KbrError(
                f"observations x must have shape {[*batch, '...', 'T', *shape]}, as in training; "
                f"got {list(tensor.shape)}."
            )
        if lead[-1] == 0:
            raise KbrError("a sequence of observations needs at least one step; got none.")
        flat = tensor.reshape(*batch, -1, lead[-1], fitted.stored.x.shape[-1])
        seen = flat.isfinite().all(-1)
        flat = torch.where(seen.unsqueeze(-1), flat, torch.zeros_like(flat))
        query = fitted.operators.update.observe(flat.flatten(-3, -2))
        query = query.reshape(*flat.shape[:-1], query.shape[-1])
        return query, seen, lead[len(batch) : -1]
