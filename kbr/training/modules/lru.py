"""The LRU baseline: linear recurrent units, whose states at all steps are found side by side."""

import math
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from kbr.training.modules.layers import Layers, Rows
from kbr.training.modules.memory import StateModule
from kbr.training.modules.recurrent import State

SLOWEST, FASTEST = 0.99, 0.5  # moduli of lambda at first


class LRUModule(StateModule):
    """Predicts z_t from the features of x_1 .. x_t by layers of linear recurrent units.

    Math: a layer: h_t -> h_t + V y_t * sigmoid(G y_t),  y_t = gelu(Re(C s_t) + D n_t), with n_t the
          normalised h_t and s_t the state of `LinearUnit`.
    Ref:  Orvieto et al. 2023.
    """

    def __init__(self, *, layers: int = 2, **shared: Any) -> None:
        self.n_layers = layers  # before the network is built
        super().__init__(**shared)

    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        return Layers(n_inputs, hidden, (LinearUnit(hidden) for _ in range(self.n_layers)))

    def recur(self, inputs: Float[Tensor, "s t d"], state: State | None) -> tuple[Rows, State]:
        outputs, after = self.recurrence(inputs, state)
        return outputs, after


class LinearUnit(nn.Module):
    """A diagonal linear recurrence of complex states, between a norm and a gate.

    Math: s_t = lambda s_t-1 + gamma B n_t,  lambda = exp(-exp(nu) + i theta), so |lambda| < 1;
          gamma = (1 - |lambda|^2)^.5 keeps the size of s whatever |lambda|.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        size = torch.rand(width, device="cpu") * (SLOWEST**2 - FASTEST**2) + FASTEST**2
        self.log_rate = nn.Parameter((-0.5 * size.log()).log())  # nu: sizes even over the ring
        self.angle = nn.Parameter(math.pi * torch.rand(width, device="cpu"))  # theta
        self.enter = nn.Linear(width, 2 * width, bias=False)  # B, real and imaginary part
        self.leave = nn.Linear(2 * width, width, bias=False)  # C
        self.through = nn.Parameter(torch.ones(width, device="cpu"))  # D
        self.gated = nn.Linear(width, 2 * width)  # V and G

    @property
    def decay(self) -> Complex[Tensor, "n"]:
        """lambda"""
        return torch.polar((-self.log_rate.exp()).exp(), self.angle)

    def forward(self, rows: Rows, start: Float[Tensor, "s n"] | None) -> tuple[Rows, Tensor]:
        normal, decay = self.norm(rows), self.decay
        gamma = (-torch.expm1(-2 * self.log_rate.exp())).sqrt()
        moves = gamma * as_complex(self.enter(normal))
        states = scan(decay, moves, None if start is None else as_complex(start))
        output = self.leave(as_real(states)) + self.through * normal
        gated = nn.functional.glu(self.gated(nn.functional.gelu(output)))
        return rows + gated, as_real(states[:, -1])


def scan(
    decay: Complex[Tensor, "n"],
    moves: Complex[Tensor, "s t n"],
    start: Complex[Tensor, "s n"] | None,
) -> Complex[Tensor, "s t n"]:
    """States at all steps in log2 t passes over them.

    Math: s_t = lambda s_t-1 + v_t. After k passes, s_t holds the moves of the last 2^k steps; the
          next adds lambda^(2^k) s_t-2^k.
    """
    states = moves
    if start is not None:
        first = moves[:, :1] + (decay * start).unsqueeze(1)
        states = torch.cat([first, moves[:, 1:]], 1)
    reach, power = 1, decay
    while reach < moves.shape[1]:
        later = states[:, reach:] + power * states[:, :-reach]
        states = torch.cat([states[:, :reach], later], 1)
        reach, power = 2 * reach, power * power
    return states


def as_complex(pairs: Float[Tensor, "*s d"]) -> Complex[Tensor, "*s n"]:
    """From real parts followed by imaginary ones."""
    return torch.complex(*pairs.chunk(2, -1))


def as_real(values: Complex[Tensor, "*s n"]) -> Float[Tensor, "*s d"]:
    return torch.cat([values.real, values.imag], -1)
