"""One worker against two: the same loss, gradient and final error, and the time of a step.

    python benchmarks/data_parallel.py --n-train 300 --epochs 150

Loss and gradient are compared in float64 on uneven shares; the final validation error is that of
a whole training in float32, without noise or dropout. With as many free cores as workers a step
takes about half the time; the ratio is printed, not judged.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import lightning
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kbr.core.datasets.dsprites import DSprites
from kbr.core.objectives import feature_loss
from kbr.training import LearnedFilter, SoftArgmaxCNN
from kbr.training.callbacks.bar import quiet_lightning
from kbr.training.modules.base import PIECE
from kbr.training.workers import loss_over_workers, rows_of, sums_by_pieces

LAM = 1e-3
WARM_UP = 5  # epochs before the clock starts


class Clock(lightning.Callback):
    """Seconds of an epoch, which is one step; validation is left out."""

    def __init__(self) -> None:
        self.begun, self.taken = 0.0, list[float]()

    def on_train_batch_start(self, *_: Any) -> None:
        self.begun = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.taken.append(time.perf_counter() - self.begun)

    def median(self) -> float:
        return sorted(self.taken[WARM_UP:])[len(self.taken[WARM_UP:]) // 2]


def problem(n: int) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, phi = (torch.randn(n, d, generator=generator).double() for d in (20, 128))
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 32)).double(), x, phi


def one_step(rank: int, world: int, folder: Path, n: int) -> None:
    encoder, x, phi = problem(n)
    encode = DistributedDataParallel(encoder)
    mine = rows_of(rank, world, n, piece=PIECE)
    part = sums_by_pieces(encode(x[mine]), phi[mine], piece=PIECE)
    loss, _ = loss_over_workers(part, lam=LAM)
    torch.autograd.backward(loss)
    if rank == 0:
        torch.save([loss.detach(), *(p.grad for p in encoder.parameters())], folder / "step.pt")


def training(rank: int, world: int, folder: Path, n: int, epochs: int) -> None:
    quiet_lightning()
    data = DSprites().generate(n_train=n, n_test=1, seed=0)
    filt, clock = (
        LearnedFilter(
            encoder=partial(SoftArgmaxCNN, dropout=0.0), noise=0.0, epochs=epochs, val_every=epochs
        ),
        Clock(),
    )
    settings = {"accelerator": "cpu", "enable_progress_bar": False, "logger": False}
    settings |= {"devices": world, "strategy": "ddp" if world > 1 else "auto"}
    filt.fit(data.x_train, data.z_train, folder=folder, trainer={**settings, "callbacks": [clock]})
    if rank == 0:
        torch.save({"val": filt.val_mse, "step": clock.median()}, folder / f"{world}.pt")


def worker(rank: int, world: int, port: int, task: Callable[..., None], arguments: Any) -> None:
    import os

    torch.set_num_threads(1)
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0}
    os.environ.update({name: str(value) for name, value in found.items()})
    if world > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    task(rank, world, *arguments)


def on_workers(world: int, task: Callable[..., None], *arguments: Any) -> None:
    import socket

    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    torch.multiprocessing.spawn(worker, (world, port, task, arguments), nprocs=world)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-train", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=150)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, n = Path(name), 2 * options.n_train + 1  # odd: the shares differ
        on_workers(2, one_step, folder, n)
        loss, *gradient = torch.load(folder / "step.pt", weights_only=True)
        encoder, x, phi = problem(n)
        expected = feature_loss(encoder(x), phi, lam=LAM)
        torch.autograd.backward(expected)
        pairs = zip(gradient, encoder.parameters(), strict=True)
        off = max(float((g - p.grad).norm() / p.grad.norm()) for g, p in pairs)
        apart = abs(float((loss / expected).detach()) - 1)
        print(f"loss, 2 workers against 1: relative {apart:.1e}")
        print(f"gradient: relative {off:.1e}")
        found = {}
        for world in (1, 2):
            on_workers(world, training, folder, options.n_train, options.epochs)
            found[world] = torch.load(folder / f"{world}.pt", weights_only=True)
    one, two = found[1], found[2]
    print(f"final val/mse: {one['val']:.6f}, {two['val']:.6f}, relative ", end="")
    print(f"{abs(two['val'] / one['val'] - 1):.1e}")
    print(f"step: {1e3 * one['step']:.1f} ms, {1e3 * two['step']:.1f} ms, ratio ", end="")
    print(f"{two['step'] / one['step']:.2f}")


if __name__ == "__main__":
    main()
