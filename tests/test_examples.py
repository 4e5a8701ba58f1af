"""The examples and the document on own data: every command in them runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call
from PIL import Image

from kbr.app.building.default_model import default_model
from kbr.app.figures.animation import MILLISECONDS

ROOT = Path(__file__).resolve().parent.parent
BRIEF = ["model.filter.epochs=2", "model.filter.val_every=1"]


def run(command: str, folder: Path) -> str:
    """A documented command, in `folder`; networks train for two epochs only."""
    runs = sorted(folder.glob("outputs/recording_*/*"))
    meant = command.replace("outputs/...", str(runs[-1]) if runs else "")
    words = shlex.split(meant.replace("\\\n", " "))
    script, *rest = words[1:] if words[0] == "python" else words
    rest += BRIEF if script == "train.py" and _trains(rest, folder) else []
    if script.startswith("examples/"):
        own = {**os.environ, "PYTHONPATH": str(ROOT)}
        example = [sys.executable, str(ROOT / script), *rest]
        done = subprocess.run(example, capture_output=True, text=True, cwd=folder, env=own)
    else:
        done = call(*rest, script=script, folder=folder)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _trains(words: list[str], folder: Path) -> bool:
    """Whether a network is trained: by the named model, or by the default one for own data."""
    named = [word for word in words if word.startswith("model=")]
    if named:
        return named != ["model=iw"]
    (path,) = [word.partition("=")[2] for word in words if word.startswith("data.path=")]
    return default_model([f"data.path={folder / path}"]) == "iw_nn"


def printed_commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if re.match(r"\s+(kbr-|python )", line)]


@pytest.mark.parametrize(
    ("script", "arguments", "label"),
    [
        ("own_recording.py", "--output co2.npz --rows 500", "season [deg]"),
        ("imu.py", "--output imu.csv --drives 6 --rows 60", "yaw [deg]"),
    ],
)
def test_an_example_writes_a_file_and_commands_that_run(tmp_path, script, arguments, label):
    said = run(f"python examples/{script} {arguments}", tmp_path)
    inspect, train = printed_commands(said)
    assert max(len(line) for line in said.splitlines()) <= 80
    assert label in run(inspect, tmp_path)
    out = run(train, tmp_path)
    assert label in out
    error, blind = (
        float(re.search(rf"{name} +([\d.]+)", out)[1]) for name in ("test/mse", "test/mse_of_mean")
    )
    assert error < 0.3 * blind  # the filter has learned something


def is_the_animation(path: Path) -> bool:
    with Image.open(path) as gif:
        return (gif.n_frames, gif.info["duration"]) == (60, MILLISECONDS)


def test_the_animation_of_the_readme_is_small():
    path = ROOT / "docs" / "results" / "lost_frames.gif"
    assert path.stat().st_size < 2_000_000
    assert is_the_animation(path)


@pytest.mark.slow
def test_the_animation_of_the_readme_is_made_by_its_example(tmp_path):
    """Here from few frames."""
    said = run("python examples/lost_frames.py --output made.gif --frames 60 --epochs 1", tmp_path)
    assert "of the truths" in said
    assert is_the_animation(tmp_path / "made.gif")


SECTIONS = {
    part.partition("\n")[0]: re.findall(r"```(python|sh)\n(.*?)```", part, re.DOTALL)
    for part in (ROOT / "docs" / "own_data.md").read_text().split("\n## ")[1:]
}


@pytest.mark.parametrize("section", [name for name, blocks in SECTIONS.items() if blocks])
def test_every_block_of_the_document_runs_in_order(tmp_path, monkeypatch, section):
    monkeypatch.chdir(tmp_path)
    for language, block in SECTIONS[section]:
        if language == "python":
            exec(compile(block, "own_data.md", "exec"), {})
            continue
        for command in block.strip().splitlines():
            run(command, tmp_path)
    trained = sum(block.count("python train.py") for _, block in SECTIONS[section])
    assert len(list(tmp_path.glob("outputs/recording_*/*/metrics.json"))) == trained


def test_the_document_has_no_block_that_is_not_run():
    text = (ROOT / "docs" / "own_data.md").read_text()
    assert text.count("```") == 2 * sum(map(len, SECTIONS.values()))
