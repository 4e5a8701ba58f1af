"""Going on with a run: which run a checkpoint is of, and whether it is this one."""

import hashlib
from pathlib import Path
from typing import Any, Literal

from kbr.core.errors import KbrError
from kbr.core.io import checkpoint
from kbr.core.io.file_rows import FileRows
from kbr.training.data import TrainingRows

LAST = Path("checkpoints") / "last.ckpt"

Training = Literal["none", "unfinished", "finished"]


def record_of(kind: str, settings: dict[str, Any], rows: TrainingRows, seed: int) -> dict[str, Any]:
    """What tells a run from others, as plain values."""
    digest, x = hashlib.sha256(), rows.x
    raw = (part.raw() for part in x.parts()) if isinstance(x, FileRows) else [x.numpy(force=True)]
    for part in raw:
        digest.update(part.tobytes())
    for table in (rows.z, *rows.u):
        digest.update(table.numpy(force=True).tobytes())
    digest.update(repr(rows.lengths).encode())
    return {"kind": kind, "settings": settings, "seed": seed, "data": digest.hexdigest()}


def last_checkpoint(run: Path, record: dict[str, Any]) -> Path | None:
    """The run's last.ckpt, checked to be of this very run; None before its first checkpoint."""
    if not run.is_dir():
        raise KbrError(f"there is no run folder {run} to resume. Set resume to one.")
    path = run / LAST
    if not path.is_file():
        return None
    content = checkpoint.load(path, kind=record["kind"])
    with checkpoint.restoring(path):
        # Once the filter's settings stood where Lightning keeps those of the network.
        then, now = content.get("settings", content["hyper_parameters"]), record["settings"]
        changed = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
        if changed:
            pairs = ", ".join(f"{key} (was {then.get(key)}, is {now.get(key)})" for key in changed)
            raise KbrError(f"a resumed run must keep its settings; changed: {pairs}.")
        for key, name in (("seed", "seed"), ("data", "training data")):
            if content[key] != record[key]:
                raise KbrError(f"a resumed run must keep its {name}; the one in {path} differs.")
    return path


def training_in(run: Path, record: dict[str, Any]) -> Training:
    """How far training of this very run has come in `run`."""
    try:
        path = last_checkpoint(run, record)
        if path is None:
            return "none"
        with checkpoint.restoring(path):
            states = checkpoint.load(path, kind=record["kind"])["callbacks"].values()
            finished = any(state.get("finished") for state in states)
            has_weights = any(state.get("weights") for state in states)
    except KbrError:
        return "none"  # of other settings or other data, or damaged: begin anew
    if not finished:
        return "unfinished"
    return "finished" if has_weights else "none"
