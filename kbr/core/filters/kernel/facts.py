"""What a kernel Bayes filter says in its summary: engine, ranks, bandwidths, and where on grids."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kbr.core.features import Features
from kbr.core.filters.kernel.choosing.search import ETA_BOUNDS, Bounds, Choice, Edge
from kbr.core.filters.kernel.correcting.learning import why_not
from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio
from kbr.core.filters.kernel.engine import Compressed, LowRank, Update
from kbr.core.filters.kernel.engines.local import Local
from kbr.core.filters.kernel.engines.sensors import SensorUpdate
from kbr.core.filters.kernel.fitted import Fitted
from kbr.core.filters.kernel.operators import LearnedOperators
from kbr.core.filters.kernel.settings import Settings, is_free
from kbr.core.io.memory import tensor_bytes
from kbr.core.kernels import Kernel, Linear
from kbr.core.per_coordinate import PerCoordinate
from kbr.core.showing.summary import Bandwidth, Setting, numbers
from kbr.core.units.columns import numbered
from kbr.core.units.scaling import Scaling
from kbr.core.units.units import Units

Grid = tuple[str, Bounds | None]  # where a value is from, and between which bounds
Grids = dict[str, Grid]
ENDS = ("lower", "upper")
GIVEN: Grid = ("given", None)


def kernel_facts(
    fitted: Fitted, grids: Grids | None = None, edges: tuple[Edge, ...] | None = None
) -> dict[str, Any]:
    """Fields of `Summary`; `grids` and `edges` where others chose than its settings say."""
    data, operators = fitted.data, fitted.operators
    choice, update = data.choice, operators.update
    grids = grids_of(fitted.settings, data.observed.shape[-1]) if grids is None else grids
    error = choice.val_mse
    return {
        "method": f"{type(operators.rule).__name__}, {type(operators.rule.ratio).__name__}",
        "n": operators.n if data.compression is None else data.compression.n_train,
        "sequences": len(data.lengths) if data.landmarks is None else None,
        "observation": fitted.one,
        "engine": _engine(update),
        "ranks": _ranks(fitted),
        "approximations": tuple(_approximations(fitted)),
        "bandwidths": tuple(_bandwidths(fitted)),
        "settings": tuple(settings_of(choice, grids, choice.edges if edges is None else edges)),
        "val_mse": float(error.mean()),
        "memory": tensor_bytes(fitted),
        "details": _details(fitted),
    }


def grid_of(values: Sequence[float], bounds: Bounds | None) -> Grid:
    """Of a search between bounds, or among values that were given."""
    if bounds is not None:
        return "searched", bounds
    return GIVEN if len(values) == 1 else ("listed", (min(values), max(values)))


def grids_of(settings: Settings, coordinates: int) -> Grids:
    """Where the settings let each value come from."""
    space, rule, grids = settings.space(coordinates), settings.rule, Grids()
    for name, kernel in (("scale_x", rule.kernel_x), ("scale_z", rule.kernel_z)):
        if is_free(kernel):
            grids[name] = grid_of(space.scales, space.scale_bounds)
    grids["lam"] = grid_of(space.lams, space.lam_bounds)
    if not isinstance(rule.ratio, TransitionRatio):
        listed, bounds = settings.etas or (), None if settings.etas else ETA_BOUNDS
        grids["eta"] = GIVEN if settings.given_eta is not None else grid_of(listed, bounds)
        same = ("as eta", None)
        grids["lam_transition"] = same if settings.lam_transition is None else GIVEN
    return grids


def settings_of(choice: Choice, grids: Grids, edges: tuple[Edge, ...]) -> Iterator[Setting]:
    """The values in use: bandwidth scales in median distances, and ridges."""
    for name, (source, bounds) in grids.items():
        values = getattr(choice, name)
        kind = "scale" if name.startswith("scale") else name  # both are searched as one
        ends = tuple(_at(edge) for edge in edges if edge.name == kind)
        if not ends and bounds is not None and source == "searched" and name != "scale_x":
            ends = _meant(values, bounds)
        found = numbers(values)
        yield Setting(name=name, values=found, source=source, bounds=bounds, edges=ends)
    if not bool(choice.floor.isnan().any()):
        yield Setting(name="floor", values=numbers(choice.floor), source="of the ratio")
    if choice.scale_u is not None:
        yield Setting(name="scale_u", values=numbers(choice.scale_u), source="of controls")


def _at(edge: Edge) -> str:
    share = "" if edge.of == 1 else f" in {edge.count} of {edge.of} data sets"
    return f"at the {edge.end} end{share}: widen {edge.setting}"


def _meant(values: Tensor, bounds: Bounds) -> tuple[str, ...]:
    """Ends that are no edge: the search is meant to stop there."""
    at = {end: (values / b - 1).abs() < 1e-6 for end, b in zip(ENDS, bounds, strict=True)}
    return tuple(f"at the {end} end, by design" for end, met in at.items() if bool(met.any()))


def _engine(update: Update) -> str:
    name = update.name
    if isinstance(update, Compressed):
        return f"{name} (products of features over {update.pivots.shape[-2]} pivots)"
    if isinstance(update, Local):
        return f"{name} (the {update.limit} points that matter most to a step)"
    words = {
        "low_rank": "solves of the rank of x",
        "active_set": "Gram matrix of the points with a ratio",
        "sensors": "an update for each set of sensors that a row has",
    }
    return f"{name} ({words[name]})" if name in words else name


def _ranks(fitted: Fitted) -> dict[str, int]:
    update = fitted.operators.update
    found = {"x": update.features.train.shape[-1]} if isinstance(update, LowRank) else {}
    return {**found, "z": fitted.operators.rank}


def _approximations(fitted: Fitted) -> Iterator[str]:
    """What is left out beyond rounding."""
    operators, compression = fitted.operators, fitted.data.compression
    if isinstance(operators, LearnedOperators):
        yield from operators.notes
        yield from () if operators.lift is None else operators.lift.notes
    if compression is not None:
        whole = f"{compression.n_train:,} pairs"
        yield f"{operators.n:,} weighted pairs in the place of {whole}, whose dynamics they keep"


def _details(fitted: Fitted) -> dict[str, str]:
    """History, velocity, sensors, rows added later, several data sets: where it has them."""
    data, batch, found = fitted.data, fitted.data.z.shape[:-2].numel(), {}
    if batch > 1:
        found["data sets"] = f"{batch}, fitted together: medians of bandwidths, means of errors"
    if data.basis is not None:
        found["added later"] = f"{fitted.n - data.basis:,} steps (partial_fit)"
    if data.history > 1:
        found["history"] = f"{data.history} observations at a time"
    if data.correction is not None:
        count, used = batch, (data.correction.coefficients != 0).flatten(-2).any(-1)
        helped = "" if bool(used.all()) else f", in {int(used.sum())} of {count}"
        none = "none: it does not help at held-out steps"
        found["correction"] = f"linear, of means{helped}" if bool(used.any()) else none
    elif fitted.settings.correcting is not None and (reason := why_not(fitted)):
        found["correction"] = f"of means: none {reason}"
    if data.rates:
        found["velocity"] = "differences of z beside z"
    if data.sensors is not None:
        own = fitted.settings.sensor_kernels or {}
        kinds = {name: f"{type(kernel).__name__}, " for name, kernel in own.items()}
        each = zip(data.sensors.names, data.sensors.scales, strict=True)
        named = ", ".join(f"{name} ({kinds.get(name, '')}bandwidth x {s:g})" for name, s in each)
        found["sensors"] = f"{named}; joined by {data.sensors.fusion}"
    return found


def _bandwidths(fitted: Fitted) -> Iterator[Bandwidth]:
    """Of every column, in its unit."""
    units, update, operators = fitted.units, fitted.operators.update, fitted.operators
    kernel_z = fitted.latents.kernel if isinstance(fitted.latents, Features) else None
    sides = [
        ("x", _widths_x(fitted, update), units.x, _labels(units)),
        ("z", _widths(kernel_z), units.z, units.z_names),
    ]
    if isinstance(operators, LearnedOperators) and operators.lift is not None and units.u:
        widths = _widths(operators.lift.kernel)
        sides.append(("u", widths, units.u.scaling, units.u.columns))
    for letter, widths, scaling, names in sides:
        if widths is not None:
            for column, value in _in_units(widths, scaling, names, letter):
                yield Bandwidth(of=letter, column=column, value=value)


def _widths_x(fitted: Fitted, update: Update) -> Tensor | None:
    if isinstance(update, SensorUpdate):
        settings, widths = fitted.settings, update.widths * fitted.data.choice.scale_x
        own = settings.sensor_kernels or {}
        for name, columns in zip(update.sensors.names, update.sensors.columns, strict=True):
            kernel = own.get(name, settings.rule.kernel_x)
            if isinstance(kernel, Kernel) and is_free(kernel):
                widths[list(columns)] *= kernel.scale
        return widths
    of = update.features if isinstance(update, LowRank) else update
    return _widths(getattr(of, "kernel", None))


def _labels(units: Units) -> tuple[str, ...] | None:
    """Names of the columns of x; of frames, of the first pixel of each channel alone."""
    if units.layout is None:
        return units.x_names
    called = list(units.layout.columns)
    for name, span in units.layout.spans.items():
        first = [at.start for at in units.layout.channels if at.start in span]
        for k, at in enumerate(first):
            called[at] = name if len(first) == 1 else f"{name}_{k + 1}"
    return tuple(called)


def _widths(kernel: object) -> Tensor | None:
    """Bandwidths in inner coordinates [k], k one or more; medians over data sets."""
    if not isinstance(kernel, Kernel) or isinstance(kernel, Linear) or kernel.bandwidth is None:
        return None
    width = kernel.bandwidth
    if not isinstance(width, Tensor):
        return torch.tensor([float(width)], dtype=torch.float64, device="cpu")
    each = width.shape[-1] if isinstance(kernel, PerCoordinate) else 1
    return width.reshape(-1, each).median(0).values


def _in_units(
    widths: Tensor, scaling: Scaling, names: tuple[str, ...] | None, letter: str
) -> Iterator[tuple[str, float]]:
    """Columns and their bandwidths in recorded units; an angle's is the arc of its chord."""
    own = len(scaling.own)
    scale = scaling.scale.reshape(-1, *scaling.own).median(0).values if own else scaling.scale
    if own != 1:  # frames by channel, or numbers as they are
        each = (scale.reshape(-1, 1) * widths).reshape(-1).tolist()
        called = (letter,) if len(each) == 1 else numbered(letter, len(each))
        called = names if names is not None and len(names) == len(each) else called
        yield from zip(called, each, strict=True)
        return
    count = len(scaling.circular) or len(scale)
    called = names or numbered(letter, count)
    for k, name in enumerate(called):
        if not name:
            continue
        mark, at = bool(scaling.circular) and scaling.circular[k], k + sum(scaling.circular[:k])
        value = float(scale[at] * widths[at if len(widths) > 1 else 0])
        yield name, value * scaling.turn / (2 * math.pi) if mark else value
