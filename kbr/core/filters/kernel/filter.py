"""The kernel Bayes filter: no model of the dynamics or the sensor, only training sequences."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.filters.base import never
from kbr.core.filters.belief import KernelBelief, KernelFilterResult
from kbr.core.filters.kernel.building import Builder
from kbr.core.filters.kernel.choosing.held_out import measured, smoothing_measured
from kbr.core.filters.kernel.choosing.search import Choice, Progress, Space
from kbr.core.filters.kernel.choosing.tuning import choose
from kbr.core.filters.kernel.choosing.validation import VALIDATION_STEPS, validation_block
from kbr.core.filters.kernel.correcting.learning import with_correction
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.engines.compression import compressed, with_cost
from kbr.core.filters.kernel.engines.large import is_large, tuning_part
from kbr.core.filters.kernel.engines.local import MEDIUM
from kbr.core.filters.kernel.engines.sensors import check_named
from kbr.core.filters.kernel.facts import kernel_facts
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.from_files.filter import FileFilter
from kbr.core.filters.kernel.growing.partial import check_belief
from kbr.core.filters.kernel.novelty import Reach
from kbr.core.filters.kernel.operators import transition_pairs
from kbr.core.filters.kernel.settings import AUTO
from kbr.core.filters.kernel.step import Operators, Step
from kbr.core.filters.kernel.storing.export import export_step
from kbr.core.filters.kernel.storing.storage import Compression, FittedData
from kbr.core.filters.lifting import best, lifted
from kbr.core.filters.sequences import held_last, held_sequences
from kbr.core.filters.training_data import TrainingData, training_data
from kbr.core.inputs import as_tensor
from kbr.core.uncertainty.calibration import Calibration, next_horizon
from kbr.core.units.columns import is_table
from kbr.core.units.sensors import FUSIONS
from kbr.core.units.units import Units


class KernelBayesFilter(FileFilter):
    """Filtering by kernel Bayes' rule, learned from sequences of pairs (x_t, z_t).

    What is None is chosen from the training data alone: eta by KuLSIF's leave-one-out, bandwidths
    and lam by the filter's error on parts of the training sequence. `scales` (of bandwidths, in
    medians), `etas` and `lams` that are given are the only ones tried. Means are corrected by a
    linear regression: see `MeanCorrection`. `rule` is the update; with
    `ImportanceWeightedRule(normalize=False)` and `widths=(1,)` this is the paper's algorithm to the
    letter, without normalised weights, correction, and recovery from outliers. `settings.Settings`
    lists all that can be set.

    Columns of x and z are standardised inside, unless `standardize` is False. None leaves alone
    what a kernel with a bandwidth of its own, or a feature map, is to see in its own units.

    Ref: Xu et al. 2022, Algorithm 2.
    """

    takes_controls = True
    takes_sensors = True

    def __repr__(self) -> str:
        if self._fitted is None:
            return f"KernelBayesFilter(rule={type(self.rule).__name__}, not fitted)"
        operators = self._fitted.operators
        lift = "".join(f", {name}={value}" for name, value in self.lift.items())
        return (
            f"KernelBayesFilter(rule={type(self.rule).__name__}, n={operators.n}, "
            f"engine={operators.update.name}, rank_z={operators.rank}{lift})"
        )

    @property
    def lift(self) -> dict[str, Any]:
        """History and velocity in use, where they were asked for."""
        data = self.fitted.data
        used = {"history": data.history, "velocity": data.rates > 0}
        return {} if self.lifts == [(1, False)] else used

    def _facts(self) -> dict[str, Any]:
        return kernel_facts(self.fitted)

    @property
    def operators(self) -> Operators:
        return self.fitted.operators

    @property
    def choice(self) -> Choice:
        """The hyper-parameters in use, one for each data set fitted together."""
        return self.fitted.data.choice

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation, as the user passes it."""
        shape, angles = self.fitted.one, sum(self.units.x.circular)
        return (shape[0] - angles,) if angles else shape

    @property
    def units(self) -> Units:
        return self.fitted.units

    @property
    def compression(self) -> Compression | None:
        """What compressing this filter cost; None if it is not compressed."""
        return self.fitted.data.compression

    @property
    def calibration(self) -> Calibration | None:
        """What held-out steps say about the covariances: see `held_out.measured`."""
        return self.fitted.data.calibration

    @property
    def smoothing_calibration(self) -> Calibration | None:
        """The same for smoothed beliefs; measured when first asked for."""
        self._fitted = smoothing_measured(self.fitted)
        return self._fitted.data.smoothing

    def _lifted(self, data: TrainingData) -> TrainingData:
        options = [lifted(data, *lift) for lift in self.lifts]
        if len(options) == 1:
            return options[0]
        errors = (self._choose(option, scored=True).val_mse for option in options)
        steps = len(validation_block(data.z.shape[-2])) * data.z.shape[:-2].numel()
        return best(options, [float(error.sum()) for error in errors], steps)

    def _learn(self, data: TrainingData, progress: Progress | None) -> None:
        self._fitted = measured(*with_correction(self.learned(data, progress=progress)))

    def learned(
        self,
        data: TrainingData,
        *,
        space: Space | None = None,
        in_order: bool = False,
        **options: Any,
    ) -> Fitted:
        """What is fitted to these data, covariances not measured yet.

        In another search `space`, and with other `options` of `choose`, for callers that want that.
        Of many sequences, some from all over are held out; those at the end, or the last block
        alone, with `in_order`, where x are features that were learned without these.
        """
        if not in_order and data.z.shape[-2] > MEDIUM and held_sequences(data.lengths):
            order, lengths = held_last(data.lengths)
            rows = torch.tensor(order, device=data.z.device)
            x, z = (part.index_select(-2, rows) for part in (data.x, data.z))
            data = replace(data, x=x, z=z, lengths=lengths)
        choice = self._choose(
            data, scored=space is not None, space=space, in_order=in_order, **options
        )
        return Fitted.build(self.settings, FittedData(**vars(data), choice=choice))

    def tune(self, x: Any, z: Any, *, in_order: bool = False, **about: Any) -> Choice:
        """What `fit` would choose, besides the ridges eta and lam', and its error; no fit.

        By the last block alone with `in_order`, where x are features that were learned without it.
        """
        data = self._lifted(training_data(x, z, standardize=self.standardized, **about))
        return self._choose(data, scored=True, in_order=in_order)

    def _choose(self, data: TrainingData, **options: Any) -> Choice:
        check_named(data.sensors, self.sensor_kernels or ())
        if isinstance(self.rule.ratio, TransitionRatio):
            if data.controls:
                raise KbrError("TransitionRatio knows its dynamics, without controls: leave u out.")
            if data.sensors is not None:
                raise KbrError("TransitionRatio takes no absent sensors: leave sensors out.")
        if data.sensors is not None:
            if not self.rule.normalize:
                raise KbrError("sensors need a rule that normalises its weights: see model=iw.")
            fusion = FUSIONS[0] if self.fusion == AUTO else self.fusion
            data = replace(data, sensors=replace(data.sensors, fusion=fusion))
        transition_pairs(data.lengths)  # fails early where there is no step to learn from
        builder, part = tuning_part(Builder(self.settings), data)
        return choose(builder, replace(part, x=part.x.to(torch.float64)), **options)

    def compress(self, n_landmarks: int, *, x: Any = None, z: Any = None) -> "KernelBayesFilter":
        """A filter of at most so many weighted training pairs, with what it cost measured.

        The cost, `compressed.compression`, is measured on x and z, arrays or tables, or on the end
        of the training sequence. Smaller and faster by the ratio of the pairs; calibration is
        carried over.
        """
        self._refuse("compress")
        small = compressed(self.fitted, n_landmarks)
        small = small.changed(smoothing=self.smoothing_calibration)
        data, scaling = self.fitted.data, self.units.z
        if x is None or z is None:
            last, inner = data.x[-VALIDATION_STEPS:], data.z[-VALIDATION_STEPS:]
            seen = last.double().reshape(len(last), *data.shape)
            truth = scaling.undo(inner, inner.new_zeros(*inner.shape, inner.shape[-1]))[0]
        else:
            rows: Any = self.units.observations(x)
            seen = self.fitted.windows(rows)
            values = self.units.latents(z) if is_table(z) and self.units.z_names else z
            truth = as_tensor(values, name="z").to(data.z)
            truth = truth.unsqueeze(-1) if truth.ndim == 1 else truth
        return self.of(with_cost(small, self.fitted, seen, truth))

    def export(self, path: str | Path) -> None:
        """The step as a torch.export program, to run without kbr: see `export_step`."""
        self._refuse("export")
        if is_large(self.operators.n):
            raise KbrError(
                f"a program holds all of a filter's points, here {self.operators.n:,}. Call "
                "compress(n_landmarks) first."
            )
        if self.fitted.data.history > 1:
            raise KbrError("a program sees one observation at a time. Fit with history=1.")
        export_step(self.fitted, self.shape, Path(path))

    def _filtered(self, x: Tensor, *u: Tensor) -> KernelFilterResult:
        return self.fitted.filtered(self.fitted.windows(x), *u)

    def _smoothed(self, x: Tensor, *u: Tensor) -> KernelFilterResult:
        return self.fitted.smoothed(self.fitted.windows(x), *u)

    def _start(self, prior: Any) -> KernelBelief:
        step = self.operators.start(1) if prior is None else self._prior(prior)
        return self._belief(step, never(step.evidence.squeeze(-1)), 0)

    def _stepped(self, belief: KernelBelief, x: Tensor, *u: Tensor) -> KernelBelief:
        fitted = self.fitted
        operators = fitted.operators
        if x.shape != fitted.expected:
            raise KbrError(
                f"a step takes one observation x of shape {list(fitted.expected)}; got "
                f"{list(x.shape)}. For whole sequences use filter(x)."
            )
        if belief.table is not operators.readout:  # of another filter, it seems
            check_belief(belief, operators)
        recent, x = fitted.window(belief.recent, x)
        row = flat = x.reshape(fitted.row)
        seen, familiar = None, None
        if not (isinstance(fitted.reach, Reach) and fitted.reach.is_near(row)):
            row, seen, familiar = fitted.known(row)
        if operators.controls:
            row = torch.cat([row, self._moves(u, 1)], -1)
        query = operators.observe(row)
        now = Step(
            belief.weights.unsqueeze(-2),
            belief.state.unsqueeze(-2),
            belief.moments.unsqueeze(-2),
            belief.evidence.unsqueeze(-1),
            first=belief.steps == 0,
        )
        after = operators.step(now, query, fitted.lam, seen, familiar)
        evidence = after.evidence.squeeze(-1)
        since = next_horizon(belief.since, evidence)
        made = self._belief(after, since, belief.steps + 1, belief.stretch, recent)
        return made if fitted.data.correction is None else self._shifted(made, now, flat)

    def _shifted(self, belief: KernelBelief, before: Step, row: Tensor) -> KernelBelief:
        """The belief with its mean corrected, by the step before it and the observation."""
        fitted, mean = self.fitted, self.operators.readout.mean
        assert fitted.data.correction is not None
        moments = before.moments if before.first else fitted.ahead(before.state)[0]
        now = mean(belief.moments.unsqueeze(-2))
        shift = fitted.data.correction.shift(
            now, mean(moments), row, belief.evidence.unsqueeze(-1)
        ).squeeze(-2)
        return replace(belief, shift=shift)

    def _ahead(self, belief: KernelBelief, steps: int, *u: Tensor) -> KernelBelief:
        check_belief(belief, self.operators)
        moves = self._moves(u, steps) if self.operators.controls else None
        nothing = belief.state.new_full(self.fitted.expected, torch.nan)
        for step in range(steps):
            # Before the first observation, the start itself is the prediction of step 1.
            if belief.steps == 0:
                belief = replace(belief, steps=1)
                continue
            recent, _ = self.fitted.window(belief.recent, nothing)
            now = None if moves is None else moves[..., step : step + 1, :]
            after = self.operators.predict(belief.state.unsqueeze(-2), now)
            since = next_horizon(belief.since, torch.zeros_like(belief.evidence))
            belief = self._belief(after, since, belief.steps + 1, belief.stretch, recent)
        return belief

    def _refuse(self, what: str) -> None:
        if self.operators.controls:
            raise KbrError(f"{what} takes filters without control inputs; this one has some.")
        if self.fitted.data.sensors is not None:
            raise KbrError(f"{what} takes filters of whole rows; this one has absent sensors.")

    def _moves(self, u: tuple[Tensor, ...], steps: int) -> Tensor:
        """Controls [*b steps du]; zeros for a first step, which none leads to."""
        shape = (*self.fitted.row[:-2], steps, self.operators.controls)
        if not u:
            return self.fitted.lam.new_zeros(shape)
        if u[0].numel() != math.prod(shape):
            raise KbrError(f"u must have shape {list(shape)} here; got {list(u[0].shape)}.")
        return u[0].reshape(shape)

    def _prior(self, prior: Any) -> Step:
        """An embedding of latents in the units of z, as a belief on the training latents."""
        operators, fitted = self.operators, self.fitted
        if operators.points.ndim > 2 or fitted.latents is None:
            raise KbrError(
                "a prior of one's own is for filters of one data set whose dynamics are learned. "
                "Leave prior out."
            )
        prior = prior if isinstance(prior, Embedding) else Embedding.from_samples(prior)
        if fitted.data.rates:
            raise KbrError(
                "a prior over z says nothing of its velocity, which this filter follows too. Leave "
                "prior out, or fit with velocity=False."
            )
        scaling = self.units.z
        columns = operators.points.shape[-1] - sum(scaling.circular)
        if prior.points.ndim != 2 or prior.points.shape[-1] != columns:
            raise KbrError(
                f"the prior needs points of shape [m, dz] like z of training; got "
                f"{list(prior.points.shape)}."
            )
        inner = scaling.apply(prior.points.to(operators.points))
        weights = prior.weights.to(inner) / prior.weights.sum()
        return operators.prior((weights.unsqueeze(0) @ fitted.latents(inner)).reshape(1, -1))

    def _belief(
        self,
        step: Step,
        since: Tensor,
        steps: int,
        stretch: Tensor | None = None,
        recent: Tensor | None = None,
    ) -> KernelBelief:
        fitted = self.fitted
        return KernelBelief(
            step.evidence.squeeze(-1),
            since,
            steps,
            fitted.answering,
            stretch=stretch,
            points=fitted.operators.points,
            weights=step.weights.squeeze(-2),
            state=step.state.squeeze(-2),
            moments=step.moments.squeeze(-2),
            table=fitted.operators.readout,
            recent=recent,
        )
