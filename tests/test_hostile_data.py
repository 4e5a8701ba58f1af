"""Files that lie, are damaged or reach too far: one KbrError each, nothing run or filled up."""

import io
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kbr.app.inspect_data import main
from kbr.app.recordings.read import Source
from kbr.app.tasks.frames import captured_frames
from kbr.app.tasks.pictures import read_picture
from kbr.core.errors import KbrError
from kbr.core.inputs import as_tensor
from kbr.core.io.file_rows import FileRows

ROWS = 40
Z = np.arange(ROWS, dtype=np.float64)[:, None]


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(text: str, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    """The beginning of an .npy file with any text for a header."""
    packing = "<H" if version[0] == 1 else "<I"
    size = struct.pack(packing, len(text) if length is None else length)
    return b"\x93NUMPY" + version + size + text.encode("latin1")


def claim(shape: str, descr: str = "'<f8'") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n")


def archive(folder: Path, **members: bytes) -> Path:
    path = folder / "my.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in {"z": npy(Z), **members}.items():
            made.writestr(f"{name}.npy", content)
    return path


def refused(path: Path, *words: str, **keys) -> str:
    """The one-line error of reading the file, which must not take more than 50 MB."""
    tracemalloc.start()
    try:
        with pytest.raises(KbrError) as caught:
            Source(path=str(path), **keys).read()
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    said = str(caught.value)
    for word in words:
        assert word in said, said
    assert "\n" not in said
    assert taken < 50e6
    return said


HEADERS = {
    "97 GB": (claim("(40, 303125000)"), "claims shape [40, 303125000]"),
    "more than there is": (claim("(40, 2)") + bytes(100), "its file holds 100"),
    "less than there is": (claim("(40, 2)") + bytes(9000), "claims shape"),
    "negative": (claim("(-40, -2)") + bytes(640), "claims shape"),
    "beyond 64 bits": (claim("(40, 2, 99999999999999999999)"), "claims shape"),
    "no dictionary": (header("[1, 2, 3]\n"), "damaged or no plain array"),
    "half a dictionary": (header("{'descr': '<f8', 'shape': (40,\n"), "damaged or no plain array"),
    "an open string": (header("{'descr': '''<f8\n"), "damaged or no plain array"),
    "code": (header("__import__('os').system('touch ran')\n"), "damaged or no plain array"),
    "nested deep": (header("(" * 9000 + ")" * 9000, b"\x02\x00"), "damaged or no plain array"),
    "huge header": (header("{}", b"\x02\x00", 2**31), "damaged or no plain array"),
    "cut in the header": (claim("(40, 2)")[:30], "damaged or no plain array"),
    "unknown version": (header("{}", b"\x09\x00"), "damaged or no plain array"),
    "unknown type": (claim("(40, 2)", "'<q7z'") + bytes(640), "damaged or no plain array"),
    "type of objects": (claim("(40,)", "'|O'") + bytes(320), "Python objects"),
    "fields": (claim("(40,)", "[('a', '<f8')]") + bytes(320), "real numbers"),
    "empty": (b"", "damaged or no plain array"),
    "text": (b"x, y\n1, 2\n", "damaged or no plain array"),
    "no columns": (npy(np.empty((ROWS, 0))), "must have rows"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path, case):
    content, word = HEADERS[case]
    refused(archive(tmp_path, x=content), "x", word)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x.npy").write_bytes(content)
    np.save(folder / "z.npy", Z)
    refused(folder, "x", word)
    if "must have rows" not in word and "real numbers" not in word:
        with pytest.raises(KbrError):
            FileRows(folder / "x.npy")
        images = archive(tmp_path, images=content, yaw=npy(Z[:, 0]))
        with pytest.raises(KbrError, match="images"):
            captured_frames(images)
    assert not Path("ran").exists()


def test_pickles_never_run(tmp_path):
    mark = tmp_path / "executed"
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb(mark)] * ROWS, dtype=object), allow_pickle=True)
    refused(archive(tmp_path, x=stream.getvalue()), "Python objects", "never unpickled")
    for name in ("bare.npz", "bare.csv"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb(mark), protocol=4))
        refused(tmp_path / name, name, x=["a"], z=["b"])
    assert not mark.exists()


def test_a_packed_bomb_is_not_unpacked(tmp_path):
    """80 MB of zeros in 80 kB: refused by its stated size; the message names the settings."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("z.npy", npy(Z))
        with made.open("x.npy", "w", force_zip64=True) as stream:
            stream.write(claim("(40, 2000000)", "'|u1'"))
            for _ in range(80):
                stream.write(bytes(1_000_000))
    assert path.stat().st_size < 1e5
    refused(path, "0.1 GB", "data.max_gb=0.05", "data.unpack=<folder>", max_gb=0.05)
    assert [file.name for file in tmp_path.iterdir()] == ["bomb.npz"]


@pytest.mark.parametrize("kind", ["x", "z", "time", "sequence"])
def test_every_member_is_held_to_the_limit(tmp_path, kind):
    path = archive(tmp_path, **{"x": npy(Z), kind: npy(np.arange(40.0))})
    refused(path, f"'{kind}'", "data.max_gb=1e-07", max_gb=1e-7) if kind == "x" else None
    large = {"x": npy(Z.astype(np.float16)), kind: npy(np.zeros((40, 9)))}
    refused(archive(tmp_path, **large), f"'{kind}'", "data.max_gb", max_gb=5e-7)


def test_damaged_archives_end_in_one_line_or_in_the_whole_content(tmp_path):
    """A cut or a flipped byte anywhere gives no other exception and no wrong numbers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    path = archive(tmp_path, x=npy(x))
    good = path.read_bytes()
    damaged = [good[:cut] for cut in range(0, len(good), 13)]
    for place in range(0, len(good), 7):
        damaged.append(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
    refusals = []
    for content in damaged:
        path.write_bytes(content)
        try:
            found = Source(path=str(path)).read()
        except KbrError as error:
            refusals.append(str(error))
        else:
            np.testing.assert_array_equal(found.x, x)
    assert len(refusals) > 0.8 * len(damaged)
    assert not any("\n" in said for said in refusals)


def test_encrypted_and_unknown_compressions_are_named(tmp_path):
    path = archive(tmp_path, x=npy(Z))
    content = bytearray(path.read_bytes())
    for at in range(len(content) - 4):
        if content[at : at + 4] == b"PK\x01\x02":
            content[at + 8] |= 1  # the flag of encryption
    path.write_bytes(content)
    refused(path, "encrypted")


# Pictures


def png(width: int, height: int) -> bytes:
    """A PNG that claims a size and has next to no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", size), chunk(b"IDAT", zlib.compress(bytes(99))), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def frames(folder: Path, name: str, content: bytes = b"") -> Path:
    """A folder whose states.csv names one good frame and `name`."""
    inner = folder / "frames"
    inner.mkdir(exist_ok=True)
    Image.fromarray(np.zeros((6, 6, 3), dtype=np.uint8)).save(inner / "good.png")
    (inner / "states.csv").write_text(f"file,px\ngood.png,1\n{name},2\n")
    (inner / "yaw.csv").unlink(missing_ok=True)
    if content:
        (inner / name).write_bytes(content)
    return inner


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((9000, 9000), ["81.0 million pixels", "data.max_gb"]),
        ((20000, 20000), ["400000000 pixels", "Shrink"]),
        ((2**31 - 1, 2**31 - 1), ["huge.png"]),
    ],
)
def test_a_huge_picture_is_refused_by_its_header(tmp_path, size, words):
    refused(frames(tmp_path, "huge.png", png(*size)), *words)
    with pytest.raises(KbrError):
        read_picture(tmp_path / "frames" / "huge.png")


def test_the_limit_of_pictures_is_a_setting(tmp_path):
    inner = frames(tmp_path, "good.png")
    said = refused(inner, "million pixels", "raise data.max_gb", max_gb=1e-7)
    assert "good.png" in said


def test_a_frame_outside_its_folder_is_refused(tmp_path):
    secret = tmp_path / "secret.png"
    Image.fromarray(np.zeros((6, 6, 3), dtype=np.uint8)).save(secret)
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "link.png").symlink_to(secret)
    for name in ("../secret.png", str(secret), "link.png", "a/../../secret.png"):
        inner = frames(tmp_path, name)
        refused(inner, "line 3", "outside the folder")
        (inner / "states.csv").rename(inner / "yaw.csv")
        (inner / "yaw.csv").write_text(f"file,yaw\ngood.png,1\n{name},200\n")
        with pytest.raises(KbrError, match="outside the folder"):
            captured_frames(inner)


def test_pictures_that_call_other_programs_or_hold_many_are_refused(tmp_path):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n(ran) (w) file\n%%EOF\n"
    refused(frames(tmp_path, "sly.png", eps), "damaged or no image", "sly.png")
    pages = [Image.fromarray(np.full((6, 6), k, dtype=np.uint8)) for k in range(3)]
    inner = frames(tmp_path, "pages.gif")
    pages[0].save(inner / "pages.gif", save_all=True, append_images=pages[1:])
    refused(inner, "several pictures")


def test_damaged_pictures_end_in_one_line(tmp_path):
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "PNG")
    good = stream.getvalue()
    inner = frames(tmp_path, "bad.png", good)
    Source(path=str(inner)).read()
    refusals = []
    for place in range(0, len(good), 3):
        changed = good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :]
        for content in (changed, good[:place]):
            (inner / "bad.png").write_bytes(content)
            try:
                Source(path=str(inner)).read()
            except KbrError as error:
                refusals.append(str(error))
    assert refusals
    assert not any("\n" in said for said in refusals)


# Tables


def table(folder: Path, content: str | bytes) -> Path:
    path = folder / "log.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


AB = {"x": ["a"], "z": ["b"]}
TABLES = {
    "a field without end": ("a,b\n" + "1" * 200_000 + ",2\n", ["line 2", "field larger"]),
    "an open quote": ('a,b,c\n1,2,"x\n3,4,y\n5,6,z\n', ["quotation mark"]),
    "a quote that swallows rows": ('a,b,c\n1,2,"x\n3,4,y\n5,6,"z"\n', ["quotation mark"]),
    "zero bytes": ("a,b\n1,2\n3\x00,4\n", ["line 3", "zero byte"]),
    "UTF-16 without a mark": ("a,b\n1,2\n".encode("utf-16-le"), ["zero byte"]),
    "Latin-1": ("a,b,°C\n1,2,3\n".encode("latin1"), ["line 1", "0xb0", "UTF-8"]),
    "no names": ("1.5,2\n3,4\n5,6\n", ["first line holds numbers only"]),
    "spaces": ("a b\n1 2\n3 4\n", ["one column", "commas, semicolons or tabs"]),
    "the same name twice": ("a,b,a\n1,2,3\n", ["2 columns 'a'"]),
    "decimal commas": ("a;b\n1,5;2\n2,5;3\n", ["line 2", "'1,5'", "data.decimal=comma"]),
    "thousands": ('a,b\n1,2\n"1,234.5",3\n', ["line 3", "1,234.5"]),
    "several numbers": ('a,b\n"[1.5, 2.5]",3\n', ["line 2", "a column of its own"]),
    "underscores": ("a,b\n1_000,2\n", ["line 2", "'1_000'"]),
    "a cell too many": ("a,b\n1,2\n3,4,5\n", ["line 3", "3 cells"]),
    "a cell too few": ("a,b\n1,2\n3\n", ["line 3", "1 cells"]),
    "nothing": ("", ["0 lines"]),
}


@pytest.mark.parametrize("case", TABLES)
def test_an_odd_table_is_named(tmp_path, case):
    content, words = TABLES[case]
    refused(table(tmp_path, content), *words, **AB)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfa,b\r\n1.5,2\r\n\r\n3,4\r\n",
        "a\tb\n1.5\t2\n3\t4\n".encode("utf-16"),
        b'"a","b"\n"1.5","2"\n"3","4"\n',
        b"a,b,\n1.5,2,\n3,4,\n",
        b"a,b\n1.5,2,\n3,4,\n",
        b'"c, d";a;b\n"x, y";1.5;2\nz;3;4\n',
        b"c,a,b,c\nx,1.5,2,\n,3,4,9\n",
        b"a,b\r1.5,2\r3,4\r",
    ],
)
def test_tables_of_other_programs_are_read(tmp_path, content):
    found = Source(path=str(table(tmp_path, content)), **AB).read()
    assert found.x[:, 0].tolist() == [1.5, 3.0]
    assert found.z[:, 0].tolist() == [2.0, 4.0]


def test_decimal_commas_are_read_where_they_are_declared(tmp_path):
    path = table(tmp_path, "a;b;time\n1,5;2;0,5\n-2,25e3;;1,5\n")
    found = Source(path=str(path), decimal="comma", **AB).read()
    assert found.x[:, 0].tolist() == [1.5, -2250.0]
    assert found.time.tolist() == [0.5, 1.5]
    refused(table(tmp_path, "a;b\n1.5;2\n"), "'1.5'", "data.decimal=comma", decimal="comma", **AB)
    refused(path, "data.decimal", "both", decimal="both", **AB)


def test_a_text_larger_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("kbr.core.io.memory.available_memory", lambda device=None: 100.0)
    refused(table(tmp_path, "a,b\n" + "1,2\n" * 50), "takes about", "x.npy", **AB)


def test_several_files_are_not_read_yet():
    with pytest.raises(KbrError, match=r"one file.*data\.sequence"):
        Source(path=["a.csv", "b.csv"]).read()  # type: ignore[arg-type]


def test_what_a_mask_hides_is_missing():
    values = np.ma.masked_array(np.arange(6).reshape(3, 2), mask=[[0, 0], [0, 1], [0, 0]])
    found = as_tensor(values, name="x")
    assert found.isnan().tolist() == [[False, False], [False, True], [False, False]]
    assert found.nansum() == 12
    assert as_tensor(values.astype(np.float32), name="x").isnan().sum() == 1


def test_the_command_ends_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(archive(tmp_path, x=claim("(40, 303125000)")))])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("kbr: 'x' in ")
    assert said.count("\n") == 1
