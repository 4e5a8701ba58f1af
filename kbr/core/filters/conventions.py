"""The conventions of scikit-learn, which is not needed for them: parameters, clones, scores.

`clone`, `GridSearchCV` and the like take filters as they take regressors. Rows of a sequence belong
together: let them split lists of sequences, or one sequence by `TimeSeriesSplit`.
"""

import inspect
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch

from kbr.core.errors import KbrError
from kbr.core.filters.result import FilterResult
from kbr.core.showing.scoring import known_steps, r_squared, truth_like
from kbr.core.units.columns import is_several
from kbr.core.units.units import Units, did_you_mean

Filter = TypeVar("Filter", bound="Conventions")


class Conventions:
    """What scikit-learn asks of a regressor, of any filter whose constructor has named settings."""

    _estimator_type: ClassVar[str] = "regressor"  # for versions before 1.6

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` was called, or the filter comes from a file."""
        return True

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; with `deep`, also those of their parts: `rule__lam`."""
        return _params(self, deep)

    def set_params(self: Filter, **params: Any) -> Filter:
        """Other arguments in place of those of the constructor, `rule__lam=0.1` for a part's.

        Before `fit`: a fitted filter is one with the settings it was fitted with.
        """
        if not params:
            return self
        self.keep_settings()
        vars(self).update(vars(changed(self, params)))
        return self

    def keep_settings(self) -> None:
        """An error where settings of a fitted filter are to change: they would not be used."""
        if self.is_fitted:
            raise KbrError(
                f"{type(self).__name__} is fitted, and keeps its settings. Construct another one, "
                "or sklearn.base.clone(filt).set_params(...)."
            )

    def score(self, x: Any, z: Any, *, u: Any = None, time: Any = None) -> float:
        """R^2 of the filtered means: 1 is perfect, 0 is as good as the mean of z; larger is better.

        Averaged over the latents, each of which counts alike. x and z are one sequence, or lists of
        them, which are scored together. For errors and coverage see `filter(x).score(z)`.
        """
        several = is_several(x)
        parts = [list(part) if several else [part] for part in (x, z)]
        for name, value in (("u", u), ("time", time)):
            parts.append(list(value) if several and value is not None else [value] * len(parts[0]))
            if len(parts[-1]) != len(parts[0]):
                raise KbrError(f"{name} must be as many sequences as x; got {len(parts[-1])}.")
        if len(parts[0]) != len(parts[1]):
            raise KbrError(
                f"x and z must be as many sequences; got {len(parts[0])} and {len(parts[1])}."
            )
        means, truths = [], []
        for observed, truth, move, when in zip(*parts, strict=True):
            mean = self._answers(observed, move, when).mean
            exact = truth_like(truth, mean, self.units)
            means.append(mean)
            truths.append(exact)
        mean, exact = torch.cat(means), torch.cat(truths)
        there = known_steps(exact)
        return r_squared(mean[there], exact[there], self.units.z)

    def __sklearn_is_fitted__(self) -> bool:
        return self.is_fitted

    def __sklearn_tags__(self) -> Any:
        """Asked for by scikit-learn from 1.6 on."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True, multi_output=True),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(allow_nan=True, three_d_array=True),
            non_deterministic=False,
        )

    @property
    def units(self) -> Units:
        raise NotImplementedError

    def _answers(self, x: Any, u: Any, time: Any) -> FilterResult:
        """What `filter` answers, of one sequence."""
        raise NotImplementedError


def _params(value: object, deep: bool) -> dict[str, Any]:
    found = {name: getattr(value, name) for name in _names(value)}
    if deep:
        for name, part in list(found.items()):
            inner = _params(part, deep) if _has_parts(part) else {}
            found |= {f"{name}__{key}": item for key, item in inner.items()}
    return found


def changed(value: Any, params: dict[str, Any]) -> Any:
    """The same with other settings; those of parts after a double underscore."""
    direct = {name: item for name, item in params.items() if "__" not in name}
    nested: dict[str, dict[str, Any]] = {}
    for name, item in params.items():
        head, parted, rest = name.partition("__")
        if parted:
            nested.setdefault(head, {})[rest] = item
    names = _names(value)
    unknown = [name for name in (*direct, *nested) if name not in names]
    if unknown:
        raise KbrError(
            f"{type(value).__name__} has no setting {', '.join(map(repr, unknown))}."
            f"{did_you_mean(unknown, names)} There are: {', '.join(names)}."
        )
    for name, inner in nested.items():
        part = direct.get(name, getattr(value, name))
        if not _has_parts(part):
            raise KbrError(f"{name} is {part!r}, which has no settings of its own: set {name}.")
        direct[name] = changed(part, inner)
    if isinstance(value, Conventions):
        return type(value)(**{**_params(value, deep=False), **direct})
    return replace(value, **direct)


def _names(value: object) -> Sequence[str]:
    return list(inspect.signature(type(value)).parameters)


def _has_parts(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
