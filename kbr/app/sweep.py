"""What happens around a sweep: a check before it, and tables and the figure after it."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from kbr.app.cli import stop


class SweepReport(Callback):
    """Hydra callback: checks the output folder first, gathers every cell's results at the end."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _check_writable(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _check_writable(Path(config.hydra.sweep.dir))
        print(f"sweep into {config.hydra.sweep.dir}; finished cells are skipped")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        failed = gather(folder, config.get("figure"))
        print(f"\n  wall time {time.perf_counter() - self.started:.1f} s; results in {folder}")
        if failed:
            for name, message in failed.items():
                print(f"  failed: {name}: {message}", file=sys.stderr)
            raise SystemExit(1)


def gather(folder: Path, figure: DictConfig | None) -> dict[str, str]:
    """results.csv, summary.csv, table and figure from the cells' folders; failures by name."""
    from kbr.app.run_folder import MANIFEST, RESULTS, read_rows, write_bytes, write_rows
    from kbr.app.summary import format_table, summarize
    from kbr.app.sweep_figures import sweep_figure

    cells = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    rows = [row for cell in cells for row in read_rows(cell / RESULTS)]
    failed = {path.parent.name: path.read_text().strip() for path in folder.glob("*/failure.txt")}
    if rows:
        write_rows(folder / RESULTS, rows)
    if rows and figure is not None and all(figure.x in row for row in rows):
        order = list(figure.models)
        rank = {name: i for i, name in enumerate(order)}
        rows.sort(key=lambda r: (r["data"], rank.get(r["model"], len(rank)), float(r[figure.x])))
        table = summarize(rows, figure.x, figure.reference)
        write_rows(folder / "summary.csv", table)
        text = format_table(table, figure.x, figure.reference)
        write_bytes(folder / "table.txt", (text.lstrip("\n") + "\n").encode())
        print(text)
        sweep_figure(folder / figure.name, rows, x=figure.x, label=figure.label)
    return failed


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
