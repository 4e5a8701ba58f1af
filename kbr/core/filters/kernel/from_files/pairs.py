"""Pairs (x_t, z_t) in the .npy files of a folder, read a block at a time."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.inputs import as_tensor
from kbr.core.io.npy import file_header, map_file

IDS = 1 << 20  # sequence ids read at once
KINDS = "fiub"  # of numbers: floating-point, whole, logical
EXPECTED = (
    "x.npy and z.npy (and sequence.npy with an id for each row), or pairs x_000.npy and z_000.npy, "
    "x_001.npy and z_001.npy, ..., each a sequence"
)


@dataclass(frozen=True, eq=False)
class FilePairs:
    """Rows of one or several pairs of files, laid end to end in the order of their names.

    bounds   rows at which files begin, and the end;
    starts   rows at which sequences begin: steps of the dynamics never cross one.
    """

    files: tuple[tuple[Path, Path], ...]
    bounds: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, folder: str | Path) -> "FilePairs":
        """What a folder holds, checked by the files' headers; anything unexpected is refused."""
        folder = Path(folder)
        if not folder.is_dir():
            raise KbrError(f"{folder} is no folder. Name one with {EXPECTED}.")
        names = {path.stem: path for path in sorted(folder.glob("*.npy"))}
        ids = names.pop("sequence", None)
        tails = [name[1:] for name in names if name[0] == "x"]
        wanted = {f"{letter}{tail}" for tail in tails for letter in "xz"}
        alone = tails == [""]
        numbered = bool(tails) and all(tail[:1] == "_" for tail in tails)
        if wanted != set(names) or not (alone or (numbered and ids is None)):
            found = ", ".join([*names, *(["sequence"] if ids else [])]) or "no .npy files"
            raise KbrError(f"{folder} must hold {EXPECTED}; it has {found}.")
        files = tuple((names[f"x{tail}"], names[f"z{tail}"]) for tail in tails)
        lengths = [_checked(*pair, files[0]) for pair in files]
        bounds = np.cumsum([0, *lengths])
        return cls(files, bounds, bounds[:-1] if ids is None else _borders(ids, lengths[0]))

    @property
    def n(self) -> int:
        return int(self.bounds[-1])

    @property
    def lengths(self) -> list[int]:
        """Of the sequences."""
        lengths: list[int] = np.diff([*self.starts, self.n]).tolist()
        return lengths

    @property
    def identity(self) -> list[tuple[str, int, int]]:
        """Names, sizes and times of the files, by which other data are told."""
        stats = [(path, path.stat()) for pair in self.files for path in pair]
        return [(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in stats]

    def x(self, start: int, stop: int) -> Tensor:
        return self._rows(0, start, stop)

    def z(self, start: int, stop: int) -> Tensor:
        values = self._rows(1, start, stop)
        return values.unsqueeze(-1) if values.ndim == 1 else values

    def evenly(self, count: int) -> tuple[Tensor, Tensor]:
        """At most so many pairs, evenly spaced."""
        rows = np.linspace(0, self.n - 1, min(self.n, count)).round().astype(np.int64)
        cuts = np.searchsorted(rows, self.bounds)
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for k, (first, last) in enumerate(pairwise(cuts)):
            if first < last:
                some = rows[first:last] - self.bounds[k]
                for letter, made in enumerate(parts):
                    mapped = map_file(self.files[k][letter])
                    made.append(as_tensor(np.array(mapped[some]), name="xz"[letter]).double())
        x, z = (torch.cat(made) for made in parts)
        return x, z.unsqueeze(-1) if z.ndim == 1 else z

    def begins(self, start: int, stop: int) -> np.ndarray:
        """Rows among these, from `start` on, at which a sequence begins."""
        first, last = np.searchsorted(self.starts, [start, stop])
        return self.starts[first:last] - start

    def _rows(self, letter: int, start: int, stop: int) -> Tensor:
        """The files are mapped anew, so that their pages leave the memory with the block."""
        parts = []
        for k in range(int(np.searchsorted(self.bounds, start, side="right")) - 1, len(self.files)):
            low, high = (max(int(row - self.bounds[k]), 0) for row in (start, stop))
            if high == 0:
                break
            parts.append(np.array(map_file(self.files[k][letter])[low:high]))
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return as_tensor(whole, name="xz"[letter]).double()


def _checked(x: Path, z: Path, first: tuple[Path, Path]) -> int:
    """Rows of a pair of files, which must be as many, and shaped as the first pair's."""
    headers = [file_header(path) for path in (x, z)]
    for path, header, like in zip((x, z), headers, first, strict=True):
        if header.dtype.kind not in KINDS:
            raise KbrError(f"{path} holds {header.dtype}; x and z are numbers. Write float32.")
        one = file_header(like).shape[1:]
        if not header.shape or header.shape[0] == 0 or header.shape[1:] != one:
            raise KbrError(
                f"{path} has shape {list(header.shape)}; expected rows of shape {list(one)}, at "
                f"least one, as in {like.name}."
            )
    if headers[0].shape[0] != headers[1].shape[0]:
        counts = [header.shape[0] for header in headers]
        raise KbrError(f"{x} and {z.name} must have as many rows; got {counts[0]} and {counts[1]}.")
    if len(headers[1].shape) > 2:
        raise KbrError(f"{z} must have shape [T, dz] or [T]; got {list(headers[1].shape)}.")
    return headers[0].shape[0]


def _borders(path: Path, rows: int) -> np.ndarray:
    """Rows at which the id changes."""
    header = file_header(path)
    if header.shape != (rows,):
        raise KbrError(
            f"{path} must hold an id for each of {rows:,} rows; got shape {list(header.shape)}."
        )
    starts, before = [np.zeros(1, dtype=np.int64)], None
    for start in range(0, rows, IDS):
        some = np.array(map_file(path)[start : start + IDS])
        some = some if before is None else np.concatenate([before, some])
        changes = np.flatnonzero(some[1:] != some[:-1]) + 1
        starts.append(changes + start - (before is not None))
        before = some[-1:]
    return np.concatenate(starts)
