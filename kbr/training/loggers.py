"""A CSV logger that keeps what was logged before training was interrupted."""

import csv
import io
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from kbr.core.io.checkpoint import write_atomically


class KeptCSVLogger(CSVLogger):
    """Rows of earlier steps stay in metrics.csv; those of steps that are trained again go."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _KeptRows(log_dir=self.log_dir)
        return self._experiment


class _KeptRows(ExperimentWriter):
    """Lightning's writer, on a file that may have rows already."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir=log_dir)
        self.began = False

    def _check_log_dir_exists(self) -> None:
        """Lightning would delete the file here."""

    def log_metrics(self, metrics_dict: dict[str, Any], step: int | None = None) -> None:
        if not self.began:
            self.began = True
            self.metrics_keys = _cut(Path(self.metrics_file_path), step or 0)
        super().log_metrics(metrics_dict, step)


def _cut(path: Path, first: int) -> list[str]:
    """Leave the rows before the step `first`, whole or as they were; the columns of the file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        names = list(reader.fieldnames or ())
        rows = [row for row in reader if _step(row) < first]
    if "step" not in names or not rows:
        path.unlink()
        return []
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda temporary: temporary.write_bytes(text.getvalue().encode()))
    return names


def _step(row: dict[str, Any]) -> float:
    """Infinite for a row that a killed process left half."""
    whole = None not in row and None not in row.values() and str(row.get("step")).isdecimal()
    return int(row["step"]) if whole else float("inf")
