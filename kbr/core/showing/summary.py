"""What a filter has learned and chosen, as typed facts, and as a table of 80 columns."""

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from kbr.core.uncertainty.calibration import Calibration
from kbr.core.units.units import Units

COLUMNS, NAMES = 80, 18  # of the table, and of the names in it
FEW = 6  # bandwidths that are listed one by one
LEVEL = 0.9


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A bandwidth scale or ridge in use: one value for each data set fitted together.

    source   "searched" between the bounds, "listed" by the user, "given", or where else it is from;
    edges    the ends of these bounds at which it was chosen, in words.
    """

    name: str
    values: tuple[float, ...]
    source: str
    bounds: tuple[float, float] | None = None
    edges: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """In words: of several data sets, from where to where they reach."""
        return span(self.values)

    def __str__(self) -> str:
        ends = "" if self.bounds is None else " {:.3g} .. {:.3g}".format(*self.bounds)
        parts = [self.value, f"{self.source}{ends}", *self.edges]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Of one column, in its unit: points so far apart are alike still. See `Kernel`."""

    of: str  # x, z or u
    column: str
    value: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Summary:
    """Facts of a fitted filter; what its kind does not have is None or empty.

    n, sequences    training steps, and the sequences they are of;
    ranks           features of x and z in use;
    approximations  what the engine leaves out, in words; empty: nothing beyond rounding;
    val_mse         what settings were chosen by: squared error, summed over the latents, which are
                    standardised where `standardized` says so;
    rmse            error of each latent at held-out steps, in the units of the data;
    coverage        share of these steps inside the 90 % region, which is calibrated on them;
    memory          bytes of the fitted tables;
    seconds         of the fit; None for a filter from a file, or made from another one;
    is_learned      False for a filter that is given its model.
    """

    kind: str
    latents: tuple[str, ...]
    method: str = ""
    n: int | None = None
    sequences: int | None = None
    observation: tuple[int, ...] | None = None
    engine: str = ""
    ranks: Mapping[str, int] = field(default_factory=dict)
    approximations: tuple[str, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    settings: tuple[Setting, ...] = ()
    val_mse: float | None = None
    standardized: bool = True
    rmse: Mapping[str, float] = field(default_factory=dict)
    held_out: int = 0
    coverage: float | None = None
    memory: int | None = None
    seconds: float | None = None
    is_learned: bool = True
    details: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return table(self)

    def setting(self, name: str) -> Setting:
        """The one of this name: scale, lam, eta, lam_transition, ..."""
        return {each.name: each for each in self.settings}[name]


def summary_of(
    kind: str, units: Units, calibration: Calibration | None, facts: Mapping[str, Any]
) -> Summary:
    """The facts of a filter's kind, with those that all filters have."""
    facts = {"standardized": bool(len(units.z.own)), **facts}
    if calibration is None:
        count = len(units.z.circular) or (units.z.own[0] if len(units.z.own) == 1 else 0)
        return Summary(kind=kind, latents=units.latent_labels(count), **facts)
    labels = units.latent_labels(calibration.errors.shape[-1])
    row = int(calibration.horizons.abs().argmin())  # ordinary steps: of evidence, and awake
    means = calibration.rms[..., row, :].reshape(-1, len(labels)).mean(0).tolist()
    count = calibration.counts[row]
    distances = calibration.scores[..., row, :count]
    inside = distances <= calibration.radius2(LEVEL)[..., row].unsqueeze(-1)
    return Summary(
        kind=kind,
        latents=labels,
        rmse=dict(zip(labels, means, strict=True)),
        held_out=count,
        coverage=float(inside.double().mean()),
        **facts,
    )


def table(summary: Summary) -> str:
    """The summary as text."""
    lines = [summary.kind]
    for name, text in _rows(summary):
        first = f"  {name:<{NAMES - 3}} "
        lines += textwrap.wrap(
            text,
            width=COLUMNS,
            initial_indent=first,
            subsequent_indent=" " * NAMES,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _rows(s: Summary) -> Iterator[tuple[str, str]]:
    if s.method:
        yield "method", s.method
    latents = ", ".join(s.latents[:FEW]) + (", ..." if len(s.latents) > FEW else "")
    shape = "" if s.observation is None else f"x {list(s.observation)} -> "
    count = "" if s.n is None else f"{s.n:,} steps, "
    several = "" if s.sequences in (None, 1) else f"{s.sequences} sequences, "
    yield "trained on" if s.is_learned else "model", f"{count}{several}{shape}z ({latents})"
    if s.engine:
        yield "engine", s.engine
    for note in s.approximations:
        yield "approximation", note
    if s.ranks:
        yield "ranks", ", ".join(f"{name} {rank}" for name, rank in s.ranks.items())
    for letter in dict.fromkeys(each.of for each in s.bandwidths):
        yield f"bandwidth {letter}", _bandwidths([b for b in s.bandwidths if b.of == letter])
    for setting in s.settings:
        yield setting.name, str(setting)
    yield from s.details.items()
    if s.val_mse is not None and math.isfinite(s.val_mse):
        of = "standardised latents" if s.standardized else "latents"
        yield "validation", f"mse {s.val_mse:.4g} (summed over {of})"
    if s.coverage is not None:
        each = [f"{value:.4g} ({name})" for name, value in s.rmse.items()]
        more = ", ..." if len(each) > FEW else ""
        yield "held out", f"rms error {', '.join(each[:FEW])}{more} at {s.held_out} steps"
        share = f"90 % regions hold {100 * s.coverage:.1f} % of these steps"
        yield "coverage", f"{share}, which they are calibrated on"
    elif s.is_learned:
        yield "coverage", "not measured: too few training steps to hold some out"
    if s.memory is not None:
        yield "memory", size(s.memory)
    if s.seconds is not None:
        yield "fit", f"{s.seconds:.2f} s"
    elif s.is_learned:
        yield "fit", "time not known: not kept in files"


def _bandwidths(each: list[Bandwidth]) -> str:
    if len(each) <= FEW:
        return ", ".join(f"{b.value:.3g} ({b.column})" for b in each)
    values = [b.value for b in each]
    return f"{min(values):.3g} .. {max(values):.3g} ({each[0].column} .. {each[-1].column})"


def span(values: tuple[float, ...]) -> str:
    """One value, or from where to where those of several data sets reach."""
    low, high = min(values), max(values)
    if f"{low:.3g}" == f"{high:.3g}":
        return f"{low:.3g}"
    return f"{low:.3g} .. {high:.3g} in {len(values)} data sets"


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


def numbers(values: Tensor) -> tuple[float, ...]:
    """One for each data set."""
    return tuple(float(value) for value in values.reshape(-1))
