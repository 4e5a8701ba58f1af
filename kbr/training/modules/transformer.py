"""The transformer baseline: each layer attends to the last few frames."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from kbr.training.modules.layers import Layers, Rows
from kbr.training.modules.recurrent import RecurrentModule, State


class TransformerModule(RecurrentModule):
    """Predicts z_t by layers of causal attention, each over the last `window` steps of the one
    below; so the answer looks `layers` (window - 1) frames back.

    Math: a layer: h_t -> h_t + O sum_j a_tj V n_t-j,  a_tj = softmax_j(q_t' k_t-j / c^.5 + p_j) for
          each head, j = 0 .. window - 1, p learned; then h_t -> h_t + W gelu(U norm(h_t)). n_t is
          the normalised h_t; before the first frame stand learned rows.
    Ref:  Vaswani et al. 2017; Beltagy et al. 2020 (sliding windows).

    Each frame passes the network once, not once for every window it is in.
    """

    def __init__(self, *, window: int = 10, layers: int = 2, heads: int = 4, **shared: Any) -> None:
        self.window, self.n_layers, self.heads = window, layers, heads  # before it is built
        super().__init__(**shared)

    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        layers = (Attention(hidden, self.window, self.heads) for _ in range(self.n_layers))
        return Layers(n_inputs, hidden, layers)

    @property
    def memory(self) -> int:
        return self.n_layers * (self.window - 1)

    def recur(self, inputs: Float[Tensor, "s t d"], state: State | None) -> tuple[Rows, State]:
        outputs, after = self.recurrence(inputs, state)
        return outputs, after


class Attention(nn.Module):
    """One layer: rows t - window + 1 .. t, the last of them included, give row t."""

    def __init__(self, width: int, window: int, heads: int) -> None:
        super().__init__()
        self.window, self.heads = window, heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.wide = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.position = nn.Parameter(torch.zeros(heads, window, device="cpu"))
        self.before = nn.Parameter(0.1 * torch.randn(window - 1, width, device="cpu"))

    def forward(
        self, rows: Rows, before: Float[Tensor, "s p h"] | None
    ) -> tuple[Rows, Float[Tensor, "s p h"]]:
        """Rows, and the last `window` - 1 that came in; `before` are those before them."""
        if before is None:
            before = self.before.expand(len(rows), -1, -1)
        known = torch.cat([before, rows], 1)
        rows = rows + self.output(self._attended(known))
        return rows + self.wide(self.second_norm(rows)), known[:, rows.shape[1] :]

    def _attended(self, known: Float[Tensor, "s k h"]) -> Rows:
        """Of all rows after the first `window` - 1.

        Blocks of queries share their keys: as many operations as steps times twice the window.
        """
        past, steps = self.window - 1, known.shape[1] - self.window + 1
        size = min(steps, self.window)  # of a block
        count = -(-steps // size)
        normal = self.norm(pad(known, (0, 0, 0, count * size - steps)))
        queries = self.query(normal[:, past:]).reshape(len(known), count, size, -1)
        keys, values = self.key_value(normal).unfold(1, size + past, size).mT.chunk(2, -1)
        mixed = scaled_dot_product_attention(
            self._by_head(queries),
            self._by_head(keys),
            self._by_head(values),
            attn_mask=self._scores(size),
        )
        return mixed.transpose(-3, -2).reshape(len(known), count * size, -1)[:, :steps]

    def _by_head(self, rows: Float[Tensor, "s b r h"]) -> Float[Tensor, "s b heads r c"]:
        return rows.reshape(*rows.shape[:-1], self.heads, -1).transpose(-3, -2)

    def _scores(self, size: int) -> Float[Tensor, "heads q k"]:
        """p_j of query t and key t - j; minus infinity outside the window."""
        place = torch.arange(size + self.window - 1, device=self.position.device)
        back = place[self.window - 1 :].unsqueeze(-1) - place
        scores = self.position[:, back.clamp(0, self.window - 1)]
        return scores.masked_fill((back < 0) | (back >= self.window), -torch.inf)
