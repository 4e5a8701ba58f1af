"""What a fitted filter can do besides filtering: calibrate, compress, save, load, export."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

import kbr
from kbr.core.errors import KbrError
from kbr.core.filters.base import BaseFilter
from kbr.core.filters.belief import Answering
from kbr.core.filters.kernel.cross_fitting import LeaveOut, pieces_inside
from kbr.core.filters.kernel.describe import build, describe
from kbr.core.filters.kernel.export import export_step
from kbr.core.filters.kernel.held_out import (
    Correction,
    Piece,
    calibrated_rows,
    filter_rows,
    smoother_rows,
)
from kbr.core.filters.kernel.landmarks import choose_landmarks
from kbr.core.filters.kernel.large import LargeOperators, is_large
from kbr.core.filters.kernel.novelty import Reach, nearest_squared, reach_of
from kbr.core.filters.kernel.recipe import Recipe
from kbr.core.filters.kernel.step import Operators
from kbr.core.filters.kernel.storage import KIND, Compression, Stored, pack, unpack
from kbr.core.filters.kernel.tuning import (
    MINIMUM_STEPS,
    VALIDATION_STEPS,
    validation_start,
)
from kbr.core.filters.result import mean_squared_error
from kbr.core.inputs import ArrayLike, as_tensor
from kbr.core.io import checkpoint
from kbr.core.io.memory import check_memory
from kbr.core.rules import Rule
from kbr.core.uncertainty.calibration import Calibration
from kbr.core.units.units import Units

AnyFilter = TypeVar("AnyFilter", bound="StoredFilter")
SETTINGS = (
    "rule",
    "eta",
    "lam_transition",
    "scales",
    "widths",
    "etas",
    "lams",
    "engine",
    "standardize",
)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What `fit` leaves: the training data, what was chosen, and the operators made from both.

    `latents` are the features of latents; None where beliefs have no coordinates but weights.
    """

    stored: Stored
    operators: Operators
    latents: Callable[[Tensor], Tensor] | None = None
    expected: torch.Size = field(init=False)
    row: tuple[int, ...] = field(init=False)
    lam: Tensor = field(init=False)
    reach: Reach = field(init=False)
    units: Units = field(init=False)
    answering: Answering = field(init=False)

    def __post_init__(self) -> None:
        """What every step asks for, once: shapes, lam, units, what is familiar."""
        stored, n = self.stored, self.stored.z.shape[-2]
        batch, width = stored.z.shape[:-2], stored.x.shape[-1]
        lam = stored.choice.lam.unsqueeze(-1)
        cut = validation_start(n) if n >= MINIMUM_STEPS else n
        reach = reach_of(stored.x, stored.x[..., cut:, :], cut)
        if stored.reach is not None:
            reach = replace(reach, limit=stored.reach)
        units = Units.none(stored.z) if stored.units is None else stored.units
        made = {
            "expected": torch.Size((*batch, *stored.shape)),
            "row": (*batch, 1, width),
            "lam": lam,
            "reach": reach,
            "units": units,
            "answering": Answering(units, stored.calibration),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)


class StoredFilter(BaseFilter):
    """The part of the kernel Bayes filter that works on what `fit` left."""

    rule: Rule
    _recipe: Recipe
    _fitted: Fitted | None

    def _finish(self, stored: Stored) -> Fitted:
        raise NotImplementedError

    def _copy(self: AnyFilter, rule: Rule) -> AnyFilter:
        """A filter of the same settings with this rule, not fitted."""
        raise NotImplementedError

    @property
    def operators(self) -> Operators:
        """The fitted operators."""
        return self._get().operators

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation, as the user passes it."""
        fitted = self._get()
        angles = sum(fitted.units.x.circular)
        shape = fitted.stored.shape
        return (shape[0] - angles,) if angles else shape

    @property
    def units(self) -> Units:
        return self._get().units

    @property
    def compression(self) -> Compression | None:
        """What compressing this filter cost; None if it is not compressed."""
        return self._get().stored.compression

    @property
    def calibration(self) -> Calibration | None:
        """What the end of the training sequence says about the covariances.

        A filter with these hyper-parameters is fitted to the steps before the validation block and
        filters that block. Of very many training points the block is so small a part that the
        filter itself stands for that one.
        """
        return self._get().stored.calibration

    @property
    def smoothing_calibration(self) -> Calibration | None:
        """The same for smoothed beliefs; measured when first asked for."""
        fitted = self._get()
        if fitted.stored.smoothing is None and self._can_calibrate():
            known, choice = fitted.stored.calibration, fitted.stored.choice
            # Held-out steps of more than one block: the first one was fit to be held out too.
            both = known is not None and max(known.counts) > len(self._validation())
            rows, without = [], self._left_out()
            for block in self._blocks(first_too=both):
                operators = without(block)
                pieces = self._pieces_of(operators, block)
                rows.append(smoother_rows(operators, choice.lam_transition, choice.lam, pieces))
            found = calibrated_rows(fitted.units.z, rows)
            self._fitted = replace(fitted, stored=replace(fitted.stored, smoothing=found))
        return self._get().stored.smoothing

    def _calibrate(
        self,
        *,
        first_too: bool = True,
        correct: Callable[[range], Correction] | None = None,
    ) -> None:
        """Measure the covariances on steps that operators of the others filter.

        Settings were chosen for the validation block, so its errors are a little too small: the
        first block of the data is taken too, unless observations are features that have seen it.
        `correct` gives what corrects the means of a block.
        """
        if not self._can_calibrate():
            return
        fitted, rows, without = self._get(), [], self._left_out()
        for block in self._blocks(first_too=first_too):
            operators = without(block)
            pieces = self._pieces_of(operators, block)
            mend = None if correct is None else correct(block)
            rows.append(filter_rows(operators, fitted.stored.choice.lam, pieces, mend))
        found = calibrated_rows(fitted.units.z, rows)
        self._fitted = replace(fitted, stored=replace(fitted.stored, calibration=found))

    def _can_calibrate(self) -> bool:
        """A compressed filter no longer has the steps to hold out."""
        stored = self._get().stored
        return stored.landmarks is None and stored.z.shape[-2] >= MINIMUM_STEPS

    def _validation(self) -> range:
        n = self._get().stored.z.shape[-2]
        return range(validation_start(n), n)

    def _blocks(self, *, first_too: bool) -> list[range]:
        """The validation block, and one as long at the start."""
        last = self._validation()
        more = first_too and not is_large(last.stop)
        return [last, range(len(last))] if more else [last]

    def _left_out(self) -> Callable[[range], Operators]:
        """Operators of the steps outside a block, with the same hyper-parameters."""
        stored = self._get().stored
        if is_large(stored.z.shape[-2]):
            return lambda block: self.operators
        return LeaveOut.of(self._recipe, stored, self.operators.update).operators

    def _pieces_of(self, operators: Operators, block: range) -> list[Piece]:
        """The sequences inside a block, as these operators see them."""
        stored = self._get().stored
        found = []
        for start, stop in pieces_inside(stored.lengths, block):
            x, z = stored.x[..., start:stop, :].double(), stored.z[..., start:stop, :]
            found.append(Piece(x, operators.update.observe(x), z))
        return found

    def to(self: AnyFilter, device: str | torch.device) -> AnyFilter:
        """The same filter on another device."""
        stored = self._get().stored
        made = self._copy(self.rule)
        made._fitted = made._finish(stored.to(device))
        return made

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: settings and what was learned; operators are made again from it."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        return {"settings": settings, "stored": self._fitted and self._fitted.stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, **state["settings"])
        if state["stored"] is not None:
            self._fitted = self._finish(state["stored"])

    def compress(
        self: AnyFilter, n_landmarks: int, *, x: ArrayLike | None = None, z: ArrayLike | None = None
    ) -> AnyFilter:
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
        check_memory(
            5.0 * len(stored.z) * n_landmarks * torch.float64.itemsize,
            what=f"choosing {n_landmarks} among {len(stored.z):,} pairs",
            advice="Lower n_landmarks, or fit to fewer pairs first.",
            device=stored.z.device,
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
        made = self._copy(rule)
        small = replace(
            stored, x=stored.x[kept], z=stored.z[kept], lengths=[len(kept)], landmarks=landmarks
        )
        small = replace(
            small,
            calibration=self.calibration,
            smoothing=self.smoothing_calibration,
            reach=self._reach_of(stored.x[kept]),
        )
        made.restore(pack(small))
        return made._measured(self, x, z)

    def _reach_of(self, landmarks: Tensor) -> Tensor:
        """How far from the landmarks alone an observation may lie: they are fewer anchors."""
        fitted = self._get()
        few = reach_of(landmarks, landmarks[:0], len(landmarks)).anchors
        farthest = nearest_squared(fitted.reach.anchors, few).amax(-1)
        return (fitted.reach.limit.sqrt() + farthest.sqrt()).square()

    def save(self, path: str | Path) -> None:
        """A file that `load` reads anywhere: tensors and plain values, nothing that runs."""
        settings = {name: describe(getattr(self, name)) for name in SETTINGS}
        content = {"kind": KIND, "kbr": kbr.__version__}
        state = {**self.state(), "settings": settings}
        checkpoint.save(Path(path), {**content, "filter": state})

    @classmethod
    def load(cls: type[AnyFilter], path: str | Path) -> AnyFilter:
        """A filter from a file of `save`; nothing in the file is executed."""
        state = checkpoint.load(path, kind=KIND).get("filter")
        if not isinstance(state, dict):
            raise KbrError(f"{path} holds no filter. Save it again with kbr.")
        return cls.from_state(state)

    @classmethod
    def from_state(cls: type[AnyFilter], state: dict[str, Any]) -> AnyFilter:
        """A filter from `state`, which says by itself how it was constructed."""
        settings = state.get("settings")
        if not isinstance(settings, dict):
            raise KbrError(
                "the file does not say how its filter was constructed: its ratio or kernels are "
                "code, which files do not hold. Construct it in Python and call restore(state)."
            )
        if "standardize" not in settings:  # a file from before filters standardised by themselves
            settings = {**settings, "standardize": False}
        if set(settings) != set(SETTINGS):
            raise KbrError(f"a filter has the settings {SETTINGS}; the file has {list(settings)}.")
        try:
            made = cls(**{name: build(value) for name, value in settings.items()})
        except (TypeError, AttributeError, LookupError, RuntimeError) as error:
            raise KbrError(f"the file's settings do not make a filter: {error}") from error
        return made.restore(state)

    def export(self, path: str | Path) -> None:
        """The step as a torch.export program, to run without kbr: see `export_step`."""
        if isinstance(self.operators, LargeOperators):
            raise KbrError(
                f"a program holds all of a filter's points, here {self.operators.n:,}. Call "
                "compress(n_landmarks) first."
            )
        export_step(self._get(), self.shape, Path(path))

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers from which `restore` makes the same filter again."""
        try:
            settings = {name: describe(getattr(self, name)) for name in SETTINGS}
        except KbrError:
            settings = None  # a ratio or kernel that is code: the caller constructs it again
        return {**pack(self._get().stored), "settings": settings}

    def restore(self: AnyFilter, state: dict[str, Any]) -> AnyFilter:
        """The inverse of `state`, for a filter constructed with the same hyper-parameters."""
        stored = unpack(state)
        self._fitted = self._finish(stored)
        known = stored.calibration
        if known is None or (len(known.counts) == 1 and stored.landmarks is None):
            self._calibrate()  # a file from before gaps were told apart
        return self

    def _measured(
        self: AnyFilter, before: "StoredFilter", x: ArrayLike | None, z: ArrayLike | None
    ) -> AnyFilter:
        """This compressed filter with its error beside that of the one it came from."""
        stored, fitted, scaling = before._get().stored, self._get(), before.units.z
        if x is None or z is None:
            flat, inner = stored.x[-VALIDATION_STEPS:], stored.z[-VALIDATION_STEPS:]
            seen: Any = flat.double().reshape(len(flat), *stored.shape)
            truth = scaling.undo(inner, inner.new_zeros(*inner.shape, inner.shape[-1]))[0]
        else:
            seen, truth = before.units.observations(x), as_tensor(z, name="z").to(stored.z)
            truth = truth.unsqueeze(-1) if truth.ndim == 1 else truth
        errors = []
        for filt in (before, self):
            found = filt._filtered(seen)
            mean, _ = scaling.undo(found.mean, found.cov)
            errors.append(float(mean_squared_error(mean, scaling.nearest(truth, mean))))
        made = Compression(before.operators.n, self.operators.n, *errors)
        self._fitted = replace(fitted, stored=replace(fitted.stored, compression=made))
        return self

    def _get(self) -> Fitted:
        if self._fitted is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._fitted
