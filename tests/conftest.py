"""Shapes in signatures are checked while the tests run; threads are fixed before torch starts."""

import os
import signal

# Spinning threads on a shared machine cost minutes; `make test-cpus` asks for two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import shape_checks

# A shell that starts the tests in the background has them ignore Ctrl-C; some are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

shape_checks.install()

import torch  # noqa: E402  (after the hook and the thread count)


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture
def real_data() -> Path:
    """The folder of real frames, or a skip that says how to provide it."""
    folder = os.environ.get("KBR_TEST_DATA")
    if not folder:
        pytest.skip("set KBR_TEST_DATA to the folder with the real frames to run this test")
    return Path(folder)
