"""Peak memory of training on images that stay in their file, against their number.

    python benchmarks/image_memory.py --sizes 20000 100000 --epochs 2

Writes frames of a moving heart (uint8, kbr's own renderer) to x.npy and their positions to z.npy in
a temporary folder, trains IW(NN) on them through train.py in a process of its own, and prints the
peak memory that the operating system reports for it, the CPU time and the test error. The encoder
is a small one, to keep the time short; `--encoder` takes other settings of it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from kbr.core.datasets.dsprites import DSprites

ROOT = Path(__file__).resolve().parent.parent
SEQUENCE = 1000  # frames of a sequence; the last one is the test
SMALL = ["encoder.channels=4", "encoder.n_maps=8"]


def write_frames(folder: Path, n: int) -> None:
    """n training frames, and a sequence of test frames behind them."""
    task, generator = DSprites(), torch.Generator().manual_seed(0)
    total = n + SEQUENCE
    x = np.lib.format.open_memmap(
        folder / "x.npy", mode="w+", dtype=np.uint8, shape=(total, 64, 64)
    )
    z = np.empty((total, 2))
    for start in range(0, total, SEQUENCE):
        rows = slice(start, start + SEQUENCE)
        frames, z[rows] = task.sample(SEQUENCE, generator)
        x[rows] = (100 * frames[:, 0] + 60).clamp(0, 255).to(torch.uint8).numpy()
    np.save(folder / "z.npy", z)
    np.save(folder / "sequence.npy", np.arange(total) // SEQUENCE)
    x.flush()


def train(
    folder: Path, n: int, *, epochs: int, workers: int, encoder: list[str]
) -> dict[str, float]:
    """One run of train.py; peak memory and CPU time are those of that process."""
    run = folder / "run"
    command = [sys.executable, str(ROOT / "train.py"), "data=recording", f"data.path={folder}"]
    command += ["model=iw_nn", f"model.filter.epochs={epochs}", "data.test_share=1e-6", *encoder]
    command += [f"model.filter.val_every={epochs}", "data.n_test=200", f"hydra.run.dir={run}"]
    several = ["trainer=ddp_cpu", f"trainer.devices={workers}"]
    command += ["trainer=cpu"] if workers == 1 else several
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("train.py failed; its message is above")
    error = json.loads((run / "metrics.json").read_text())["test/mse"]
    cpu = used.ru_utime + used.ru_stime
    return {"n": n, "peak_gb": used.ru_maxrss / 1e6, "cpu": cpu, "mse": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--encoder", nargs="*", default=SMALL, help="overrides of the encoder")
    options = parser.parse_args()
    rows = []
    for n in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_frames(Path(folder), n)
            size = (Path(folder) / "x.npy").stat().st_size / 1e9
            settings = {key: getattr(options, key) for key in ("epochs", "workers", "encoder")}
            made = train(Path(folder), n, **settings)
            rows.append({**made, "file_gb": size})
    print("      n  x.npy (GB)  peak memory (GB)  CPU (s)  test mse")
    for row in rows:
        print(
            "{n:7d} {file_gb:11.2f} {peak_gb:17.2f} {cpu:8.0f} {mse:9.4f}".format(**row), flush=True
        )


if __name__ == "__main__":
    main()
