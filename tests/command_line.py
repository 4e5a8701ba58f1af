"""The commands as a user types them, run inside the test's process: a second instead of six."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from matplotlib.figure import Figure
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Done:
    """What a finished command leaves, by the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def call(
    *arguments: str, script: str = "train.py", folder: Path = ROOT, pictures: bool = False
) -> Done:
    """A script or console command, from the project's folder or another."""
    from kbr.app import cli, inspect_data
    from kbr.app.run import claim
    from kbr.app.streaming import command as streaming

    command = {
        "train.py": cli.train,
        "evaluate.py": cli.evaluate,
        "kbr-inspect": inspect_data.main,
        "kbr-filter": streaming.main,
    }[script]
    out, err = io.StringIO(), io.StringIO()
    code = 0
    drawing = nullcontext() if pictures else undrawn()
    with _as_a_process(script, arguments, folder), redirect_stdout(out), redirect_stderr(err):
        try:
            with drawing:
                command()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    while claim._held:  # a process keeps its folders until it ends
        claim._held.pop().release()
    return Done(code, out.getvalue(), err.getvalue())


@contextmanager
def undrawn() -> Iterator[None]:
    """Pictures are made, but a dot is saved: drawing them is half the time of a small run."""

    def dot(figure: Figure, target: Any, **settings: Any) -> None:
        if not isinstance(target, Path):
            drawn(figure, target, **settings)  # into a page
        elif settings["format"] == "svg":
            target.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
        else:
            Image.new("RGB", (1, 1)).save(target, settings["format"])

    drawn, Figure.savefig = Figure.savefig, dot
    try:
        yield
    finally:
        Figure.savefig = drawn


@contextmanager
def _as_a_process(script: str, arguments: tuple[str, ...], at: Path) -> Iterator[None]:
    """Arguments, folder and environment of a process of its own; all of it is put back.

    Modules of the user's folder are forgotten: another test may have others of the same name.
    """
    argv, path, environ, folder = sys.argv, list(sys.path), dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.argv = [str(ROOT / script), *arguments]
    os.chdir(at)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = None  # as before Hydra ran
        sys.argv, sys.path[:] = argv, path
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if at != ROOT:
            for name in [name for name, module in sys.modules.items() if _is_in(module, at)]:
                del sys.modules[name]


def _is_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)
