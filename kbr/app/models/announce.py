"""What a long job will take, said before it starts and while it runs."""

import sys
from functools import partial

from tqdm import tqdm

from kbr.core.filters.kernel.choosing.search import Progress
from kbr.core.filters.kernel.engines.large import estimate
from kbr.core.io.memory import check_memory, gigabytes

LONG = 50_000  # training points, of all trials together, from which a job is announced


def announce(n_train: int, trials: int, *, quiet: bool) -> None:
    """Memory and time of a kernel filter; an error where this machine has too little memory."""
    size, seconds = estimate(n_train, batch=trials)
    named = f"n = {n_train:,}" if trials == 1 else f"{trials} trials of n = {n_train:,}"
    check_memory(size, what=named, advice="Lower data.n_train, or trials.")
    if n_train * trials >= LONG and not quiet:
        print(f"  {named}: about {gigabytes(size)} and {seconds:.0f} s on one core", flush=True)


def grid_progress(filters: int, quiet: bool) -> Progress | None:
    """A bar over bandwidth scales, each of which runs `filters` filters; on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None
    return partial(tqdm, desc=f"tuning ({filters} filters each)", ncols=80, leave=False)
