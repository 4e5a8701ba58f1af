"""Two kinds of memory of a recurrent model: its last frames, or a state that it carries on."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kbr.training.modules.pieces import cut
from kbr.training.modules.recurrent import RecurrentModule, State
from kbr.training.precision import Outputs


class WindowModule(RecurrentModule):
    """A function of the last `window` frames; before the first one, copies of it.

    Each frame is encoded once, not once for every window it is in.
    """

    def __init__(self, *, window: int = 10, **shared: Any) -> None:
        super().__init__(**shared)
        self.window = window

    @abstractmethod
    def last(self, windows: Float[Tensor, "n w d"]) -> Float[Tensor, "n h"]:
        """Outputs at the end of every window."""

    @property
    def memory(self) -> int:
        return self.window - 1

    def recur(
        self, inputs: Float[Tensor, "s t d"], state: State | None
    ) -> tuple[Float[Tensor, "s t h"], State]:
        before = inputs[:, :1].expand(-1, self.memory, -1) if state is None else state
        rows = torch.cat([before, inputs], 1)
        outputs = self.last(rows.unfold(1, self.window, 1).mT.flatten(0, 1))
        return outputs.reshape(*inputs.shape[:2], -1), rows[:, rows.shape[1] - self.memory :]

    def run(self, inputs: Float[Tensor, "t d"], lengths: Sequence[int]) -> Outputs:
        return self.last(self.windows(inputs, lengths))

    def windows(
        self, inputs: Float[Tensor, "t d"], lengths: Sequence[int] | None = None
    ) -> Float[Tensor, "t w d"]:
        """The last `window` rows up to every row of a sequence, or of several end to end."""
        padded = (
            torch.cat([rows[:1].expand(self.memory, -1), rows])
            for rows in torch.split(inputs, list(lengths or [len(inputs)]))
        )
        return torch.cat([rows.unfold(0, self.window, 1).mT for rows in padded])


class StateModule(RecurrentModule):
    """A state carried from the first frame on.

    Training runs pieces of `chunk` frames side by side, cut elsewhere in every epoch: long
    sequences take as many steps as short ones, and every frame is at times a first one.
    """

    def __init__(self, *, chunk: int = 100, **shared: Any) -> None:
        super().__init__(**shared)
        self.chunk = chunk

    @property
    def piece_steps(self) -> int:
        return self.chunk

    def pieces(self, lengths: Sequence[int]) -> list[int]:
        every = cut(lengths, self.chunk, self.first_cut(self.chunk))
        return [piece.end - piece.start for piece in every]
