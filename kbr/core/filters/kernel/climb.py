"""A search in single steps, for many points and kernels of a high rank: each trial takes seconds.

From a middle setting, each of the bandwidths of z and of x, the ridge lam and the ratio's floor is
moved in turn, and on in the same direction while the error falls by PAYS. It ends when a round has
moved nothing. Bandwidths of x and z move apart: with many columns, x needs a wider one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from kbr.core.filters.kernel.search import SCALE_BOUNDS, Bounds

FLOORS = (0.0, 0.01, 0.03, 0.1, 0.3)  # of the ratio, as shares of its largest value
TRIALS = 18  # at most
PAYS = 0.03  # share of the error by which a move has to lower it: one block is noisy,
LESS = 0.2  # and a smaller ridge or a higher floor, which may lose the track elsewhere


@dataclass(frozen=True)
class Cell:
    """A setting of the search: bandwidths in medians, the ridge and the ratio's floor."""

    scale_z: float = 0.125
    scale_x: float = 0.5
    lam: float = 1e-3
    floor: float = 0.1

    def moved(self, name: str, up: bool, lam_bounds: Bounds) -> "Cell | None":
        """The neighbour in one direction; None beyond a bound."""
        value = getattr(self, name)
        if name == "floor":
            at = FLOORS.index(value) + (1 if up else -1)
            return replace(self, floor=FLOORS[at]) if 0 <= at < len(FLOORS) else None
        step, bounds = (10.0, lam_bounds) if name == "lam" else (2.0, SCALE_BOUNDS)
        value = float(f"{value * step if up else value / step:.9g}")  # so that cells compare equal
        inside = bounds[0] / 1.001 <= value <= bounds[1] * 1.001
        return replace(self, **{name: value}) if inside else None


Score = Callable[[Cell], float]


def climb(
    score: Score,
    start: Cell,
    free: Sequence[str],
    lam_bounds: Bounds,
    progress: Callable[[Iterable[Cell]], Iterable[Cell]] | None = None,
) -> tuple[Cell, float]:
    """The best cell found, and its error; only the settings in `free` move."""
    errors: dict[Cell, float] = {}
    best = start

    def cells() -> Iterator[Cell]:
        """What to try next, given the errors so far."""
        nonlocal best
        yield start
        moved = True
        while moved:
            moved = False
            for name, up in product(free, (False, True)):
                cell = best.moved(name, up, lam_bounds)
                while cell is not None and cell not in errors and len(errors) < TRIALS:
                    yield cell
                    bold = (name, up) in (("lam", False), ("floor", True))
                    if not errors[cell] < (1 - (LESS if bold else PAYS)) * errors[best]:
                        break
                    best, moved = cell, True
                    cell = best.moved(name, up, lam_bounds)

    for cell in cells() if progress is None else progress(cells()):
        errors[cell] = score(cell)
    return best, errors[best]
