"""TensorBoard: scalars and pictures of every run, learned or closed-form."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kbr.app.methods import Outcome

NOT_SETTINGS = ("resume", "logger", "figure", "debug", "experiment", "quick", "trainer")


def log_outcome(
    folder: Path,
    config: DictConfig,
    metrics: dict[str, Any],
    outcome: Outcome,
    pictures: list[Path],
) -> None:
    """Final metrics, settings, the error over time and pictures, beside what training has logged.

    The settings go into the same folder as the curves, so that a run is one line in TensorBoard.
    """
    import matplotlib.image
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    numbers = {
        f"final/{name}": value
        for name, value in metrics.items()
        if isinstance(value, int | float) and value == value
    }
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        shown = {
            name: numbers[name] for name in ("final/test/mse", "final/val/mse") if name in numbers
        }
        for summary in hparams(settings(config), shown):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(summary)
        for name, value in numbers.items():
            writer.add_scalar(name, value, 0)
        if outcome.evidence is not None and len(pictures) > 1:
            error = (outcome.mean[0] - outcome.truth[0]).square().sum(-1)
            for step, value in enumerate(error.tolist(), start=1):
                writer.add_scalar("test/squared_error", value, step)
        for path in pictures:
            image = matplotlib.image.imread(path)[..., :3]
            writer.add_image(f"pictures/{path.stem}", image, 0, dataformats="HWC")


def settings(config: DictConfig) -> dict[str, bool | int | float | str]:
    """What was set, flat: data.n_train, model.name, seed, ..."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    found: dict[str, bool | int | float | str] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if not key.startswith("_") and key != "problem":
                    collect(f"{prefix}.{key}" if prefix else key, inner)
        elif value is not None:
            found[prefix] = value if isinstance(value, bool | int | float | str) else str(value)

    collect("", {key: value for key, value in plain.items() if key not in NOT_SETTINGS})
    return found
