"""How much memory there is, and a refusal in plain words before there is too little."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from kbr.core.errors import KbrError

MEMINFO = Path("/proc/meminfo")
# Where containers and batch systems set a limit, versions 2 and 1: limit, use, and the name of what
# of it the system gives back when asked.
GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def available_memory(device: torch.device | None = None) -> float:
    """Bytes that can still be taken on this device; infinite where the system does not say."""
    if device is not None and device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return min(_unused(MEMINFO), *(_left(*group) for group in GROUPS))


def check_memory(
    needed: float, *, what: str, advice: str, device: torch.device | None = None
) -> None:
    """An error where `what` takes more than there is."""
    there = available_memory(device)
    if needed > there:
        raise KbrError(
            f"{what} takes about {gigabytes(needed)} of memory, and {gigabytes(there)} are "
            f"available. {advice}"
        )


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _unused(path: Path) -> float:
    return 1024 * _numbers(path).get("MemAvailable", float("inf"))


def _left(folder: Path, limit: str, use: str, cache: str) -> float:
    top, used = folder / limit, folder / use
    if not (top.is_file() and used.is_file()) or top.read_text().strip() == "max":
        return float("inf")
    given_back = _numbers(folder / "memory.stat").get(cache, 0.0)
    return float(top.read_text()) - float(used.read_text()) + given_back


def _numbers(path: Path) -> dict[str, float]:
    """A system file of names and numbers."""
    if not path.is_file():
        return {}
    rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {row[0]: float(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def tensor_bytes(*objects: object) -> int:
    """Bytes of all tensors and arrays that can be reached from these objects, each counted once.

    What stays in a file (a memory map) does not count.
    """
    waiting, met, storages, total = list(objects), set(), set(), 0
    kept = []  # so that no id is given twice
    while waiting:
        one = waiting.pop()
        if id(one) in met or isinstance(one, type | ModuleType | str | int | float):
            continue
        met.add(id(one))
        kept.append(one)
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            if storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                total += storage.nbytes()
        elif isinstance(one, np.ndarray):
            total += 0 if isinstance(one, np.memmap) else one.nbytes
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set):
            waiting += one
        elif isinstance(one, partial):
            waiting += [one.func, one.args, one.keywords]
        elif isinstance(one, FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or () if _filled(cell)]
            waiting += one.__defaults__ or ()
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        else:
            waiting += vars(one).values() if hasattr(one, "__dict__") else []
    return total


def _filled(cell: Any) -> bool:
    """Whether a closure's variable has a value yet."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
