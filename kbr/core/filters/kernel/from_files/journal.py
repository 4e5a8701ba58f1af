"""What a long fit has done so far, in a small file: the same fit goes on from there."""

import hashlib
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kbr.core.errors import KbrError
from kbr.core.filters.kernel.from_files.team import Team
from kbr.core.io import checkpoint

KIND = "kbr.fit_files"
Sums = tuple[int, np.ndarray | None]  # pieces done, and their sum; None before any


class Journal:
    """Steps by name, in a file that is whole at any moment; without a path, in memory alone.

    A file of another `key`, that is of other data or settings, is not used, and a warning says so.
    """

    def __init__(self, path: Path | None, key: str, team: Team) -> None:
        self.path = path if team.leads else None
        self.team, self.key = team, key
        self.steps: dict[str, Any] = team.once(self._read)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, plain values and tensors, or gave before the fit was stopped."""
        if name not in self.steps:
            self.steps[name] = self.team.once(make)
            self._write()
        return self.steps[name]

    def sums(self, name: str) -> Sums:
        done, total = self.steps.get(f"sums of {name}", (0, None))
        return done, None if total is None else total.numpy().copy()

    def keep_sums(self, name: str, done: int, total: np.ndarray) -> None:
        self.steps[f"sums of {name}"] = [done, torch.from_numpy(total.copy())]
        self._write()

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self.path is not None:
            checkpoint.save(self.path, {"kind": KIND, "key": self.key, "steps": self.steps})

    def _read(self) -> dict[str, Any]:
        if self.path is None or not self.path.exists():
            return {}
        found: dict[str, Any] = {}
        with suppress(KbrError):  # what is damaged is not used either
            found = checkpoint.load(self.path, kind=KIND)
        if found.get("key") != self.key:
            warnings.warn(
                f"{self.path} is of another fit: the data, the settings or the version of kbr have "
                "changed, or it is damaged. This fit begins anew.",
                stacklevel=2,
            )
            return {}
        steps: dict[str, Any] = found["steps"]
        return steps


def key_of(*parts: Any) -> str:
    """A digest of plain values and tensors."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
        return repr(value)

    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=plain).encode()).hexdigest()
