"""The LSTM baseline: the latent from the last few frames, with the same encoder."""

from jaxtyping import Float
from torch import Tensor, nn

from kbr.training.modules.memory import WindowModule


class LSTMModule(WindowModule):
    """Predicts z_t from the features of x_t-window+1 .. x_t by an LSTM and a linear layer.

    Ref: Xu et al. 2022, section 5.3, the baseline "LSTM" (window 10).
    """

    def build(self, n_inputs: int, hidden: int) -> nn.Module:
        return nn.LSTM(n_inputs, hidden, batch_first=True)

    def last(self, windows: Float[Tensor, "n w d"]) -> Float[Tensor, "n h"]:
        outputs: Tensor = self.recurrence(windows)[0][:, -1]
        return outputs
