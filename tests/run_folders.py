"""Run folders as a finished job leaves them, written without running one."""

import csv
import json
from pathlib import Path

import yaml


def write_run(
    folder: Path,
    *,
    model: str = "iw",
    data: str = "rotation",
    n_train: int = 100,
    errors: dict[int, float],
    overrides: tuple[str, ...] = (),
    config: dict | None = None,
    notes: tuple[str, ...] = (),
) -> Path:
    (folder / ".hydra").mkdir(parents=True)
    given = {
        "quick": False,
        "data": {"name": data, "n_train": n_train},
        "model": {"name": model},
        **(config or {}),
    }
    typed = [f"data={data}", f"model={model}", f"data.n_train={n_train}", *overrides]
    hydra = {
        "overrides": {"task": typed},
        "runtime": {"choices": {"data": data, "model": model, "encoder": "cnn", "debug": None}},
    }
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(given))
    (folder / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": hydra}))
    rows = [
        {"data": data, "n_train": n_train, "model": model, "seed": s, "lam": 0.1, "mse": e}
        for s, e in errors.items()
    ]
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    mean = sum(errors.values()) / len(errors)
    (folder / "metrics.json").write_text(
        json.dumps({"test/mse": mean, "test/mse_stderr": 0.0, "test/trials": len(errors)})
    )
    (folder / "run.json").write_text(
        json.dumps({"kbr": "0.1.0", "commit": "abc1234", "seconds": 60, "notes": list(notes)})
    )
    return folder
