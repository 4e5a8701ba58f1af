"""What happens around a sweep: a check before it, progress, and tables, figure and report after."""

import os
import signal
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from kbr.app.run.claim import claim, lock
from kbr.app.run.folder import FAILURE, MANIFEST, METRICS, read_json
from kbr.app.run.resume import use_saved_settings
from kbr.app.run.trainer import launch_of
from kbr.app.sweep.grid import grid_of
from kbr.app.sweep.progress import Cells, SweepProgress
from kbr.app.terminal import one_line_errors, stop
from kbr.app.text.commands import command, setting
from kbr.app.text.numbers import duration, in_digits, with_error
from kbr.core.errors import KbrError

LOOK_EVERY = 1.0  # seconds between two looks whether the sweep is still there


class SweepReport(Callback):
    """Hydra callback: checks the output folder, says how far it is, gathers results at the end."""

    def __init__(self) -> None:
        self.started = time.time()
        self.process: int | None = None  # of the sweep; cells may run in others
        self.job_started = 0.0
        self.finished_before: int | None = None

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before Hydra writes anything: whose settings, and whose folder."""
        with one_line_errors():
            begin_run(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if config.resume is not None:
            stop("resume is for a single run; a sweep goes on with the same command.")
        cells = Cells.of(grid_of(config.hydra), (config.get("figure") or {}).get("cost") or {})
        unnamed = config.hydra.job.config.override_dirname.exclude_keys
        self.process = os.getpid()
        if same := [key for key in cells.varied if key in unnamed]:
            stop(f"cells that differ in {same[0]} alone would share a folder. Give {same[0]} once.")
        with one_line_errors():
            folder = claim(config, "hydra.sweep.dir")
        on_ctrl_c(f"Finished cells are kept. Go on: {_again(config)}")
        SweepProgress.of_sweep(config.hydra).begin(cells)
        count = "" if cells.costs is None else f"{len(cells.costs)} cells "
        print(f"sweep: {count}into {folder}; finished cells are skipped")

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        if self.process is not None and self.process == os.getppid():
            end_with(self.process)
        self.job_started = time.time()
        self.finished_before = _finished(Path(config.hydra.runtime.output_dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        folder = Path(config.hydra.runtime.output_dir)
        finished = _finished(folder)
        done_before = self.finished_before is not None and self.finished_before == finished
        seconds = time.time() - self.job_started
        result = "already finished" if done_before else _result(folder, seconds)
        SweepProgress.of(config.hydra).cell_ended(
            self.job_started, result, skipped=done_before or finished is None
        )

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from kbr.app.sweep.results import gather

        folder = Path(config.hydra.sweep.dir)
        SweepProgress.of_sweep(config.hydra).path.unlink(missing_ok=True)
        seconds = time.time() - self.started
        try:
            failed = gather(folder, config.get("figure"))
        except Exception:  # noqa: BLE001  (Hydra would make a warning of it)
            traceback.print_exc()
            print(f"  the runs in {folder} are whole; their tables and report are not written")
            raise SystemExit(1) from None
        print(f"\n  wall time {seconds:.1f} s; results in {folder}")
        print(f"  report:   {folder / 'report.html'}")
        if failed:
            for name, message in failed.items():
                print(f"  failed: {name}: {_first_line(message)}", file=sys.stderr)
            print("  the same command tries them again", file=sys.stderr)
            raise SystemExit(1)


def _finished(folder: Path) -> int | None:
    """When a cell was finished; None if it was not."""
    manifest = folder / MANIFEST
    return manifest.stat().st_mtime_ns if manifest.is_file() else None


def _result(folder: Path, seconds: float) -> str:
    failure = folder / FAILURE
    if failure.is_file():
        return f"failed: {_first_line(failure.read_text())}"
    metrics = read_json(folder / METRICS) or {}
    if "test/mse" not in metrics:
        return "no results"
    error = in_digits(metrics["test/mse"])
    if metrics["test/trials"] > 1:
        error = with_error(metrics["test/mse"], metrics["test/mse_stderr"])
    return f"{error:<15} {duration(seconds):>7}"


def _first_line(text: str) -> str:
    """What went wrong; a traceback may follow it in the file."""
    return text.strip().partition("\n")[0]


def begin_run(config: DictConfig) -> None:
    """Every process of a run takes its settings; the first one claims the folder."""
    import_module("kbr.app.run.train")  # slow: before there is a folder to leave behind
    is_first = launch_of().is_first
    if config.resume is not None:
        use_saved_settings(config)
        if is_first:
            lock(Path(config.hydra.run.dir), "resume")
        return
    if config.hydra.runtime.choices.get("experiment") and config.hydra.sweeper.params:
        raise KbrError(f"an experiment is a sweep, which needs -m. Run: {_again(config)}")
    if is_first:
        claim(config, "hydra.run.dir")


def end_with(parent: int) -> None:
    """Cells end with their sweep: this process is asked to stop once `parent`, its own, is gone.

    A training saves its state first, as it does whenever it is asked to stop.
    """
    if any(thread.name == end_with.__name__ for thread in threading.enumerate()):
        return  # one thread does for all cells

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY)
        while True:  # once more for each cell that was waiting its turn
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LOOK_EVERY)

    threading.Thread(target=watch, name=end_with.__name__, daemon=True).start()


def on_ctrl_c(advice: str) -> None:
    """Whatever a sweep is doing, Ctrl-C ends it and says how to go on."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(advice)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)


def _again(config: DictConfig) -> str:
    """The command of this sweep, into the same folder also where that is named by the time."""
    typed = [str(one) for one in (*config.hydra.overrides.task, *config.hydra.overrides.hydra)]
    typed = [one for one in typed if not one.startswith("hydra.mode=")]
    folder = config.hydra.sweep.dir
    if os.environ.get("KBR_RUN_ID", "?") in folder:
        typed.append(setting("hydra.sweep.dir", folder))
    return command("train", "-m", *typed)
