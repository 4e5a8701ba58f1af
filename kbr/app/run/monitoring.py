"""TensorBoard: scalars and pictures of every run, learned or closed-form."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kbr.app.config.resolvers import model_name
from kbr.app.models.outcome import Outcome
from kbr.core.showing.tags import FIRST, SECOND

TRAJECTORY = ("trajectory", "posterior_mean")  # the answers: in the group that stands first
# All other pictures are numbered: the next questions come first, and names are those of all runs.
PICTURES = (
    "error",
    "coverage",
    "pit",
    "ellipses",
    "weights",
    "observations",
    "contact_sheet",
    "encoder",
)
# Beside the settings; of own data in units of the training spread. All metrics are a text.
IN_TABLE = ("test/mse", "test/mse_standardised", "val/mse", "val/mse_standardised")
OWN_COLUMN = ("data", "model", "seed", "data.n_train")
# Parts of the config that do not decide the numbers.
ASIDE = (
    *("trainer", "logger", "callbacks", "hydra", "figure", "experiment", "hparams_search"),
    *("quick", "resume", "trust", "optimized_metric"),
)

Setting = bool | int | float | str


def log_outcome(
    folder: Path,
    config: DictConfig,
    metrics: dict[str, Any],
    outcome: Outcome,
    pictures: list[Path],
    typed: Sequence[str] = (),
) -> None:
    """Final metrics, settings, the error over time and pictures, beside what training has logged.

    The settings go into the same folder as the curves, so that a run is one line in TensorBoard.
    The errors stand among them: a metric of TensorBoard's would be a chart with one dot.
    """
    import matplotlib.image
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        columns = {**settings(config, typed), **errors(metrics)}
        # Without the list of columns of one run, TensorBoard makes it over all runs that it shows,
        # with those that differ in front.
        _, *session = hparams(columns, {})  # type: ignore[no-untyped-call]
        for summary in session:
            writer.file_writer.add_summary(summary)
        writer.add_text("run/metrics", _table(metrics))
        writer.add_text("run/settings", _code(OmegaConf.to_yaml(config, resolve=True)))
        if outcome.evidence is not None and len(pictures) > 1:
            error = (outcome.mean - outcome.truth).square().sum(-1).mean(0)
            so_far = error.cumsum(0) / error.new_ones(len(error)).cumsum(0)
            for step, value in enumerate(so_far.tolist() if len(so_far) > 1 else (), start=1):
                writer.add_scalar(f"{SECOND}/test_mse_up_to_step", value, step)
        for path in pictures:
            image = matplotlib.image.imread(path)[..., :3]
            writer.add_image(_tag(path.stem), image, 0, dataformats="HWC")


def _tag(picture: str) -> str:
    if picture in TRAJECTORY:
        return f"{FIRST}/{picture}"
    place = f"{PICTURES.index(picture) + 1}_" if picture in PICTURES else ""
    return f"{SECOND}/{place}{picture}"


def _table(metrics: dict[str, Any]) -> str:
    """Markdown, as TensorBoard's text tab shows it."""
    lines = [f"| {name} | {_short(value)} |" for name, value in metrics.items()]
    return "\n".join(["| metric | value |", "|---|---|", *lines])


def _code(text: str) -> str:
    """Markdown again: a block that is shown as it stands."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value}".replace("|", "\\|")


def errors(metrics: dict[str, Any]) -> dict[str, Setting]:
    """The columns with the errors, named to stand behind `data`: TensorBoard shows five at once."""
    return {f"error {name}": float(metrics[name]) for name in IN_TABLE if name in metrics}


def settings(config: DictConfig, typed: Sequence[str] = ()) -> dict[str, Setting]:
    """What tells runs apart: data, model, n_train, seed, and what the command line has set."""
    found: dict[str, Setting] = {
        "data": config.data.name,
        "model": model_name(config.model),
        "seed": config.seed,
    }
    if config.data.get("n_train") is not None:
        found["n_train"] = config.data.n_train
    for word in typed:
        key, equals, value = word.lstrip("+~").partition("=")
        if equals and key not in OWN_COLUMN and key.partition(".")[0] not in ASIDE:
            held = OmegaConf.select(config, key)
            found[f"set {key}"] = held if isinstance(held, bool | int | float | str) else value
    return found
