"""What happens around a sweep: a check before it, progress, and tables, figure and report after."""

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from kbr.app.cli import stop
from kbr.app.sweep_progress import Cell, Timeline, grid_of, in_words, seconds_left


class SweepReport(Callback):
    """Hydra callback: checks the output folder, says how far it is, gathers results at the end."""

    def __init__(self) -> None:
        self.started = time.time()
        self.grid: dict[str, int] | None = None
        self.job_started = 0.0
        self.finished_before: int | None = None

    @property
    def total(self) -> int | None:
        return None if self.grid is None else math.prod(self.grid.values())

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _check_writable(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        _check_writable(folder)
        self.grid = grid_of(config.hydra)
        _timeline(config).clear()
        count = "" if self.total is None else f"{self.total} cells "
        print(f"sweep: {count}into {folder}; finished cells are skipped")

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.job_started = time.time()
        self.finished_before = _finished(Path(config.hydra.runtime.output_dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        folder = Path(config.hydra.runtime.output_dir)
        skipped = self.finished_before is not None and self.finished_before == _finished(folder)
        cell = Cell(start=self.job_started, end=time.time(), skipped=skipped)
        cells = _timeline(config).add(cell)
        left = None if skipped else seconds_left(cells, self.total)
        name = self._name(config.hydra.overrides.task)
        print(_line(len(cells), self.total, name, _result(folder, cell), left), flush=True)

    def _name(self, overrides: Sequence[str]) -> str:
        """What sets this cell apart: the keys that are varied."""
        swept = [k for k, n in self.grid.items() if n > 1] if self.grid is not None else []
        parts = [text for text in overrides if not swept or text.partition("=")[0] in swept]
        return " ".join(_short(part) for part in parts)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from kbr.app.sweep_results import gather

        folder = Path(config.hydra.sweep.dir)
        _timeline(config).path.unlink(missing_ok=True)
        seconds = time.time() - self.started
        failed = gather(folder, config.get("figure"))
        print(f"\n  wall time {seconds:.1f} s; results in {folder}")
        print(f"  report:   {folder / 'report.html'}")
        if failed:
            for name, message in failed.items():
                print(f"  failed: {name}: {_first_line(message)}", file=sys.stderr)
            print("  the same command tries them again", file=sys.stderr)
            raise SystemExit(1)


def _timeline(config: DictConfig) -> Timeline:
    return Timeline(path=Path(config.hydra.sweep.dir) / ".progress")


def _finished(folder: Path) -> int | None:
    """When a cell was finished; None if it was not."""
    manifest = folder / "run.json"
    return manifest.stat().st_mtime_ns if manifest.is_file() else None


def _short(override: str) -> str:
    """`data.n_train=300` as `n_train=300`, `model=iw` as `iw`."""
    key, _, value = override.partition("=")
    return value if key in ("data", "model") else f"{key.rpartition('.')[2]}={value}"


def _result(folder: Path, cell: Cell) -> str:
    if cell.skipped:
        return "already finished"
    failure = folder / "failure.txt"
    if failure.is_file():
        return f"failed: {_first_line(failure.read_text())}"
    try:
        metrics = json.loads((folder / "metrics.json").read_text())
    except (OSError, json.JSONDecodeError):
        return "no results"
    error = f"{metrics['test/mse']:.4f}"
    if metrics["test/trials"] > 1:
        error += f" ± {metrics['test/mse_stderr']:.4f}"
    return f"{error:<15} {in_words(cell.end - cell.start):>7}"


def _first_line(text: str) -> str:
    """What went wrong; a traceback may follow it in the file."""
    return text.strip().partition("\n")[0]


def _line(number: int, total: int | None, name: str, result: str, left: float | None) -> str:
    """`[ 7/40] oscillatory n_train=900 iw   0.0551 ± 0.0012   12 s  ~12 min left`."""
    of = "" if total is None else f"/{total}"
    place = f"[{number:>{len(of) - 1 if of else 1}}{of}]"
    ahead = "" if left is None or number == total else f"  ~{in_words(left)} left"
    return f"{place} {name:<33} {result}{ahead}"


def _check_writable(folder: Path) -> None:
    """Fail before anything is made, with the setting to change."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            pass
    except OSError as error:
        stop(
            f"cannot write the run folder {folder}: {place} is not a writable folder "
            f"({error.strerror}). Set hydra.run.dir=... (hydra.sweep.dir=... for -m)."
        )
