"""A bar over the trials of a search; tqdm is loaded when the first is shown."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kbr.core.errors import KbrError

Shown = Callable[[Iterable[Any]], Iterable[Any]]


def bar_of(
    progress: Any, what: str = "trying bandwidths and ridges", unit: str = " trials"
) -> Shown | None:
    """What a user asks for: True is a bar, None or False nothing, a function itself."""
    if progress is None or progress is False:
        return None
    if progress is not True:
        if not callable(progress):
            raise KbrError(f"progress must be True, False or a function; got {progress!r}.")
        return progress  # type: ignore[no-any-return]
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise KbrError("progress=True needs tqdm: pip install tqdm.") from error
    return partial(tqdm, desc=what, unit=unit, ncols=80)
