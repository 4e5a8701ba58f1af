"""What training logs, for TensorBoard."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger

from kbr.core.showing.tags import FIRST, SECOND

TAGS = {
    "train/loss": f"{FIRST}/loss",
    "val/mse": f"{FIRST}/mse_on_validation",
    "train/explained": f"{SECOND}/share_explained",
}

Point = tuple[float, int | None]


class Curves(TensorBoardLogger):
    """Lightning's logger without `epoch`: a step is an epoch here, so its curve is a diagonal.

    A curve is written from its second point on, with the first: one dot in a chart says nothing.
    """

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            if name != "epoch":
                tag = TAGS.get(name, name)
                for number, place in self._due(tag, (value, step)):
                    super().log_metrics({tag: number}, place)

    def _due(self, tag: str, point: Point) -> Iterator[Point]:
        first = self._firsts.setdefault(tag, point)
        if first is not None:
            if first is point and self._is_new:
                return
            self._firsts[tag] = None
            if first is not point:
                yield first
        yield point

    @cached_property
    def _firsts(self) -> dict[str, Point | None]:
        """Points that wait for a second one; None once they are written."""
        return {}

    @cached_property
    def _is_new(self) -> bool:
        """Whether nothing was logged before; a resumed training goes on with its curves."""
        files = list(Path(self.log_dir).glob("events.out.*"))
        return len(files) < 2  # its own
