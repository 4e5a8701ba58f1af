"""A fitted filter as plain tensors and values, checked when they come back from a file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.choosing.search import CHOICES, Choice, Edge
from kbr.core.filters.kernel.correcting.correction import MeanCorrection
from kbr.core.filters.kernel.engines.landmarks import Landmarks
from kbr.core.filters.kernel.engines.local import MEDIUM
from kbr.core.filters.sequences import Sequences, lengths_outside, outside
from kbr.core.uncertainty.calibration import Calibration
from kbr.core.uncertainty.growth import Growth
from kbr.core.units.sensors import Sensors
from kbr.core.units.units import Units

KIND = "kbr.kernel_filter"  # of files written by KernelBayesFilter.save
RUN_KIND = "kbr.kernel"  # of a run's checkpoint: a batch of filters, one for each trial
APART = 400  # steps of several data sets above which each is taken by itself
BROKEN = (AssertionError, LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@dataclass(frozen=True, eq=False)
class Compression:
    """What compressing cost: pairs and error on the same sequence, before and after.

    `compared`: `mse_before` is that of a filter on so many of the pairs alone; None: on all.
    """

    n_train: int
    n_landmarks: int
    mse_before: float
    mse_after: float
    compared: int | None = None

    @property
    def loss(self) -> float:
        """Relative growth of the squared error: 0.01 is one per cent."""
        return self.mse_after / self.mse_before - 1 if self.mse_before > 0 else 0.0


@dataclass(frozen=True, eq=False)
class FittedData(Sequences):
    """Everything a filter is rebuilt from, besides its settings."""

    shape: tuple[int, ...]
    choice: Choice
    landmarks: Landmarks | None = None
    compression: Compression | None = None
    calibration: Calibration | None = None
    smoothing: Calibration | None = None
    reach: Float[Tensor, "*b"] | None = None  # of novelty.Reach; None: from the observations
    units: Units | None = None  # None: numbers as they are
    basis: int | None = None  # features are made from so many rows, the first; None: from all
    known: bool = False  # whether x were learned from all rows but the held-out block
    correction: MeanCorrection | None = None  # of filtered means

    @property
    def founding(self) -> "FittedData":
        """The rows that features are made from: those of the fit, without any added later."""
        n = self.z.shape[-2]
        if self.basis is None or self.basis == n:
            return replace(self, basis=None)
        block = range(self.basis, n)
        x, z = (outside(rows, block) for rows in (self.x, self.z))
        return replace(self, x=x, z=z, lengths=lengths_outside(self.lengths, block), basis=None)

    @property
    def apart(self) -> "list[FittedData]":
        """Data sets one by one, where the tables of several would not stay in the cache; or all."""
        batch, n = self.z.shape[:-2], self.z.shape[-2]
        if math.prod(batch) == 1 or not APART < n <= MEDIUM:
            return [self]
        return [self._member(index) for index in product(*map(range, batch))]

    def _member(self, index: tuple[int, ...]) -> "FittedData":
        """One of several data sets, without what was measured on all of them."""
        values = {name: getattr(self.choice, name)[index] for name in CHOICES}
        if self.choice.scale_u is not None:
            values["scale_u"] = self.choice.scale_u[index]
        return replace(
            self,
            x=self.x[index],
            z=self.z[index],
            choice=replace(self.choice, **values),
            reach=None if self.reach is None else self.reach[index],
            correction=None if self.correction is None else self.correction.member(index),
            calibration=None,
            smoothing=None,
        )

    def to(self, device: str | torch.device) -> "FittedData":

        def moved(value: Any) -> Any:
            if isinstance(value, Choice | Landmarks | MeanCorrection):
                return replace(value, **{k: moved(part) for k, part in vars(value).items()})
            return value.to(device) if hasattr(value, "to") else value

        return replace(self, **{name: moved(value) for name, value in vars(self).items()})


def together(each: Sequence[Tensor], batch: Sequence[int]) -> Tensor:
    """What was made of data sets one by one, as of all of them; see `FittedData.apart`."""
    return each[0] if len(each) == 1 else torch.stack(list(each)).reshape(*batch, *each[0].shape)


def pack(data: FittedData) -> dict[str, Any]:
    """Plain containers; a compressed filter is stored in float32, its dynamics in float16."""
    content: dict[str, Any] = {
        "x": data.x.clone(),  # a view would take the whole of its storage into the file
        "z": data.z.clone(),
        "lengths": list(data.lengths),
        "shape": list(data.shape),
        "choice": {name: getattr(data.choice, name) for name in CHOICES},
        "edges": [dict(vars(edge)) for edge in data.choice.edges],
        "history": data.history,
        "rates": data.rates,
    }
    if data.sensors is not None:
        content["sensors"] = data.sensors.record()
    if data.controls:
        content["controls"] = data.controls
        content["choice"] |= {"scale_u": data.choice.scale_u}
    if data.landmarks is not None:
        small = {"x": data.x, "z": data.z, **vars(data.landmarks)}
        small = {name: value.to(torch.float32) for name, value in small.items()}
        for name in ("left", "right"):  # numbers of at most about one, in white features
            small[name] = small[name].to(torch.float16)
        content |= {"x": small.pop("x"), "z": small.pop("z"), "landmarks": small}
    for name in ("calibration", "smoothing"):
        calibration = getattr(data, name)
        if calibration is not None:
            content[name] = calibration.record()
    optional = {
        "compression": data.compression and dict(vars(data.compression)),
        "reach": data.reach,
        "units": data.units and data.units.record(),
        "basis": data.basis,
        "known": data.known or None,
        "correction": data.correction and dict(vars(data.correction)),
    }
    return content | {name: value for name, value in optional.items() if value is not None}


def unpack(content: object) -> FittedData:
    """The inverse of `pack`; what does not fit together is refused by name."""
    try:
        assert isinstance(content, dict)
        found = content.get("sensors")
        x = _numbers(content["x"], finite=found is None)
        z = _numbers(content["z"]).to(torch.float64)
        lengths, shape = _counts(content["lengths"]), tuple(_counts(content["shape"]))
        controls = int(content.get("controls", 0))
        names = (*CHOICES, "scale_u") if controls else CHOICES
        batch, known = z.shape[:-2], content["choice"]
        known = {"floor": z.new_full(batch, torch.nan), **known}  # files of before have none
        choice = {name: _numbers(known[name], finite=False) for name in names}
        assert z.ndim >= 2
        assert controls >= 0
        assert x.shape == (*z.shape[:-1], math.prod(shape) + controls)
        sensors = None if found is None else Sensors.of_record(found)
        assert sensors is None or (not batch and sensors.width == math.prod(shape))
        assert all(value.shape == batch for value in choice.values())
        assert bool((choice["lam"] > 0).all())
        history, rates = content.get("history", 1), content.get("rates", 0)
        assert type(history) is int
        assert type(rates) is int
        assert history > 0
        assert history == 1 or shape[0] % history == 0
        assert 0 <= rates < z.shape[-1]
        landmarks, basis = content.get("landmarks"), content.get("basis")
        assert basis is None or (type(basis) is int and 0 < basis <= z.shape[-2])
        if landmarks is None:
            assert sum(lengths) == z.shape[-2]
        else:
            parts = (_numbers(landmarks[name]).double() for name in ("mass", "left", "right"))
            mass, left, right = parts
            assert not batch
            assert mass.shape == z.shape[:1]
            assert bool((mass >= 0).all())
            assert left.ndim == 2
            assert left.shape == right.mT.shape
            assert 0 < left.shape[0] <= len(mass)
            x, landmarks = x.to(torch.float64), Landmarks(mass / mass.sum(), left, right)
        # Files of before hold sentences in the place of edges.
        edges = tuple(Edge(**edge) for edge in content["edges"] if isinstance(edge, dict))
        compression = content.get("compression")
        return FittedData(
            x,
            z,
            lengths,
            shape,
            Choice(**choice, edges=edges, sensors=sensors),
            landmarks,
            None if compression is None else Compression(**compression),
            calibration_from(content.get("calibration"), z),
            calibration_from(content.get("smoothing"), z),
            None if content.get("reach") is None else _numbers(content["reach"]),
            None if content.get("units") is None else Units.from_record(content["units"]),
            history=history,
            rates=rates,
            controls=controls,
            sensors=sensors,
            basis=basis,
            known=content.get("known") is True,
            correction=_correction(content.get("correction"), z, x.shape[-1] - controls),
        )
    except KbrError:
        raise
    except BROKEN as error:
        raise KbrError(
            "the file's filter is incomplete or its parts do not fit together "
            f"({type(error).__name__}: {error}). Save it again with kbr."
        ) from error


def member(content: dict[str, Any], trial: int) -> dict[str, Any]:
    """The filter of one trial out of a batch of them."""
    z = content.get("z")
    if not isinstance(z, Tensor) or z.ndim < 3:
        return content
    if not 0 <= trial < len(z):
        raise KbrError(f"the file holds trials 0 .. {len(z) - 1}; got trial={trial}.")
    parts: dict[str, Any] = {"x": content["x"][trial], "z": z[trial]}
    if "choice" in content:
        parts["choice"] = {key: value[trial] for key, value in content["choice"].items()}
    for name in ("calibration", "smoothing"):
        if name in content:
            stored = content[name]
            each = {k: v[trial] for k, v in stored.items() if k not in ("horizons", "counts")}
            parts[name] = {**stored, **each}
    if content.get("reach") is not None:
        parts["reach"] = content["reach"][trial]
    if content.get("units") is not None:
        parts["units"] = Units.from_record(content["units"]).member(trial).record()
    if content.get("correction") is not None:
        one = content["correction"]["coefficients"][trial]
        parts["correction"] = {**content["correction"], "coefficients": one}
    return {**content, **parts}


def calibration_from(stored: Any, z: Tensor) -> Calibration | None:
    """What `Calibration.record` gave, of a filter of latents z; AssertionErrors if damaged."""
    if stored is None:
        return None
    tensors: Any = {key: _numbers(stored[key]) for key in ("blend", "errors", "scores")}
    if "horizons" not in stored:  # of a file from before gaps were told apart: ordinary steps alone
        one = {key: value.unsqueeze(z.ndim - 2) for key, value in tensors.items()}
        return Calibration(z.new_zeros(1), (stored["scores"].shape[-1],), **one)
    horizons, counts = _numbers(stored["horizons"]), tuple(_counts(stored["counts"]))
    lead, scores = (*z.shape[:-2], len(counts)), tensors["scores"]
    *errors_lead, rows, columns = tensors["errors"].shape
    assert horizons.shape == (len(counts),)
    assert tensors["blend"].shape == scores.shape[:-1] == tuple(errors_lead) == lead
    assert rows == columns > 0
    assert 0 < max(counts) <= scores.shape[-1]
    if "squares" in stored:  # not in files from before errors grew in new places
        tensors["squares"] = _numbers(stored["squares"])
        assert tensors["squares"].shape == (*lead, columns)
    if "places" not in stored:
        return Calibration(horizons, counts, **tensors)
    places, doubling = _numbers(stored["places"]), _numbers(stored["doubling"], finite=False)
    assert places.shape[:-2] == z.shape[:-2]
    assert 0 < places.shape[-1] <= z.shape[-1]
    assert doubling.shape == lead
    assert bool((doubling > 0).all())
    return Calibration(horizons, counts, **tensors, growth=Growth(places, doubling))


def _correction(stored: Any, z: Tensor, columns: int) -> MeanCorrection | None:
    if stored is None:
        return None
    coefficients, uses_x = _numbers(stored["coefficients"]), stored["uses_x"]
    rows = 2 * z.shape[-1] + (columns if uses_x is True else 0) + 1
    assert type(uses_x) is bool
    assert coefficients.shape == (*z.shape[:-2], rows, z.shape[-1])
    return MeanCorrection(coefficients.to(z), uses_x)


def _numbers(value: object, *, finite: bool = True) -> Tensor:
    assert isinstance(value, Tensor)
    assert value.is_floating_point()
    assert not finite or bool(value.isfinite().all())
    return value


def _counts(value: object) -> list[int]:
    assert isinstance(value, list)
    assert all(type(item) is int and item > 0 for item in value)
    return value
