"""Whether a stream's sensor is off as it was not in training: counted row by row, said at last."""

from collections.abc import Callable

import torch

from kbr.core.filters.belief import Belief
from kbr.core.filters.result import WIDE, surprised


class SensorWatch:
    """Call it with every belief, then `end`. Of filters without a surprise it says nothing."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._rows, self._wide, self._most = 0, 0, 1.0

    def __call__(self, belief: Belief) -> None:
        if belief.surprise is None:
            return
        most = float(belief.surprise.max())
        self._rows += 1
        self._wide += most > WIDE
        self._most = max(self._most, most)

    def end(self) -> None:
        if line := surprised(self._wide, self._rows, torch.tensor(self._most, device="cpu")):
            self.say(f"sensor: {line}")
