"""Time of one optimisation step through Lightning over that of a bare PyTorch loop, same model.

    python benchmarks/training.py --threads 1

Lightning runs as `LearnedFilter.fit` sets it up: TensorBoard every 10th epoch, a checkpoint every
50th. Validation is left out of both. The two take turns; the least of the repeats is compared.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import kbr._torchvision  # noqa: F401  (before lightning)

# isort: split
import lightning
import torch

from kbr.core.datasets.dsprites import DSprites
from kbr.core.filters.kernel.choosing.validation import validation_start
from kbr.core.objectives import feature_loss
from kbr.training import LearnedFilter, SoftArgmaxCNN
from kbr.training.modules.features import FeatureModule

WARM_UP = 5  # steps before the clock starts


class StepClock(lightning.Callback):
    """Seconds from the start of epoch WARM_UP to the start of the last one; an epoch is a step."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        self.starts.append(time.perf_counter())

    def per_step(self) -> float:
        return (self.starts[-1] - self.starts[WARM_UP]) / (len(self.starts) - 1 - WARM_UP)


def lightning_step(filt: LearnedFilter, x: torch.Tensor, z: torch.Tensor) -> float:
    clock = StepClock()
    trainer = {"accelerator": "cpu", "enable_progress_bar": False, "callbacks": [clock]}
    with tempfile.TemporaryDirectory() as folder:
        filt.fit(x, z, seed=0, folder=Path(folder), trainer=trainer)
    return clock.per_step()


def bare_step(filt: LearnedFilter, x: torch.Tensor, z: torch.Tensor) -> float:
    cut = validation_start(len(z))
    x, z = x[:cut], z[:cut]
    module = FeatureModule(
        encoder=filt.encoder,
        shape=x.shape[1:],
        dz=z.shape[-1],
        epochs=filt.epochs,
        lr=filt.lr,
        noise=filt.noise,
    )
    module.fit_scales(x, z)
    optimizer = torch.optim.Adam(module.parameters(), lr=filt.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, module.rate)
    start = 0.0
    for epoch in range(filt.epochs):
        if epoch == WARM_UP:
            start = time.perf_counter()
        loss = feature_loss(module.encode(x), module.targets(z), lam=filt.lam)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return (time.perf_counter() - start) / (filt.epochs - WARM_UP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--n-train", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = DSprites().generate(n_train=options.n_train, n_test=1, seed=0)
    settings = {"epochs": options.epochs, "val_every": options.epochs}
    small = partial(SoftArgmaxCNN, channels=4, n_maps=4)
    for name, encoder in (("default", partial(SoftArgmaxCNN)), ("a quarter as wide", small)):
        bare, through = [], []
        for _ in range(options.repeats):
            filt = LearnedFilter(encoder=encoder, **settings)
            bare.append(bare_step(filt, data.x_train, data.z_train))
            through.append(lightning_step(filt, data.x_train, data.z_train))
        print(
            f"encoder {name}: bare {1e3 * min(bare):.1f} ms, Lightning {1e3 * min(through):.1f} ms "
            f"a step, ratio {min(through) / min(bare):.2f}"
        )


if __name__ == "__main__":
    main()
