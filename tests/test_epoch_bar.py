"""The bar of a training: whole at any width, and Lightning is quiet in Python too."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from kbr.training.callbacks.bar import LAYOUTS, LONGEST, layout

TRAIN = """
import sys, warnings, torch
from functools import partial
from kbr.training import LearnedFilter
from kbr.training.encoders import MLP
from kbr.training.callbacks.bar import EpochBar
z = torch.randn(60, 1, generator=torch.Generator().manual_seed(0)).cumsum(0)
bar = EpochBar("iw_nn seed 1000")
LearnedFilter(encoder=partial(MLP), epochs=6, val_every=2, log_every=1).fit(
    z + 0.1, z, folder=sys.argv[1], trainer={"callbacks": [bar], "enable_progress_bar": False}
)
"""


@pytest.mark.parametrize("columns", [80, 72, 60, 50, 40])
@pytest.mark.parametrize("title", ["iw_nn seed 0", "a_model_of_my_own seed 1000"])
def test_nothing_is_cut(title, columns):
    from tqdm import tqdm

    line = tqdm.format_meter(
        150, 150, 12.0, ncols=columns, prefix=title, postfix=LONGEST[2:],
        bar_format=layout(title, 150, columns),
    )  # fmt: skip
    assert "val=1.23e-05" in line
    assert len(line) <= columns


def test_a_wide_line_has_a_bar():
    assert layout("iw_nn seed 0", 150, 80) == LAYOUTS[0]


def test_training_in_python_shows_the_bar_alone(tmp_path):
    """On a terminal of 60 columns: no hardware lines, no tips, and the validation error in full."""
    terminal, other = pty.openpty()
    termios.tcsetwinsize(other, (24, 60))
    command = [sys.executable, "-c", TRAIN, str(tmp_path)]
    running = subprocess.Popen(command, stdout=other, stderr=other, env=dict(os.environ))
    os.close(other)
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux says so when the last writer has closed it
            break
        shown += piece
    os.close(terminal)
    lines = [line for line in re.split(r"[\r\n]+", shown.decode()) if line.strip()]
    assert running.wait() == 0, lines
    assert all(line.startswith("iw_nn seed 1000") for line in lines), lines
    assert max(map(len, lines)) <= 60
    assert re.search(r"loss=\S+, val=[\d.e-]+\]\s*$", lines[-1])
    assert Path(tmp_path / "tensorboard").is_dir()
