"""The settings of a kernel Bayes filter: what a user may choose, and what is searched otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kbr.core.errors import KbrError
from kbr.core.features import FeatureMap
from kbr.core.filters.kernel.choosing.search import GAIN, MANY, START, Space
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.engine import ENGINES, Engine
from kbr.core.filters.kernel.operators import FilterRatio
from kbr.core.inputs import check_positive
from kbr.core.kernels import Kernel, Linear
from kbr.core.products import has_profile
from kbr.core.ratios import KuLSIF
from kbr.core.rules import ImportanceWeightedRule, Rule
from kbr.core.units.sensors import FUSIONS

WIDTHS = (2.0,)  # bandwidth of x over that of z, in medians: 1 in the paper, 2 filters better
AUTO, HISTORIES = "auto", (1, 2, 4)
CORRECTION = 1.0  # in steps: columns of the regression are scaled to a mean square of one
BELOW, ABOVE = 1e-5, 1e3  # how far lam is searched beyond the rule's usual values, as factors


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Settings:
    """None is searched from data; of several values that are given, one is chosen.

    history    how many of the last observations are seen at once; "auto": 1, 2 or 4;
    velocity   whether latents have their differences from row to row beside them; "auto": if that
               pays. By the error on the end of the training sequence, both: see `lifting.best`;
    fusion     of sensors that a row has: "product", together; "sequence", one after the other, as
               if independent given z; "auto": by the same error;
    sensor_kernels   by the names of sensors, in the place of the rule's kernel_x;
    correction ridge of the linear correction of means, in training steps: see `MeanCorrection`;
               "auto": 1 with a rule that normalises its weights, where one can be learned.
    """

    rule: Rule = field(default_factory=ImportanceWeightedRule)
    eta: float | None = None
    lam_transition: float | None = None
    scales: Sequence[float] | None = None
    widths: Sequence[float] = WIDTHS
    etas: Sequence[float] | None = None
    lams: Sequence[float] | None = None
    engine: str | Engine = "auto"
    standardize: bool | None = None
    history: int | str = 1
    velocity: bool | str = False
    fusion: str = AUTO
    sensor_kernels: Mapping[str, Kernel] | None = None
    correction: float | str | None = AUTO

    def __post_init__(self) -> None:
        if not isinstance(self.rule.ratio, KuLSIF | TransitionRatio | FilterRatio):
            raise KbrError(
                "the filter's prior changes at every step, so its ratio is KuLSIF, TransitionRatio "
                "where the dynamics are known, or a class with the method for_filter(phi, eta), "
                "which gives the ratio as a function of predictions; got "
                f"{type(self.rule.ratio).__name__}. See docs/extending.md."
            )
        if self.engine not in ENGINES and not isinstance(self.engine, Engine):
            raise KbrError(
                f"engine must be one of {', '.join(ENGINES)}, or an object with the "
                f"method build(features, x, lam); got {self.engine!r}. See docs/extending.md."
            )
        if self.history != AUTO and not (type(self.history) is int and self.history >= 1):
            raise KbrError(
                f"history must be a whole number, at least 1, or 'auto'; got {self.history!r}."
            )
        if self.fusion not in (AUTO, *FUSIONS):
            raise KbrError(
                f"fusion must be one of {', '.join((AUTO, *FUSIONS))}; got {self.fusion!r}."
            )
        if self.velocity not in (True, False, AUTO):
            raise KbrError(f"velocity must be True, False or 'auto'; got {self.velocity!r}.")
        if self.velocity and isinstance(self.rule.ratio, TransitionRatio):
            raise KbrError("TransitionRatio knows the dynamics of z itself: leave out velocity.")
        self._check_sensor_kernels()
        if self.correction is not None and self.correction != AUTO:
            check_positive(self.correction, name="correction")
        for name in ("eta", "lam_transition"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name=name)
        for name in ("scales", "widths", "etas", "lams"):
            grid = getattr(self, name)
            if grid is not None:
                if len(grid) == 0:
                    raise KbrError(f"{name} must hold at least one value; got none.")
                for value in grid:
                    check_positive(value, name=name)

    def _check_sensor_kernels(self) -> None:
        if self.sensor_kernels is None:
            return
        if not isinstance(self.sensor_kernels, Mapping) or not self.sensor_kernels:
            raise KbrError(
                "sensor_kernels must name the kernel of each sensor, {'imu': Laplace(), ...}; got "
                f"{self.sensor_kernels!r}."
            )
        named = {f"sensor_kernels[{name!r}]": k for name, k in self.sensor_kernels.items()}
        for name, kernel in {**named, "rule.kernel_x": self.rule.kernel_x}.items():
            if not has_profile(kernel):
                raise KbrError(
                    "where sensors have kernels of their own, each must be one of distances, and "
                    "without a bandwidth, which is chosen: Gaussian(), Laplace(), Matern32() or "
                    f"Matern52(), with scale=... for a wider one. {name} is {kernel!r}."
                )

    @property
    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def lifts(self) -> list[tuple[int, bool]]:
        """History and velocity to choose from, those that hold less first."""
        histories = HISTORIES if self.history == AUTO else (int(self.history),)
        velocities = (False, True) if self.velocity == AUTO else (bool(self.velocity),)
        return [(history, velocity) for history in histories for velocity in velocities]

    @property
    def correcting(self) -> float | None:
        """The ridge of the correction of means; None: they stay as the rule gives them."""
        if self.correction == AUTO:
            return CORRECTION if self.rule.normalize else None
        return None if self.correction is None else float(self.correction)

    @property
    def given_eta(self) -> float | None:
        """The filter's eta, else its ratio's; None: to be chosen."""
        eta = getattr(self.rule.ratio, "eta", None) if self.eta is None else self.eta
        return None if eta is None else float(eta)

    @property
    def tried_widths(self) -> tuple[float, ...]:
        return tuple(self.widths) if is_free(self.rule.kernel_x) else (1.0,)

    @property
    def standardized(self) -> tuple[bool, bool]:
        if self.standardize is not None:
            return self.standardize, self.standardize
        known = isinstance(self.rule.ratio, TransitionRatio)  # a model in the units of z
        return _has_no_units(self.rule.kernel_x), _has_no_units(self.rule.kernel_z) and not known

    def space(self, coordinates: int, least_lam: float = 0.0) -> Space:
        """Scales and lams to try, for observations of so many coordinates.

        Kernels that have a bandwidth of their own are left alone.
        """
        *narrow, widest = (value / max(self.tried_widths) for value in START)
        scales: dict[str, Any] = {"scales": (*narrow, widest)}
        if not (is_free(self.rule.kernel_x) or is_free(self.rule.kernel_z)):
            scales = _just("scale", (1.0,))
        elif self.scales is not None:
            scales = _just("scale", self.scales)
        elif coordinates >= MANY:  # images: from an octave lower, and down as readily as up
            scales = {"scales": (*narrow, min(narrow) / 2, widest), "narrower": GAIN}
        usual = self.rule.LAMS
        if self.rule.lam is not None:
            lams = _just("lam", (float(self.rule.lam),))
        elif self.lams is not None:
            lams = _just("lam", self.lams)
        else:
            bounds = (max(BELOW * min(usual), least_lam), ABOVE * max(usual))
            tried = tuple(lam for lam in usual if lam >= bounds[0]) or (bounds[0],)
            lams = {"lams": tried, "lam_bounds": bounds}
        return Space(**scales, **lams)


SETTINGS = tuple(item.name for item in fields(Settings))


def is_free(kernel: Kernel | FeatureMap) -> bool:
    """Whether the filter chooses the kernel's bandwidth."""
    return (
        isinstance(kernel, Kernel) and kernel.bandwidth is None and not isinstance(kernel, Linear)
    )


def _has_no_units(kernel: Kernel | FeatureMap) -> bool:
    """Whether the kernel fits itself to its points: it may see them standardised."""
    inner = kernel if isinstance(kernel, Kernel) else getattr(kernel, "kernel", None)
    return isinstance(inner, Kernel) and is_free(inner)


def _just(name: str, values: Sequence[float]) -> dict[str, Any]:
    """These values of a space and no others."""
    return {f"{name}s": tuple(values), f"{name}_bounds": None}
