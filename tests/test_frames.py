"""Frames from files: what is read, how it is resized, and what is said about bad input."""

import json
import math
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import call
from PIL import Image

from kbr.app.tasks.capture_dmlab import HEADING, LOOK, PIXELS, main
from kbr.app.tasks.frames import captured_frames, heading_frames, resized
from kbr.core.errors import KbrError

ROOT = Path(__file__).resolve().parent.parent
COUNT = 12
YAW = np.arange(COUNT) * 30.0 - 180


def frames(count=COUNT, size=(9, 12), channels=3):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, size=(count, *size, channels), dtype=np.uint8)


def archive(folder, **arrays):
    path = folder / "frames.npz"
    np.savez_compressed(path, **arrays)
    return path


def image_folder(folder, images, yaw=YAW, names=None):
    names = names or [f"{k:03d}.png" for k in range(len(images))]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(folder / name)
    lines = [f"{name},{angle}" for name, angle in zip(names, yaw, strict=True)]
    (folder / "yaw.csv").write_text("\n".join(["file,yaw", *lines]) + "\n")
    return folder


def load(path, height=9, width=12):
    settings = {"maze_seed": 0, "n_frames": 12, "height": height, "width": width}
    return heading_frames(str(path), **settings)


def test_an_archive_and_a_folder_give_the_same_table(tmp_path):
    images, order = frames(), np.random.default_rng(1).permutation(COUNT)
    first = load(archive(tmp_path, images=images[order], yaw=YAW[order]))
    folder = tmp_path / "folder"
    folder.mkdir()
    second = load(image_folder(folder, images))
    torch.testing.assert_close(first.pixels, second.pixels)
    torch.testing.assert_close(first.borders, second.borders)
    expected = torch.from_numpy(np.roll(images, COUNT // 2, axis=0)) / 255  # from 0 degrees on
    torch.testing.assert_close(first.pixels, expected.permute(0, 3, 1, 2))


def test_resizing_averages(tmp_path):
    """A fine checkerboard becomes grey: without antialiasing it would stay black and white."""
    board = (np.indices((72, 96)).sum(0) % 2 * 255).astype(np.uint8)
    images = np.repeat(np.repeat(board[None, :, :, None], 3, axis=-1), 2, axis=0)
    small = resized(images, height=36, width=48)
    assert small.shape == (2, 3, 36, 48)
    assert (small - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("yaw", [YAW.astype(np.float32), YAW.astype(np.int16)])
def test_headings_may_be_of_any_number_type(tmp_path, yaw):
    images, found = captured_frames(archive(tmp_path, images=frames(), yaw=yaw))
    assert len(images) == COUNT
    assert (found == YAW).all()


BAD_ARRAYS = {
    "no yaw": ({"images": frames()}, ["without headings", "yaw"]),
    "no images": ({"yaw": YAW}, ["no array called images"]),
    "radians": ({"images": frames(), "yaw": np.radians(YAW)}, ["degrees", "radians"]),
    "one frame": ({"images": frames(1), "yaw": YAW[:1]}, ["full turn"]),
    "a picture": ({"images": frames()[0], "yaw": YAW[:9]}, ["RGB", "a single image"]),
    "greyscale": ({"images": frames()[..., 0], "yaw": YAW}, ["RGB", "greyscale"]),
    "greyscale 1": ({"images": frames(channels=1), "yaw": YAW}, ["RGB", "greyscale"]),
    "RGBA": ({"images": frames(channels=4), "yaw": YAW}, ["RGB", "RGBA"]),
    "channels first": ({"images": frames().transpose(0, 3, 1, 2), "yaw": YAW}, ["channels first"]),
    "floats": ({"images": frames() / 255, "yaw": YAW}, ["uint8", "float64"]),
    "empty": ({"images": frames(size=(0, 4)), "yaw": YAW}, ["no pixels"]),
    "too few yaws": ({"images": frames(), "yaw": YAW[:5]}, ["one yaw for every frame", "[5]"]),
    "NaN": ({"images": frames(), "yaw": np.where(YAW == 0, np.nan, YAW)}, ["finite", "index 6"]),
    "words": ({"images": frames(), "yaw": YAW.astype(str)}, ["numbers"]),
    "objects": ({"images": frames(), "yaw": YAW.astype(object)}, ["never unpickled"]),
    "same yaw": ({"images": frames(), "yaw": np.full(COUNT, 90.0)}, ["full turn"]),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_archives_are_named(tmp_path, case):
    arrays, words = BAD_ARRAYS[case]
    with pytest.raises(KbrError) as error:
        load(archive(tmp_path, **arrays))
    assert all(word in str(error.value) for word in words), str(error.value)


class Loud:
    """Unpickling this would be noticed."""

    def __reduce__(self):
        return print, ("unpickled",)


def test_damaged_files_are_named(tmp_path, capsys):
    whole = archive(tmp_path, images=frames(), yaw=YAW).read_bytes()
    middle = len(whole) // 2
    flipped = whole[: middle - 40] + bytes(80) + whole[middle + 40 :]
    contents = {
        "empty": b"",
        "text": b"images, yaw",
        "cut": whole[:middle],
        "flipped": flipped,
        "pickle": pickle.dumps(Loud()),
    }
    for name, content in contents.items():
        path = tmp_path / f"{name}.npz"
        path.write_bytes(content)
        with pytest.raises(KbrError, match=r"damaged|unpickled"):
            load(path)
    np.save(tmp_path / "array.npy", YAW)
    with pytest.raises(KbrError, match=r"np\.savez"):
        load(tmp_path / "array.npy")
    with pytest.raises(KbrError, match="does not exist"):
        load(tmp_path / "nothing.npz")
    assert capsys.readouterr().out == ""


def test_bad_folders_are_named(tmp_path):
    def fails(words, name, prepare):
        folder = tmp_path / name
        folder.mkdir()
        prepare(folder)
        with pytest.raises(KbrError, match=words):
            load(folder)

    def with_picture(picture):
        def prepare(folder):
            image_folder(folder, frames())
            Image.fromarray(picture).save(folder / "003.png")

        return prepare

    def with_table(text):
        return lambda folder: (
            image_folder(folder, frames()),
            (folder / "yaw.csv").write_text(text),
        )

    def cut_short(folder):
        image_folder(folder, frames(size=(40, 40)))
        path = folder / "003.png"
        path.write_bytes(path.read_bytes()[:200])

    def not_an_image(folder):
        image_folder(folder, frames())
        (folder / "003.png").write_text("hello")

    fails("one table of headings", "none", lambda folder: None)
    fails("is greyscale", "grey", with_picture(frames()[3, ..., 0]))
    fails("is RGBA", "rgba", with_picture(frames(channels=4)[3]))
    fails("one size", "sizes", with_picture(frames(size=(5, 12))[3]))
    fails("damaged or no image", "cut", cut_short)
    fails("damaged or no image", "text", not_an_image)
    fails("no file", "missing", with_table("file,yaw\nnothing.png,3\n000.png,90\n"))
    fails("columns file and yaw", "columns", with_table("picture,angle\n000.png,90\n"))
    fails("no lines", "lines", with_table("file,yaw\n"))
    fails("numbers, in degrees", "words", with_table("file,yaw\n000.png,north\n"))
    fails("finite", "nan", with_table("file,yaw\n000.png,90\n001.png,nan\n"))
    fails("radians", "radians", with_table("file,yaw\n000.png,0.5\n001.png,3\n"))
    fails("UTF-8", "binary", lambda f: (f / "yaw.csv").write_bytes(b"\xff\xfe\x00"))


@pytest.mark.parametrize("size", [{"height": 0}, {"width": -1}])
def test_sizes_are_checked(tmp_path, size):
    path = archive(tmp_path, images=frames(), yaw=YAW)
    with pytest.raises(KbrError, match=f"data.{next(iter(size))}"):
        load(path, **size)


def test_real_frames_tell_the_heading(real_data):
    """Every frame of a real level is found again at 36 x 48 with pixel noise .1."""
    table = load(real_data / "dmlab_nav_maze_static_01.npz", height=36, width=48)
    x = table.pixels.flatten(1)
    noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert table.shape == (3, 36, 48)
    assert (torch.cdist(noisy, x).argmin(1) == torch.arange(len(x))).float().mean() > 0.99


class FakeLab:
    """Turns right by .105 degrees a pixel; the picture's first pixel shows the heading."""

    def __init__(self, level, observations, config):
        self.shape = (int(config["height"]), int(config["width"]), 3)
        self.level, self.steps, self.yaw = level, 0, 100.0
        assert observations == [PIXELS, HEADING]

    def reset(self, seed):
        self.yaw += seed

    def action_spec(self):
        moves = ["MOVE_BACK_FORWARD"] if self.level == "still" else ["FIRE", LOOK]
        return [{"name": name, "min": -512, "max": 512} for name in moves]

    def step(self, action, num_steps):
        assert action.dtype == np.intc
        self.steps += 1
        pace = 0.0 if self.level == "stuck" else 0.105
        self.yaw = (self.yaw - pace * int(action[1]) * num_steps + 180) % 360 - 180

    def is_running(self):
        return self.level != "short" or self.steps < 50

    def observations(self):
        image = np.zeros(self.shape, dtype=np.uint8)
        image[0, 0] = round(self.yaw) % 256
        return {PIXELS: image, HEADING: np.array([0.0, self.yaw, 0.0])}


@pytest.fixture
def _lab(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", SimpleNamespace(Lab=FakeLab))


@pytest.mark.usefixtures("_lab")
def test_a_turn_is_recorded(tmp_path, capsys):
    path = tmp_path / "made.npz"
    main(["--count", "720", "--out", str(path), "--width", "16", "--height", "12"])
    images, yaw = captured_frames(path)
    assert images.shape[1:] == (12, 16, 3)
    assert 600 < len(yaw) < 900  # .525 degrees a step: whole pixels
    assert (images[:, 0, 0, 0] == np.round(yaw) % 256).all()
    gaps = np.diff(np.sort(yaw % 360))
    assert gaps.max() < 1
    assert f"data.frames={path}" in capsys.readouterr().out


@pytest.mark.usefixtures("_lab")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--level", "still"], "no action"),
        (["--level", "stuck"], "does not turn"),
        (["--level", "short"], "episode ended"),
        (["--count", "1"], "--count"),
    ],
)
def test_recording_mistakes_are_named(tmp_path, capsys, options, words):
    with pytest.raises(SystemExit) as stopped:
        main([*options, "--out", str(tmp_path / "made.npz")])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_deepmind_lab_it_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path / "made.npz")])
    assert stopped.value.code == 2
    assert "github.com/google-deepmind/lab" in capsys.readouterr().err


def test_a_recording_is_never_overwritten(tmp_path, capsys):
    path = archive(tmp_path, images=frames(), yaw=YAW)
    with pytest.raises(SystemExit):
        main(["--out", str(path)])
    assert "exists" in capsys.readouterr().err
    assert len(captured_frames(path)[1]) == COUNT


def train(folder, *arguments):
    return call("trainer=cpu", f"hydra.run.dir={folder}", *arguments)


@pytest.mark.parametrize("model", ["oracle", "particle", "iw"])
def test_the_command_line_runs_on_captured_frames(tmp_path, model):
    path = archive(tmp_path, images=frames(), yaw=YAW)
    sizes = ["data.n_train=30", "data.n_test=20", "data.height=6", "data.width=8", "trials=2"]
    done = train(
        tmp_path / "run", "data=dmlab", f"model={model}", f"data.frames={path}", *sizes,
        "debug=smoke",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert math.isfinite(metrics["test/mse"])
    assert 0 < metrics["test/angular_error_degrees"] < 120


def test_the_command_line_runs_on_drawn_frames(tmp_path):
    """Nothing but labmaze is needed; the frames are kept where data.cache says."""
    pytest.importorskip("labmaze", reason="the built-in frames need labmaze")
    done = train(
        tmp_path / "run", "data=dmlab", "model=particle", "debug=smoke", "data.n_frames=40",
        f"data.cache={tmp_path / 'cache'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test/mse"] < 0.3


def test_the_oracle_says_where_it_works(tmp_path):
    done = train(tmp_path / "run", "data=rotation", "model=oracle")
    assert done.returncode == 2
    assert "data=dmlab" in done.stderr
