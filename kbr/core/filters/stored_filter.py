"""What a fitted filter can do besides filtering: calibrate, compress, save, load, export."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

import kbr
from kbr.core import checkpoint
from kbr.core.calibration import Calibration, calibrate
from kbr.core.errors import KbrError
from kbr.core.filters.belief import Belief, KernelFilterResult
from kbr.core.filters.describe import build, describe
from kbr.core.filters.export import export_step
from kbr.core.filters.landmarks import choose_landmarks
from kbr.core.filters.large import LargeOperators, is_large
from kbr.core.filters.operators import FilterOperators
from kbr.core.filters.recipe import Recipe
from kbr.core.filters.result import mean_squared_error
from kbr.core.filters.storage import KIND, Compression, Stored, pack, unpack
from kbr.core.filters.tuning import (
    MINIMUM_STEPS,
    VALIDATION_STEPS,
    split_lengths,
    validation_start,
)
from kbr.core.inputs import ArrayLike, as_tensor
from kbr.core.memory import check_memory
from kbr.core.rules import Rule
from kbr.core.uncertainty import Ellipsoid

AnyFilter = TypeVar("AnyFilter", bound="StoredFilter")
SETTINGS = ("rule", "eta", "lam_transition", "scales", "widths", "etas", "lams", "engine")


@dataclass(frozen=True, eq=False)
class Fitted:
    """What `fit` leaves: the training data, what was chosen, and the operators made from both."""

    stored: Stored
    operators: FilterOperators
    expected: torch.Size = field(init=False)
    row: tuple[int, ...] = field(init=False)
    lam: Tensor = field(init=False)
    seen: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """What every step asks for, once: an observation's shapes, lam, and that it is there."""
        batch, width = self.stored.z.shape[:-2], self.stored.x.shape[-1]
        object.__setattr__(self, "expected", torch.Size((*batch, *self.stored.shape)))
        object.__setattr__(self, "row", (*batch, 1, width))
        object.__setattr__(self, "lam", self.stored.choice.lam.unsqueeze(-1))
        object.__setattr__(self, "seen", torch.ones_like(self.lam, dtype=torch.bool))


class StoredFilter:
    """The part of the kernel Bayes filter that works on what `fit` left."""

    rule: Rule
    _recipe: Recipe
    _fitted: Fitted | None
    _calibration: Calibration | None

    def filter(self, x: ArrayLike) -> KernelFilterResult:
        raise NotImplementedError

    def _finish(self, stored: Stored) -> Fitted:
        raise NotImplementedError

    def _copy(self: AnyFilter, rule: Rule) -> AnyFilter:
        """A filter of the same settings with this rule, not fitted."""
        raise NotImplementedError

    @property
    def operators(self) -> FilterOperators:
        """The fitted operators."""
        return self._get().operators

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
        filters that block; computed when first asked for. Of very many training points the block is
        so small a part that the filter itself stands for that one.
        """
        if self._calibration is None:
            stored = self._get().stored
            cut = validation_start(stored.z.shape[-2])
            lengths, pieces = split_lengths(stored.lengths, cut)
            x, z, shape = stored.x[..., :cut, :], stored.z[..., :cut, :], stored.x.shape[-1:]
            early = self._copy(self.rule)
            if is_large(cut):
                early._fitted = replace(self._get(), stored=replace(stored, shape=tuple(shape)))
            else:
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
        if set(settings) != set(SETTINGS):
            raise KbrError(f"a filter has the settings {SETTINGS}; the file has {list(settings)}.")
        try:
            made = cls(**{name: build(value) for name, value in settings.items()})
        except (TypeError, AttributeError, LookupError, RuntimeError) as error:
            raise KbrError(f"the file's settings do not make a filter: {error}") from error
        return made.restore(state)

    def export(self, path: str | Path) -> None:
        """The step as a torch.export program, to run without kbr: see `kbr.core.filters.export`."""
        stored = self._get().stored
        if isinstance(self.operators, LargeOperators):
            raise KbrError(
                f"a program holds all of a filter's points, here {self.operators.n:,}. Call "
                "compress(n_landmarks) first."
            )
        export_step(self.operators, stored.choice.lam, stored.shape, Path(path))

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers from which `restore` makes the same filter again."""
        try:
            settings = {name: describe(getattr(self, name)) for name in SETTINGS}
        except KbrError:
            settings = None  # a ratio or kernel that is code: the caller constructs it again
        stored = replace(self._get().stored, calibration=self._calibration)
        return {**pack(stored), "settings": settings}

    def restore(self: AnyFilter, state: dict[str, Any]) -> AnyFilter:
        """The inverse of `state`, for a filter constructed with the same hyper-parameters."""
        stored = unpack(state)
        self._fitted = self._finish(stored)
        self._calibration = stored.calibration
        return self

    def _measured(
        self: AnyFilter, before: "StoredFilter", x: ArrayLike | None, z: ArrayLike | None
    ) -> AnyFilter:
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

    def _get(self) -> Fitted:
        if self._fitted is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._fitted
