"""The GRU baseline: the latent from all frames so far, in a state that is carried on."""

from jaxtyping import Float
from torch import Tensor, nn

from kbr.training.modules.memory import StateModule
from kbr.training.modules.recurrent import State


class GRUModule(StateModule):
    """Predicts z_t from the features of x_1 .. x_t by a gated recurrent unit and a linear layer.

    Ref: Cho et al. 2014.
    """

    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        return nn.GRU(n_inputs, hidden, batch_first=True)

    def recur(
        self, inputs: Float[Tensor, "s t d"], state: State | None
    ) -> tuple[Float[Tensor, "s t h"], State]:
        start = None if state is None else state.unsqueeze(0)
        outputs, after = self.recurrence(inputs, start)
        return outputs, after.squeeze(0)
