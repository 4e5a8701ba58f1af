"""TensorBoard: scalars and pictures of every run, learned or closed-form."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kbr.app.methods import Outcome

BUILDING = ("problem", "path")
SHOWN = ("test/", "val/", "fit/")  # the other metrics are in metrics.json

Setting = bool | int | float | str


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
        if name.startswith(SHOWN) and isinstance(value, int | float) and value == value
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


def settings(config: DictConfig) -> dict[str, Setting]:
    """What was set, flat. TensorBoard sorts by name and shows the first five columns at once."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    data, model = plain["data"], plain["model"]
    first = {"data": data.pop("name"), "model": model.pop("name"), "seed": plain["seed"]}
    if "n_train" in data:
        first["n_train"] = data.pop("n_train")
    encoder = model.get("filter", {}).get("encoder")
    if encoder:
        first["encoder"] = encoder["_target_"].rpartition(".")[2]
    rest = {"data": data, "model": model, "trials": plain["trials"]}
    return {**first, **dict(_flat("set", rest))}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Setting]]:
    """Leaves of nested dicts under their dotted names; what only serves to build objects is out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not key.startswith("_") and key not in BUILDING:
                yield from _flat(f"{name}.{key}", inner)
    elif value is not None:
        yield name, value if isinstance(value, bool | int | float | str) else str(value)
