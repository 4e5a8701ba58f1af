"""One way to load any filter kbr writes; training code is imported only if a file needs it."""

from pathlib import Path
from typing import Any

from kbr.core import checkpoint
from kbr.core.errors import KbrError
from kbr.core.filters.kernel_bayes import KernelBayesFilter
from kbr.core.filters.refined import KIND as REFINED
from kbr.core.filters.refined import RefinedFilter, trial_state
from kbr.core.filters.storage import KIND, RUN_KIND, member

TRAINED = ("kbr.learned_filter", "kbr.lstm_filter")


def load_filter(path: Path, *, trial: int = 0) -> Any:
    """The filter at `path`, by the kind its file states."""
    path = _checkpoint(path, trial)
    content = checkpoint.read(path)
    kind = content["kind"]
    if kind == KIND:
        return KernelBayesFilter.load(path)
    if kind == RUN_KIND:
        state = content.get("filter")
        if not isinstance(state, dict):
            raise KbrError(f"{path} is of a run without a filter (data=gaussian). Use another run.")
        return KernelBayesFilter.from_state(member(state, trial))
    if kind == REFINED:
        return RefinedFilter.from_state(trial_state(content["refined"], trial))
    if kind in TRAINED:
        from kbr.training.learned_filter import LearnedFilter
        from kbr.training.lstm_filter import LSTMFilter

        return next(cls for cls in (LearnedFilter, LSTMFilter) if cls.kind == kind).load(path)
    raise KbrError(
        f"{path} holds {kind}, which is no filter. Filters are "
        f"{', '.join((KIND, RUN_KIND, REFINED, *TRAINED))}."
    )


def _checkpoint(path: Path, trial: int) -> Path:
    """The file itself, or the checkpoint inside a run folder."""
    if not path.is_dir():
        return path
    best = Path("checkpoints") / "best.ckpt"
    seeds = sorted(path.glob("seed_*"), key=lambda folder: (len(folder.name), folder.name))
    if (path / best).is_file() or not seeds:
        return path / best
    if not 0 <= trial < len(seeds):
        raise KbrError(f"{path} holds trials 0 .. {len(seeds) - 1}; got trial={trial}.")
    return seeds[trial] / best
