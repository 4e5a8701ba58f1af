"""Progress bars, on a terminal only."""

import sys
from collections.abc import Iterable

from tqdm import tqdm

from kbr.core.filters.kernel.search import Progress, Trial


def grid_progress(filters: int, quiet: bool) -> Progress | None:
    """A bar over bandwidth scales, each of which runs `filters` filters as one batch."""
    if quiet:
        return None

    def bar(trials: Iterable[Trial]) -> Iterable[Trial]:
        text = f"tuning ({filters} filters each)"
        shown: Iterable[Trial] = tqdm(
            trials, desc=text, ncols=80, leave=False, disable=not sys.stderr.isatty()
        )
        return shown

    return bar
