"""Checkpoints: whole or absent on disk, and read without running anything they hold."""

import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kbr.core.errors import KbrError

VERSION = 1
DAMAGE = (  # what torch's reader raises on files whose bytes were changed
    RuntimeError,
    EOFError,
    OSError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    ImportError,
    zipfile.BadZipFile,
    struct.error,
)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """`write` a temporary neighbour, flush it to disk, then put it in the place of `path`.

    A process killed at any moment leaves the old file or the new one, never a part of one; so does
    a disk that is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        raise KbrError(
            f"cannot write {path}: {error.strerror or error}. What was there before is intact. "
            "Make room on the disk, or write to another one."
        ) from error
    finally:
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
        _check_sums(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise KbrError(
            f"{path} holds code or objects beside tensors and plain values; kbr never runs what a "
            "checkpoint holds, and writes none like it. Use a checkpoint written by kbr."
        ) from error
    except DAMAGE as error:
        raise KbrError(
            f"{path} cannot be read, it is damaged ({error}). Copy it again, or train again."
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


def _check_sums(path: Path) -> None:
    """Changed bytes that would still load are found by the archive's own check sums."""
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
    if bad is not None:
        raise zipfile.BadZipFile(f"the check sum of {bad} is wrong")


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
