"""TensorBoard: scalars and pictures of every run, learned or closed-form."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kbr.app.config.resolvers import model_name
from kbr.app.config.values import walked
from kbr.app.models.outcome import Outcome

BUILDING = ("problem", "path")  # what only serves to build objects
# Groups stand in the order of the alphabet, the first two open: training, view, whole_run. Pictures
# are numbered, so that the answers come first and a picture has one name in all runs.
PICTURES = (
    "trajectory",
    "error",
    "coverage",
    "pit",
    "ellipses",
    "weights",
    "observations",
    "contact_sheet",
    "encoder",
)
IN_TABLE = ("test/mse", "val/mse")  # beside the settings; all metrics are a text

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

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        scalars = {f"whole_run/{name}": metrics[name] for name in IN_TABLE if name in metrics}
        for summary in hparams(settings(config), scalars):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(summary)
        for name, value in scalars.items():
            writer.add_scalar(name, value, 0)
        writer.add_text("whole_run/metrics", _table(metrics))
        if outcome.evidence is not None and len(pictures) > 1:
            error = (outcome.mean[0] - outcome.truth[0]).square().sum(-1)
            for step, value in enumerate(error.tolist(), start=1):
                writer.add_scalar("view/squared_error", value, step)
        for path in pictures:
            image = matplotlib.image.imread(path)[..., :3]
            place = f"{PICTURES.index(path.stem) + 1}_" if path.stem in PICTURES else ""
            writer.add_image(f"view/{place}{path.stem}", image, 0, dataformats="HWC")


def _table(metrics: dict[str, Any]) -> str:
    """Markdown, as TensorBoard's text tab shows it."""
    lines = [f"| {name} | {_short(value)} |" for name, value in metrics.items()]
    return "\n".join(["| metric | value |", "|---|---|", *lines])


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value}".replace("|", "\\|")


def settings(config: DictConfig) -> dict[str, Setting]:
    """What was set, flat. TensorBoard sorts by name and shows the first five columns at once."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    data, model = plain["data"], plain["model"]
    first: dict[str, Setting] = {
        "data": data.pop("name"),
        "model": model_name(model),
        "seed": plain["seed"],
    }
    model.pop("name", None)
    if "n_train" in data:
        first["n_train"] = data.pop("n_train")
    encoder = model.get("filter", {}).get("encoder")
    if encoder:
        first["encoder"] = encoder["_target_"].rpartition(".")[2]
    rest = {"data": data, "model": model, "trials": plain["trials"]}
    for key, value in walked(rest, "set"):
        building = any(name.startswith("_") or name in BUILDING for name in key.split("."))
        if not (building or value is None or isinstance(value, dict)):
            first[key] = value if isinstance(value, bool | int | float | str) else str(value)
    return first
