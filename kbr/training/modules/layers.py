"""Layers over a sequence, one on the other, each with what it remembers."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kbr.training.modules.recurrent import State

Rows = Float[Tensor, "s t h"]


class Layers(nn.Module):
    """A linear map to the width of the layers, then the layers.

    A layer takes rows and its state, None before the first row, and returns both as they are after.
    """

    def __init__(self, n_inputs: int, hidden: int, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.enter = nn.Linear(n_inputs, hidden)
        self.layers = nn.ModuleList(layers)

    def forward(
        self, inputs: Float[Tensor, "s t d"], state: State | None
    ) -> tuple[Rows, Float[Tensor, "s l ..."]]:
        rows, after = self.enter(inputs), []
        for number, layer in enumerate(self.layers):
            rows, last = layer(rows, None if state is None else state[:, number])
            after.append(last)
        return rows, torch.stack(after, 1)
