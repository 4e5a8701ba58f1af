"""The published dSprites file, read image by image and fetched by one command.

    python -m kbr.core.datasets.dsprites_file --path data/dsprites.npz

The archive holds 737,280 images: 26 MB on disk, 3 GB unpacked. `DSpritesFile` reads only the
sprites it is asked for. Its `metadata` entry is a Python pickle and is never opened.
"""

import argparse
import hashlib
import http.client
import math
import os
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Integer, UInt8
from torch import Tensor

from kbr.core.datasets.sprites import PIXELS, SIZES, check_classes
from kbr.core.errors import KbrError
from kbr.core.io.npy import ARCHIVE, read_header

URL = (
    "https://github.com/google-deepmind/dsprites-dataset/raw/master/"
    "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
)
# The authors publish no checksum; this one is recorded by many projects that read the same file.
MD5 = "7da33b31b13a06f4b04a70402ce90c2e"
COMMAND = "python -m kbr.core.datasets.dsprites_file"
BLOCK = 1 << 20  # bytes read at a time

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class DSpritesFile:
    """Images of the published dSprites archive.

    `md5=None` skips the checksum, for a file of one's own in the same layout; `sizes` are then the
    numbers of values of (shape, scale, orientation, x, y), the last one running fastest. The first
    use verifies the file; every use streams through the compressed images up to the last sprite
    asked for (seconds for the last hearts), so ask for many images at once.
    """

    path: str | Path
    md5: str | None = MD5
    sizes: tuple[int, ...] = SIZES

    def images(self, classes: Integer[Tensor, "n 5"]) -> UInt8[Tensor, "n 64 64"]:
        check_classes(classes, sizes=self.sizes)
        wanted = classes.cpu().long().numpy()
        flat = np.ravel_multi_index(tuple(wanted.T), self.sizes)
        # One sprite's positions lie next to each other; a block of them is read at a time.
        grid = self.sizes[3] * self.sizes[4]
        sprites, which = np.unique(flat // grid, return_inverse=True)
        out = np.empty((len(wanted), PIXELS, PIXELS), dtype=np.uint8)
        try:
            with zipfile.ZipFile(self._verified_path) as archive:
                pixels = self._blocks(archive, "imgs", sprites * grid, grid)
                labels = self._blocks(archive, "latents_classes", sprites * grid, grid)
                for k, (images, label) in enumerate(zip(pixels, labels, strict=True)):
                    rows = np.flatnonzero(which == k)
                    at = flat[rows] % grid
                    order = label[at, -5:]  # the file's first column is the colour
                    if not np.array_equal(order, wanted[rows]):
                        raise KbrError(
                            f"{self.path} orders its images in another way than "
                            f"sizes={self.sizes} says: expected (shape, scale, orientation, x, y) "
                            f"= {wanted[rows[0]].tolist()}, its latents_classes say "
                            f"{order[0].tolist()}. Set sizes."
                        )
                    out[rows] = images[at]
        except ARCHIVE as error:
            raise KbrError(
                f"{self.path} is not a whole .npz archive: {error}. Delete it and run {COMMAND}."
            ) from error
        return torch.from_numpy(out).to(classes.device)

    @cached_property
    def _verified_path(self) -> Path:
        path = Path(self.path)
        if not path.is_file():
            raise KbrError(
                f"There is no dSprites file at {path}. Run {COMMAND} --path {path}, set path, or "
                "use SpriteRenderer as the source, which needs no file."
            )
        if self.md5 is not None and (got := file_md5(path)) != self.md5:
            raise KbrError(
                f"{path} should have MD5 {self.md5}; got {got} ({path.stat().st_size:,} bytes): it "
                f"is damaged, cut short or another file. Delete it and run {COMMAND} "
                f"--path {path}, or set md5=None for a file of your own."
            )
        return path

    def _blocks(
        self, archive: zipfile.ZipFile, key: str, starts: np.ndarray, count: int
    ) -> Iterator[np.ndarray]:
        """Rows start .. start + count of one array, for every start (ascending)."""
        if f"{key}.npy" not in archive.namelist():
            raise KbrError(
                f"{self.path} must have the arrays imgs and latents_classes; got "
                f"{[name.removesuffix('.npy') for name in archive.namelist()]}. Set path."
            )
        kinds, row = {"imgs": ("u", (PIXELS, PIXELS)), "latents_classes": ("iu", (6,))}[key]
        want = (math.prod(self.sizes), *row)
        member = archive.getinfo(f"{key}.npy")
        with archive.open(member) as stream:
            header = read_header(stream, size=member.file_size, what=f"{key} in {self.path}")
            dtype, begin = header.dtype, header.offset
            right = dtype.kind in kinds and (key != "imgs" or dtype.itemsize == 1)
            if not right or header.shape != want or header.fortran:
                raise KbrError(
                    f"{key} in {self.path} must be whole numbers (imgs: uint8) of shape {want}, in "
                    f"C order; got {dtype} of shape {header.shape}"
                    f"{', in Fortran order' if header.fortran else ''}. Set path, or sizes."
                )
            size = dtype.itemsize * math.prod(row)
            for start in starts.tolist():
                stream.seek(begin + start * size)  # unpacks and drops what lies between
                data = stream.read(count * size)
                if len(data) != count * size:
                    raise EOFError(f"{key} ends early")
                yield np.frombuffer(data, dtype).reshape(count, *row)


def file_md5(path: str | Path) -> str:
    """MD5 of a file, as 32 hexadecimal digits: a check against damage, not against forgery."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(
    *,
    path: str | Path,
    url: str = URL,
    md5: str = MD5,
    attempts: int = 5,
    wait: float = 1.0,
    progress: Progress | None = None,
) -> Path:
    """Fetch the dSprites archive to `path`, which exists only once it is whole and verified.

    What has come is kept in `<path>.part`; a connection that breaks is resumed where it stopped, up
    to `attempts` times here (after wait, 2 wait, 4 wait.. seconds) and again at the next call.
    """
    target = Path(path)
    if target.exists():
        if target.is_file() and file_md5(target) == md5:
            return target
        raise KbrError(
            f"{target} exists and is not the dSprites file (MD5 {md5}). Move it, or set path."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    for attempt in range(attempts):
        time.sleep(wait * 2 ** (attempt - 1) if attempt else 0)
        resumed = part.exists()
        try:
            whole, reason = _fetch(url, part, progress), "the connection closed early"
        except urllib.error.HTTPError as error:
            error.close()
            whole, reason = False, str(error)
            if error.code < 500:  # asking again will not help
                break
        except (OSError, http.client.HTTPException) as error:
            whole, reason = False, str(error) or type(error).__name__
        if whole and (got := file_md5(part)) == md5:
            os.replace(part, target)
            return target
        if whole:
            part.unlink()
            reason = f"it should have MD5 {md5}, what came has {got} and was deleted"
            if not resumed:  # a resumed file may be two halves of different ones
                break
    have = part.stat().st_size if part.exists() else 0
    raise KbrError(
        f"Could not fetch {url}: {reason}. {have:,} bytes are kept in {part}. Call again to "
        f"resume, set url to a mirror, or fetch the file by other means and save it as {target}."
    )


def _fetch(url: str, part: Path, progress: Progress | None) -> bool:
    """One request, from where `part` ends; True once the server has no more to send."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing after `have`: complete, or not our file (the MD5 tells)
            error.close()
            return True
        raise
    with response:
        span = str(response.headers["Content-Range"])
        resumed = response.status == 206 and span.startswith(f"bytes {have}-")
        have = have if resumed else 0  # a server that knows no ranges sends everything
        length = response.headers["Content-Length"]
        total = have + int(length) if length is not None else None
        with open(part, "ab" if resumed else "wb") as stream:
            while data := response.read(BLOCK):
                stream.write(data)
                have += len(data)
                if progress is not None:
                    progress(have, total)
    return total is None or have == total


def _print_progress(have: int, total: int | None) -> None:
    share = f" of {total / 1e6:.1f} MB ({have / total:.0%})" if total else " MB"
    print(f"\r{have / 1e6:.1f}{share}", end="", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Fetch the dSprites file (26 MB).")
    parser.add_argument("--path", type=Path, default=Path("data/dsprites.npz"))
    parser.add_argument("--url", default=URL, help="a mirror of the same file")
    parser.add_argument("--md5", default=MD5, help="what the file must hash to")
    options = parser.parse_args(argv)
    try:
        target = download(
            path=options.path, url=options.url, md5=options.md5, progress=_print_progress
        )
    except KbrError as error:
        raise SystemExit(f"\n{error}") from error
    print(f"\n{target} is there and verified (MD5 {options.md5}).", file=sys.stderr)


if __name__ == "__main__":
    main()
