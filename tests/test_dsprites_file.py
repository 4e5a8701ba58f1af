"""The dSprites archive: reading it without unpickling, and downloading it over a bad line."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from kbr.core.datasets import dsprites_file
from kbr.core.datasets.dsprites_file import DSpritesFile, download, file_md5
from kbr.core.errors import KbrError

SIZES = (3, 2, 2, 4, 4)
COUNT = 192


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """A miniature of the published layout, metadata included."""
    images = np.random.default_rng(0).integers(0, 2, (COUNT, 64, 64), dtype=np.uint8)
    classes = np.stack(np.unravel_index(np.arange(COUNT), SIZES), axis=1)
    classes = np.concatenate([np.zeros((COUNT, 1), dtype=np.int64), classes], axis=1)
    metadata = np.array({"bomb": Bomb(folder / "exploded")}, dtype=object)
    values = classes.astype(np.float64)
    return {
        "metadata": metadata,
        "imgs": images,
        "latents_classes": classes,
        "latents_values": values,
    }


def save(folder: Path, **changes: np.ndarray | None) -> DSpritesFile:
    path = folder / "mini.npz"
    content = {k: v for k, v in {**arrays(folder), **changes}.items() if v is not None}
    np.savez_compressed(path, **content)
    return DSpritesFile(path=path, md5=file_md5(path), sizes=SIZES)


def test_reads_the_images_asked_for(tmp_path):
    """In any order and number, without running the pickle in metadata."""
    source, content = save(tmp_path), arrays(tmp_path)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(COUNT, (50,), generator=generator).numpy()
    classes = torch.from_numpy(content["latents_classes"][rows, 1:])
    assert (source.images(classes).numpy() == content["imgs"][rows]).all()
    assert source.images(classes[:0]).shape == (0, 64, 64)
    assert not (tmp_path / "exploded").exists()


def test_unknown_index(tmp_path):
    with pytest.raises(KbrError, match=r"x must be between 0 and 3; got 4"):
        save(tmp_path).images(torch.tensor([[0, 0, 0, 4, 0]]))


def test_no_file_names_the_command(tmp_path):
    source = DSpritesFile(path=tmp_path / "none.npz")
    with pytest.raises(KbrError, match=r"python -m kbr\.core\.datasets\.dsprites_file --path"):
        source.images(torch.zeros(1, 5, dtype=torch.long))


def test_other_content_fails_the_checksum(tmp_path):
    path = Path(save(tmp_path).path)
    with pytest.raises(KbrError, match="should have MD5 7da33b31b13a06f4b04a70402ce90c2e; got"):
        DSpritesFile(path=path, sizes=SIZES).images(torch.zeros(1, 5, dtype=torch.long))


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_truncated_file(tmp_path, keep):
    path = Path(save(tmp_path).path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(KbrError, match=r"not a whole \.npz archive"):
        DSpritesFile(path=path, md5=None, sizes=SIZES).images(torch.zeros(1, 5, dtype=torch.long))


def test_damage_inside(tmp_path):
    """Without the checksum, the archive's own check still finds flipped bytes."""
    path = Path(save(tmp_path).path)
    data = bytearray(path.read_bytes())
    for k in range(len(data) // 3, len(data) // 3 + 4000):
        data[k] ^= 0xFF
    path.write_bytes(data)
    last = torch.tensor([[2, 1, 1, 3, 3]])
    with pytest.raises(KbrError, match=r"not a whole \.npz archive"):
        DSpritesFile(path=path, md5=None, sizes=SIZES).images(last)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"imgs": None}, "must have the arrays imgs and latents_classes; got"),
        ({"latents_classes": None}, "must have the arrays imgs and latents_classes; got"),
        ({"imgs": np.array([{}] * COUNT, dtype=object)}, "Python objects, which are never"),
        ({"imgs": np.zeros((COUNT, 64, 64))}, "imgs in .* must be whole numbers .* got float64"),
        ({"imgs": np.zeros((7, 64, 64), np.uint8)}, r"got uint8 of shape \(7, 64, 64\)"),
        ({"imgs": np.asfortranarray(np.zeros((COUNT, 64, 64), np.uint8))}, "Fortran order"),
        ({"latents_classes": np.zeros((COUNT, 6), np.int64)}, "orders its images in another way"),
    ],
)
def test_wrong_arrays(tmp_path, changes, message):
    with pytest.raises(KbrError, match=message):
        save(tmp_path, **changes).images(torch.tensor([[2, 1, 0, 3, 2]]))


CONTENT = np.random.default_rng(1).bytes(3_000_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Line:
    """How the test server behaves, and what it was asked for."""

    def __init__(self, *, ranges: bool = True, breaks: int = 0, content: bytes = CONTENT) -> None:
        self.ranges, self.breaks, self.content = ranges, breaks, content
        self.status = 200
        self.asked: list[str | None] = []
        self.url = ""


@contextmanager
def served(line: Line) -> Iterator[Line]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            line.asked.append(asked)
            total, begin = len(line.content), 0
            if line.status != 200:
                self.send_error(line.status)
                return
            if line.ranges and asked is not None:
                begin = int(asked.removeprefix("bytes=").removesuffix("-"))
                if begin >= total:
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(total - begin))
            self.end_headers()
            end = total
            if line.breaks > 0:  # hang up half-way
                line.breaks -= 1
                end = begin + (total - begin) // 2
            self.wfile.write(line.content[begin:end])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    line.url = f"http://127.0.0.1:{server.server_address[1]}/file.npz"
    try:
        yield line
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_download_reports_and_verifies(tmp_path):
    steps: list[tuple[int, int | None]] = []
    path = tmp_path / "new" / "file.npz"
    with served(Line()) as line:
        download(path=path, url=line.url, md5=MD5, progress=lambda *s: steps.append(s))
        download(path=path, url=line.url, md5=MD5)  # already there: no request
    assert path.read_bytes() == CONTENT
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert line.asked == [None]
    assert [p.name for p in path.parent.iterdir()] == ["file.npz"]


def test_broken_connection_resumes(tmp_path):
    path = tmp_path / "file.npz"
    with served(Line(breaks=2)) as line:
        download(path=path, url=line.url, md5=MD5, wait=0.0)
    assert path.read_bytes() == CONTENT
    assert line.asked == [None, "bytes=1500000-", "bytes=2250000-"]


def test_next_call_resumes(tmp_path):
    """A call that gives up keeps what came; the next one asks for the rest only."""
    path = tmp_path / "file.npz"
    with served(Line(breaks=1)) as line:
        with pytest.raises(KbrError, match="1,500,000 bytes are kept"):
            download(path=path, url=line.url, md5=MD5, attempts=1)
        assert not path.exists()
        download(path=path, url=line.url, md5=MD5, attempts=1)
    assert path.read_bytes() == CONTENT
    assert line.asked[-1] == "bytes=1500000-"


def test_server_without_ranges_starts_over(tmp_path):
    path = tmp_path / "file.npz"
    with served(Line(ranges=False, breaks=1)) as line:
        download(path=path, url=line.url, md5=MD5, wait=0.0)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_corrupted_content_leaves_no_file(tmp_path, ranges):
    path = tmp_path / "file.npz"
    with (
        served(Line(ranges=ranges, content=CONTENT[:-1] + b"?")) as line,
        pytest.raises(KbrError, match=f"should have MD5 {MD5}"),
    ):
        download(path=path, url=line.url, md5=MD5, wait=0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stale", [b"something else", CONTENT + b"too long", CONTENT])
def test_stale_part_is_replaced(tmp_path, stale):
    """Two halves of different files fail the checksum; the second attempt starts afresh."""
    path = tmp_path / "file.npz"
    (tmp_path / "file.npz.part").write_bytes(stale)
    with served(Line()) as line:
        download(path=path, url=line.url, md5=MD5, wait=0.0)
    assert path.read_bytes() == CONTENT


def test_not_found_is_not_asked_again(tmp_path):
    with served(Line()) as line:
        line.status = 404
        with pytest.raises(KbrError, match="404"):
            download(path=tmp_path / "file.npz", url=line.url, md5=MD5)
    assert len(line.asked) == 1


def test_someone_elses_file_is_kept(tmp_path):
    path = tmp_path / "file.npz"
    path.write_text("precious")
    with pytest.raises(KbrError, match="exists and is not the dSprites file"):
        download(path=path, url="http://127.0.0.1:9/", md5=MD5)
    assert path.read_text() == "precious"


def test_command(tmp_path, capsys):
    path = tmp_path / "file.npz"
    with served(Line()) as line:
        dsprites_file.main(["--path", str(path), "--url", line.url, "--md5", MD5])
        assert "100%" in capsys.readouterr().err
        line.status = 404
        with pytest.raises(SystemExit, match="Could not fetch"):
            dsprites_file.main(["--path", str(path) + "2", "--url", line.url])
    assert path.read_bytes() == CONTENT
