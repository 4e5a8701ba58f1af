"""Progress bars, on a terminal only."""

import sys
from collections.abc import Iterable, Sequence

from tqdm import tqdm

from kbr.core.filters.tuning import Progress


def grid_progress(filters: int, quiet: bool) -> Progress | None:
    """A bar over bandwidth settings, each of which runs `filters` filters as one batch."""
    if quiet:
        return None

    def bar(grid: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
        text = f"tuning ({filters} filters each)"
        shown: Iterable[tuple[float, float]] = tqdm(
            grid, desc=text, ncols=80, leave=False, disable=not sys.stderr.isatty()
        )
        return shown

    return bar
