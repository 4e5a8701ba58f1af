"""Arrays in .npy and .npz files: what a file claims is checked before anything is allocated.

Nothing is unpickled. A header that claims more than its file holds, a damaged or an encrypted
archive, an array of Python objects: each is one KbrError.
"""

import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory

LONGEST = 1 << 14  # bytes of a header; numpy itself refuses to parse more than 10,000
BLOCK = 1 << 22  # bytes unpacked at a time
# What archives and their compressions raise on damaged files; RuntimeError: encrypted ones.
ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    UnicodeDecodeError,
)
# What numpy's parser of headers raises; MemoryError: nested too deep.
HEADER = (*ARCHIVE, tokenize.TokenError, SyntaxError, ValueError, TypeError, MemoryError)


@dataclass(frozen=True)
class Header:
    """What a .npy file says of itself; its content begins at byte `offset`."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@contextmanager
def whole(what: str, damage: tuple[type[Exception], ...] = ARCHIVE) -> Iterator[None]:
    """Damage of any kind as one error that names the file."""
    try:
        yield
    except KbrError:
        raise
    except damage as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise KbrError(f"{what} is damaged or no plain array: {reason}. Write it again.") from error


def read_header(stream: IO[bytes] | zipfile.ZipExtFile, *, size: int, what: str) -> Header:
    """The header of a stream of `size` bytes, which must hold just what the header claims."""
    with whole(what, HEADER):
        start = io.BytesIO(stream.read(LONGEST))  # numpy would take any length for granted
        version = np.lib.format.read_magic(start)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(start)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(start)
        else:
            raise ValueError(f"version {version} of the format")
    if dtype.hasobject:
        raise KbrError(
            f"{what} is an array of Python objects, which are never unpickled. Save numbers, one "
            "shape for all rows (np.asarray(values, dtype=float))."
        )
    header = Header(tuple(shape), dtype, bool(fortran), start.tell())
    stream.seek(header.offset)
    if min(header.shape, default=0) < 0 or header.offset + header.nbytes != size:
        raise KbrError(
            f"{what} claims shape {list(header.shape)} of {dtype}, {header.nbytes:,} bytes; its "
            f"file holds {size - header.offset:,}. It is damaged or cut short: write it again."
        )
    return header


def file_header(path: Path) -> Header:
    with whole(str(path)), path.open("rb") as stream:
        return read_header(stream, size=path.stat().st_size, what=str(path))


def map_file(path: Path) -> np.ndarray:
    """An .npy file, mapped and not read."""
    file_header(path)
    with whole(str(path), HEADER):
        mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped


@dataclass(frozen=True)
class Npz:
    """The arrays of an npz file, each read when asked for."""

    path: Path

    def names(self) -> list[str]:
        with self._opened() as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]

    def header(self, name: str) -> Header:
        with self._member(name) as (info, stream):
            return read_header(stream, size=info.file_size, what=self._what(name))

    def checksum(self, name: str) -> int:
        """CRC-32 of the unpacked member, as the archive records it."""
        with self._opened() as archive:
            return archive.getinfo(f"{name}.npy").CRC

    def read(self, name: str, *, advice: str) -> np.ndarray:
        """One array, after a look at the memory there is; `advice` is for where it is too big."""
        with self._member(name) as (info, stream):
            header = read_header(stream, size=info.file_size, what=self._what(name))
            check_memory(float(header.nbytes), what=self._what(name), advice=advice)
            content = np.empty(header.nbytes, np.uint8)
            at = 0
            while block := stream.read(BLOCK):  # to its end, where the checksum is compared
                content[at : at + len(block)] = np.frombuffer(block, np.uint8)
                at += len(block)
            if at < header.nbytes:
                raise EOFError("it ends early")
            flat = content.view(header.dtype) if header.nbytes else np.empty(0, header.dtype)
            return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def unpack(self, name: str, target: Path) -> None:
        """One member as an .npy file, a block at a time."""
        with self._member(name) as (info, stream), target.open("wb") as plain:
            read_header(stream, size=info.file_size, what=self._what(name))
            stream.seek(0)
            while block := stream.read(BLOCK):
                plain.write(block)

    def _what(self, name: str) -> str:
        return f"'{name}' in {self.path}"

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            archive = zipfile.ZipFile(self.path)
        except ARCHIVE as error:
            raise KbrError(
                f"{self.path} cannot be read as npz ({error}). Write it with np.savez, or copy it "
                "again."
            ) from error
        with archive:
            yield archive

    @contextmanager
    def _member(self, name: str) -> Iterator[tuple[zipfile.ZipInfo, IO[bytes]]]:
        with self._opened() as archive, whole(self._what(name)):
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as stream:
                yield info, stream
