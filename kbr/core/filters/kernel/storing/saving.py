"""A kernel Bayes filter in files and in memory: settings by name, and what `fit` left.

A description of settings can only name classes that kbr knows, and imported ones derived from
kbr's Kernel, Rule, FilterRatio and Engine: a file never chooses what is imported or run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

import kbr
from kbr.core.errors import KbrError
from kbr.core.features import Identity, Nystroem, PivotedCholesky, RandomFourier
from kbr.core.filters.base import TrainableFilter
from kbr.core.filters.kernel.choosing.held_out import measured
from kbr.core.filters.kernel.engine import Engine
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.operators import FilterRatio
from kbr.core.filters.kernel.settings import AUTO, SETTINGS, Settings
from kbr.core.filters.kernel.storing.storage import KIND, pack, unpack
from kbr.core.io import checkpoint
from kbr.core.kernels import Kernel
from kbr.core.mixtures import Mixture
from kbr.core.per_coordinate import PerCoordinate
from kbr.core.ratios import KuLSIF
from kbr.core.rules import Rule

AnyFilter = TypeVar("AnyFilter", bound="SavedFilter")


class SavedFilter(Settings, TrainableFilter):
    """Settings with what was learned, and its ways in and out of files."""

    _fitted: Fitted | None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fitted = None

    def __setattr__(self, name: str, value: object) -> None:
        if name in SETTINGS:
            raise KbrError(
                f"{name} is fixed when the filter is constructed. Make another one: "
                f"KernelBayesFilter({name}=...), or dataclasses.replace(filt, {name}=...)."
            )
        object.__setattr__(self, name, value)

    @property
    def is_fitted(self) -> bool:
        return self._fitted is not None

    @property
    def fitted(self) -> Fitted:
        """What `fit` left, in inner coordinates: for the rest of kbr, not for users."""
        if self._fitted is None:
            raise KbrError("this filter is not fitted yet: call fit(x_train, z_train) first.")
        return self._fitted

    @property
    def settings(self) -> Settings:
        return Settings(**self.values)

    @classmethod
    def of(cls: type[AnyFilter], fitted: Fitted) -> AnyFilter:
        """A filter of what another one, or the rest of kbr, has fitted."""
        filt = cls(**fitted.settings.values)
        filt._fitted = fitted
        return filt

    def to(self: AnyFilter, device: str | torch.device) -> AnyFilter:
        return self.of(Fitted.build(self.fitted.settings, self.fitted.data.to(device)))

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: settings and what was learned; operators are made again from it."""
        own = None if self._fitted is None else self._fitted.settings
        return {"settings": self.values, "used": own, "stored": self._fitted and self._fitted.data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, **state["settings"])
        if state["stored"] is not None:
            self._fitted = Fitted.build(state.get("used") or self.settings, state["stored"])

    def save(self, path: str | Path) -> None:
        """A file that `load` reads anywhere: tensors and plain values, nothing that runs."""
        state = {**self.state(), "settings": self._described()}
        checkpoint.save(Path(path), {"kind": KIND, "kbr": kbr.__version__, "filter": state})

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
        before = {"history": 1, "velocity": False, "fusion": AUTO, "sensor_kernels": None}
        before["correction"] = None
        settings = before | settings  # what files had not yet
        if set(settings) != set(SETTINGS):
            raise KbrError(f"a filter has the settings {SETTINGS}; the file has {list(settings)}.")
        try:
            filt = cls(**{name: build(value) for name, value in settings.items()})
        except (TypeError, AttributeError, LookupError, RuntimeError) as error:
            raise KbrError(f"the file's settings do not make a filter: {error}") from error
        return filt.restore(state)

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers from which `restore` makes the same filter again."""
        try:
            settings = self._described()
        except KbrError:
            settings = None  # a ratio or kernel that is code: the caller constructs it again
        return {**pack(self.fitted.data), "settings": settings}

    def restore(self: AnyFilter, state: dict[str, Any]) -> AnyFilter:
        """The inverse of `state`, for a filter constructed with the same hyper-parameters."""
        fitted = Fitted.build(self.settings, unpack(state))
        known = fitted.data.calibration
        if known is None or (len(known.counts) == 1 and fitted.data.landmarks is None):
            fitted = measured(fitted)  # a file from before gaps were told apart
        self._fitted = fitted
        return self

    def _described(self) -> dict[str, Any] | None:
        """The settings in use: a filter of landmarks has their bandwidths."""
        values = self.values if self._fitted is None else self._fitted.settings.values
        return {name: describe(value) for name, value in values.items()}


def describe(value: object) -> Any:
    """A setting as plain containers, numbers, strings and tensors."""
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value.detach().clone() if isinstance(value, Tensor) else value
    if is_dataclass(value) and _known().get(type(value).__name__) is type(value):
        settings = {item.name: describe(getattr(value, item.name)) for item in fields(value)}
        return {"type": type(value).__name__, "settings": settings}
    if isinstance(value, Mapping):
        return {"entries": {str(name): describe(item) for name, item in value.items()}}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    raise KbrError(
        f"{type(value).__name__} cannot be saved: a file holds settings, not code. Saved by name "
        f"are {', '.join(sorted(_known()))}, and dataclasses derived from kbr's Kernel, Rule, "
        "FilterRatio or Engine."
    )


def build(described: Any) -> Any:
    """The inverse of `describe`; unknown names and settings are refused."""
    if isinstance(described, list):
        return tuple(build(item) for item in described)
    if not isinstance(described, dict):
        return described
    if isinstance(entries := described.get("entries"), dict):
        return {str(name): build(item) for name, item in entries.items()}
    name, settings = described.get("type"), described.get("settings")
    cls = _known().get(name) if isinstance(name, str) else None
    if cls is None or not isinstance(settings, dict):
        raise KbrError(
            f"the file names {name!r}, which this kbr does not know. If it is yours, import its "
            "module first, or trust=[module]; else use the version of kbr that wrote the file."
        )
    try:
        return cls(**{key: build(item) for key, item in settings.items()})
    except KbrError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise KbrError(f"the file's settings of {name} do not fit this kbr: {error}") from error


def _known() -> dict[str, type[Any]]:
    own = [cls for base in (Kernel, Rule, FilterRatio, Engine) for cls in _below(base)]
    classes = [Identity, Mixture, Nystroem, PerCoordinate, PivotedCholesky, RandomFourier, KuLSIF]
    return {cls.__name__: cls for cls in (*own, *classes)}


def _below(base: type[Any]) -> list[type[Any]]:
    children = base.__subclasses__()
    return [cls for child in children for cls in (child, *_below(child))]
