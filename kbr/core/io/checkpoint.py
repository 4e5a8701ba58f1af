"""Checkpoints: whole or absent on disk, and read without running anything they hold."""

import errno
import os
import pickle
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from kbr.core.errors import KbrError
from kbr.core.io.npy import ARCHIVE

VERSION = 1
LIMIT = "KBR_MAX_CHECKPOINT_MB"  # the environment variable that raises the limit below
VALUES_MB = 4.0  # most that the plain values of a checkpoint may take; ours take some kB
# What torch's reader raises on files whose bytes were changed, beside what archives raise.
OTHER = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ImportError,
    MemoryError,
)
DAMAGE = (*ARCHIVE, *OTHER, ArithmeticError)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """`write` a temporary neighbour, flush it to disk, then put it in the place of `path`.

    A process killed at any moment leaves the old file or the new one, never a part of one; so does
    a disk that is full. A link stays a link: what it points to is written. Several threads and
    processes may write one path; the last one stands.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.exists() and not target.is_file():
        raise KbrError(f"cannot write {path}: it is a folder or a device. Name a file.")
    temporary = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(target)
    except OSError as error:
        full = error.errno in FULL or error.errno is None  # None: see `save`
        advice = "Make room on the disk, or write" if full else "Write"
        raise KbrError(
            f"cannot write {path}: {error.strerror or error}. What was there before is intact. "
            f"{advice} to another place."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Plain containers and tensors only: `load` refuses anything else."""

    def write(temporary: Path) -> None:
        try:
            torch.save({"version": VERSION, **content}, temporary)
        except RuntimeError as error:  # how PyTorch's writer says that the disk is full
            raise OSError(str(error).splitlines()[0]) from error

    write_atomically(path, write)


def load(path: str | Path, *, kind: str) -> dict[str, Any]:
    """The content of a checkpoint of this kind, with weights_only=True."""
    content = read(path)
    if content["kind"] != kind:
        raise KbrError(
            f"{path} holds {content['kind']}; expected {kind}. Choose the model that the "
            "checkpoint was trained with, or the checkpoint of this model."
        )
    return content


def read(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint of any kind of kbr's; nothing in it is executed."""
    path = Path(path)
    if not path.is_file():
        raise KbrError(f"there is no checkpoint at {path}. Pass the path of a run's best.ckpt.")
    if not _is_archive(path):
        raise KbrError(
            f"{path} ({path.stat().st_size} bytes) is truncated or no checkpoint at all. Copy it "
            "again, or train again."
        )
    try:
        with restoring(path):
            _check_archive(path)
            content = torch.load(path, map_location="cpu", weights_only=True)
            _check_sizes(content, path)
    except pickle.UnpicklingError as error:
        raise KbrError(
            f"{path} holds code or objects beside tensors and plain values; kbr never runs what a "
            "checkpoint holds, and writes none like it. Use a checkpoint written by kbr."
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
        raise KbrError(f"{path} holds no kbr model. Use a checkpoint written by kbr.")
    if content.get("version") != VERSION:
        raise KbrError(
            f"{path} has format version {content.get('version')}; this kbr reads {VERSION}. "
            "Use the version of kbr that wrote it, or train again."
        )
    return content


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # a damaged directory makes the question itself fail
        return False


def _check_archive(path: Path) -> None:
    """Before anything is unpacked: nothing in it is larger than the file says, or was changed."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise KbrError(
                f"{path} is compressed; kbr writes no checkpoint like it, and unpacks none. Use a "
                "checkpoint written by kbr."
            )
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise zipfile.BadZipFile("its parts are larger than the file")
        values = sum(entry.file_size for entry in entries if entry.filename.endswith(".pkl"))
        _check_limit(path, values, most=VALUES_MB, what="plain values")
        bad = archive.testzip()
    if bad is not None:
        raise zipfile.BadZipFile(f"the check sum of {bad} is wrong")


def _check_sizes(content: Any, path: Path) -> None:
    """Tensors that are larger than the file (one number repeated) would fill the memory later."""
    size, seen, left = 0, set(), [content]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            size += value.numel() * value.element_size()
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple | set):
            left += value
    _check_limit(path, size, most=VALUES_MB + 2e-6 * path.stat().st_size, what="tensors")


def _check_limit(path: Path, size: int, *, most: float, what: str) -> None:
    limit = os.environ.get(LIMIT, "0")
    if not limit.replace(".", "", 1).isdecimal():
        raise KbrError(f"{LIMIT} must be a number of megabytes; got {limit!r}.")
    if size > 1e6 * max(most, float(limit)):
        raise KbrError(
            f"{path} ({path.stat().st_size / 1e6:.3g} MB) holds {what} of {size / 1e6:,.0f} MB; "
            f"kbr writes no checkpoint like it. If you trust it, set {LIMIT}={size / 1e6 + 1:.0f}."
        )


@contextmanager
def restoring(path: str | Path) -> Iterator[None]:
    """A file that is damaged, or whole but without an entry that is needed, is named."""
    try:
        yield
    except KbrError:
        raise
    except DAMAGE as error:
        line = str(error).partition("\n")[0]
        reason = f"no entry {error}" if isinstance(error, KeyError) else line
        raise KbrError(
            f"{path} cannot be read, it is damaged ({reason or type(error).__name__}). Copy it "
            "again, or train again."
        ) from error


def plain(value: Any) -> Any:
    """Mappings, sequences and numbers as dict, list, str, int, float, bool or None.

    Anything else (a path, a class) becomes its string: checkpoints hold no objects.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    return str(value)
