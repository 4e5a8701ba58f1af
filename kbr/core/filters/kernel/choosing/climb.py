"""A search in single steps, for many points and kernels of a high rank: each trial takes seconds.

From a middle setting, each of the bandwidths of z and of x, both ridges and the ratio's floor is
moved in turn, and on in the same direction while the error falls by PAYS. It ends when a round has
moved nothing. Bandwidths of x and z move apart: with many columns, x needs a wider one. And eta
moves away from what leave-one-out says, which looks one step ahead: where errors of the sensors
last for many steps, a prediction that is as sharp as the dynamics holds on to them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from kbr.core.filters.kernel.choosing.search import SCALE_BOUNDS, Bounds

FLOORS = (0.0, 0.01, 0.03, 0.1, 0.3)  # of the ratio, as shares of its largest value
TRIALS = 20  # at most
STEPS = {"lam": 10.0, "eta": 30.0, "scale_x": 2.0, "scale_z": 2.0}  # factors of a move
PAYS = 0.03  # share of the error by which a move has to lower it: one block is noisy,
LESS = 0.2  # and a smaller ridge or a higher floor, which may lose the track elsewhere
BOLD = (("lam", False), ("eta", False), ("floor", True))


@dataclass(frozen=True)
class Cell:
    """A setting of the search: bandwidths in medians, both ridges and the ratio's floor."""

    scale_z: float = 0.125
    scale_x: float = 0.5
    lam: float = 1e-3
    floor: float = 0.1
    eta: float = 1e-3

    def moved(self, name: str, up: bool, bounds: Mapping[str, Bounds]) -> "Cell | None":
        """The neighbour in one direction; None beyond a bound."""
        value = getattr(self, name)
        if name == "floor":
            at = FLOORS.index(value) + (1 if up else -1)
            return replace(self, floor=FLOORS[at]) if 0 <= at < len(FLOORS) else None
        step, (lowest, highest) = STEPS[name], bounds.get(name, SCALE_BOUNDS)
        value = float(f"{value * step if up else value / step:.9g}")  # so that cells compare equal
        inside = lowest / 1.001 <= value <= highest * 1.001
        return replace(self, **{name: value}) if inside else None


Score = Callable[[Cell, float], float]  # the error, as far as it is below a limit


def climb(
    score: Score,
    start: Cell,
    free: Sequence[str],
    bounds: Mapping[str, Bounds],
    progress: Callable[[Iterable[Cell]], Iterable[Cell]] | None = None,
) -> tuple[Cell, float]:
    """The best cell found, and its error; only the settings in `free` move, within bounds."""
    errors: dict[Cell, float] = {}
    best, limit = start, math.inf

    def cells() -> Iterator[Cell]:
        """What to try next, given the errors so far."""
        nonlocal best, limit
        yield start
        moved = True
        while moved:
            moved = False
            for name, up in product(free, (False, True)):
                cell = best.moved(name, up, bounds)
                pays = LESS if (name, up) in BOLD else PAYS
                while cell is not None and cell not in errors and len(errors) < TRIALS:
                    limit = (1 - pays) * errors[best]
                    yield cell
                    if not errors[cell] < limit:
                        break
                    best, moved = cell, True
                    cell = best.moved(name, up, bounds)

    for cell in cells() if progress is None else progress(cells()):
        errors[cell] = score(cell, limit)
    return best, errors[best]
