"""What filters of a known model share: nothing to fit, but settings, scores and a summary."""

from dataclasses import fields
from typing import Any, TypeVar

from kbr.core.errors import KbrError
from kbr.core.filters.classical.state_space import StateSpaceModel
from kbr.core.filters.conventions import Conventions, changed
from kbr.core.filters.result import FilterResult
from kbr.core.showing.summary import Summary
from kbr.core.units.columns import numbered
from kbr.core.units.units import Units

Filter = TypeVar("Filter", bound="KnownModelFilter")


class KnownModelFilter(Conventions):
    """scikit-learn's conventions and `summary()` of a filter that is given a `StateSpaceModel`."""

    model: StateSpaceModel

    @property
    def units(self) -> Units:
        """The model's own: no names, no angles."""
        return Units.none(self.model.initial_mean)

    def set_params(self: Filter, **params: Any) -> Filter:
        """Other arguments in place of those of the constructor; nothing was fitted with these."""
        vars(self).update(vars(changed(self, params)))
        return self

    def summary(self) -> Summary:
        """What the filter is given, and its settings."""
        names = [part.name for part in fields(self) if part.name != "model"]  # type: ignore[arg-type]
        chosen = [f"{name}={getattr(self, name)}" for name in names]
        return Summary(
            kind=type(self).__name__,
            latents=numbered("z", len(self.model.initial_mean)),
            observation=self.model.observation_shape,
            is_learned=False,
            details={"settings": ", ".join(chosen)} if chosen else {},
        )

    def filter(self, x: Any) -> FilterResult:
        raise NotImplementedError

    def _answers(self, x: Any, u: Any, time: Any) -> FilterResult:
        if u is not None or time is not None:
            raise KbrError(
                f"{type(self).__name__} takes x alone: what moves the state, and in which steps of "
                "time, is part of its model. Leave out u and time."
            )
        return self.filter(x)
