"""One way to load any filter kbr writes; training code is imported only if a file needs it."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.filter import KernelBayesFilter
from kbr.core.filters.kernel.storing.storage import KIND, RUN_KIND, member
from kbr.core.filters.moving.filter import MovingFilter
from kbr.core.filters.moving.storing import KIND as MOVING
from kbr.core.filters.moving.storing import trial_state as moving_state
from kbr.core.filters.refined.filter import KIND as REFINED
from kbr.core.filters.refined.filter import RefinedFilter, trial_state
from kbr.core.io import checkpoint
from kbr.core.units.scaling import Scaling
from kbr.core.units.units import Units

OWN = "kbr.own_model"
RECURRENT = ("lstm", "gru", "lru", "rkn", "transformer", "kalman_nn")
TRAINED = tuple(
    f"kbr.{name}_filter" for name in ("learned", "paired", "readout", "moving_readout", *RECURRENT)
)
RECORD = "run.json"  # of a finished run
DATA = "data.json"  # of a run on own data
WITHOUT_UNITS = (
    "was written before filters kept their units, and no data.json of its run lies beside it. If "
    "it was trained on own data, load the whole run folder, or train again."
)
OLD_RUN = (
    "was written before filters kept their units: names and scaling are those of its data.json; "
    "its columns of sequences and time are not known, so pass one sequence at a time."
)


def load_filter(run: str | Path, *, trial: int = 0, trust: Sequence[str] = ()) -> Any:
    """The filter of a run folder, or of a file, by the kind its file states.

    `trust` names modules of the user's, for parts of a filter and models that are defined there.
    """
    trust = (trust,) if isinstance(trust, str) else trust
    path = checkpoint_of(run, trial)
    _check_unaltered(Path(run), path)
    content = checkpoint.read(path)
    kind = content["kind"]
    _import_trusted(trust)
    if kind in TRAINED:
        from kbr import training

        units = None if content.get("units") is not None else _older_units(path)
        made = [getattr(training, name) for name in training.__all__]
        filters = {one.kind: one for one in made if hasattr(one, "kind")}
        return filters[kind].load(path, units=units)
    if kind == REFINED:
        refined = trial_state(content["refined"], trial)
        inner = _with_units(refined["filter"], path)
        return RefinedFilter.from_state({**refined, "filter": inner})
    if kind == MOVING:
        return MovingFilter.from_state(moving_state(content, trial))
    if kind == OWN:
        from kbr.app.models.own_filter import own_filter

        return own_filter(path, trial=trial, trust=trust)
    if kind not in (KIND, RUN_KIND):
        raise KbrError(
            f"{path} holds {kind}, which is no filter. Filters are "
            f"{', '.join((KIND, RUN_KIND, REFINED, MOVING, *TRAINED))}."
        )
    state = content.get("filter")
    if not isinstance(state, dict):
        of_run = "is of a run without a filter (data=gaussian)"
        raise KbrError(f"{path} {of_run if kind == RUN_KIND else 'holds no filter'}. Use another.")
    if kind == KIND:
        return KernelBayesFilter.from_state(state)
    return KernelBayesFilter.from_state(_with_units(member(state, trial), path))


def _import_trusted(names: Sequence[str]) -> None:
    """Makes kernels, rules, ratios and engines in modules of the user's known.

    A name may be that of a class in a module. What is no module at all is a resolver's.
    """
    for name in names:
        for module in filter(None, (name, name.rpartition(".")[0])):
            try:
                import_module(module)
                break
            except ImportError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise KbrError(f"trust={name} cannot be imported: {error}") from error


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as run.json keeps it of what a run left."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _check_unaltered(run: Path, path: Path) -> None:
    """A finished run folder holds the checkpoint that the run left."""
    try:
        known = json.loads((run / RECORD).read_text())["digests"][str(path.relative_to(run))]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return  # a file alone, or a run that did not finish: nothing to compare with
    if path.is_file() and file_digest(path) != known:
        raise KbrError(
            f"{path} is not the checkpoint that this run left: it was changed or swapped since. "
            f"Copy the run again; to use the file all the same, name it instead of its folder."
        )


def identity(run: str | Path, *, trial: int = 0) -> str:
    """A digest of the filter's content: two files of one filter have the same."""
    content = checkpoint.read(checkpoint_of(run, trial))
    if content["kind"] == OWN:
        raise KbrError(
            "state keeps beliefs of kbr's filters, not those of a model of your own. Leave out "
            "state."
        )
    digest = hashlib.sha256(str(trial).encode())
    for part in _parts({k: v for k, v in content.items() if k not in ("version", "kbr")}):
        digest.update(part)
    return digest.hexdigest()


def knows_units(run: Path, *, trial: int = 0) -> bool:
    """Whether the checkpoint itself says in which units its filter works."""
    content = checkpoint.read(checkpoint_of(run, trial))
    inner = content.get("refined", content)
    if content["kind"] == MOVING:
        inner = moving_state(content, trial)
    state = inner.get("filter", inner)
    return isinstance(state, dict) and state.get("units") is not None


def checkpoint_of(run: str | Path, trial: int = 0) -> Path:
    """The file itself, or the checkpoint inside a run folder."""
    path = Path(run)
    if not path.is_dir():
        return path
    best = Path("checkpoints") / "best.ckpt"
    seeds = sorted(path.glob("seed_*"), key=lambda folder: (len(folder.name), folder.name))
    if (path / best).is_file() or not seeds:
        return path / best
    if not 0 <= trial < len(seeds):
        raise KbrError(f"{path} holds trials 0 .. {len(seeds) - 1}; got trial={trial}.")
    return seeds[trial] / best


def _with_units(state: dict[str, Any], path: Path) -> dict[str, Any]:
    if state.get("units") is not None:
        return state
    units = _older_units(path)
    return state if units is None else {**state, "units": units.record()}


def _older_units(path: Path) -> Units | None:
    """Of a checkpoint that does not hold them: from data.json, where the run is on own data."""
    run = path.resolve().parent.parent
    data = next((p / DATA for p in (run, run.parent) if (p / DATA).is_file()), None)
    if data is None:
        if path.name != "best.ckpt" or not (run / ".hydra").is_dir():
            warnings.warn(f"{path} {WITHOUT_UNITS}", stacklevel=3)
        return None
    try:
        record = json.loads(data.read_text())
        image = len(record["shape"]) == 3
        scale_x, scale_z = _scaling(record["scale_x"], image), _scaling(record["scale_z"], False)
        names = [tuple(map(str, record[key])) for key in ("x", "z", "labels")]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise KbrError(
            f"{path} {OLD_RUN.split(':')[0]}, and {data} cannot be read ({error!r}). Train again."
        ) from error
    warnings.warn(f"{path} {OLD_RUN}", stacklevel=3)
    none = {"sequence": None, "time": None}
    x_names = None if image else names[0]
    return Units(scale_x, scale_z, x_names, names[1], labels=names[2], source=none)


def _scaling(record: Mapping[str, Any], image: bool) -> Scaling:
    if image:  # a value for each channel
        mean, scale = (
            torch.tensor(record[key], dtype=torch.float64, device="cpu").reshape(-1, 1, 1)
            for key in ("mean", "scale")
        )
        record = {**record, "mean": mean, "scale": scale, "circular": []}
    return Scaling.from_record({"batch": 0, **record})


def _parts(value: Any) -> Iterator[bytes]:
    """Plain containers and tensors as bytes, in an order of their own."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield str(key).encode()
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}]".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    else:
        yield repr(value).encode()
