"""LSTM: the paper's neural baseline, behind the same methods as the kernel filters."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kbr.core.filters.result import FilterResult, mean_squared_error
from kbr.core.filters.tuning import split_lengths, validation_start
from kbr.core.inputs import ArrayLike
from kbr.training.encoders import check_sizes
from kbr.training.lstm_module import LSTMModule
from kbr.training.sequence_module import SequenceModule
from kbr.training.trained_filter import TrainedFilter


@dataclass(kw_only=True, eq=False, repr=False)
class LSTMFilter(TrainedFilter):
    """An LSTM over the features of the last `window` frames; `hidden` units.

    It has no belief: `cov` is the covariance of its errors on the validation block, the same at
    every step. A frame with a NaN is missing: the features before it are held (those after it, at
    the start of a sequence), and `evidence` is False there.

    Ref: Xu et al. 2022, section 5.3.
    """

    # What serves this model best, where it differs: it settles later, underfits with dropout, and
    # overfits where it goes on.
    epochs: int = 400
    slack: float = 0.0
    noise: float = 0.5
    dropout: float | None = 0.0
    window: int = 10
    hidden: int = 64

    kind: ClassVar[str] = "kbr.lstm_filter"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(window=self.window, hidden=self.hidden)
        self._cov = torch.empty(0)

    def build(self, encoder: nn.Module, x: Tensor, z: Tensor, shared: dict[str, Any]) -> LSTMModule:
        with torch.no_grad():
            n_features = encoder.eval()(x[:1].float()).shape[-1]
        encoder.train()
        return LSTMModule(
            encoder,
            x,
            z,
            n_features=n_features,
            window=self.window,
            hidden=self.hidden,
            **shared,
        )

    def finish(self, module: SequenceModule, x: Tensor, z: Tensor) -> None:
        cut = validation_start(z.shape[0])
        _, pieces = split_lengths(self._lengths, cut)
        mean = torch.cat([self._predict(x[start:stop])[0][0] for start, stop in pieces])
        error = mean - z[cut:]
        self._cov = error.mT @ error / error.shape[0]
        self.val_mse = float(mean_squared_error(mean, z[cut:]))
        self.chosen = {}

    def fitted_state(self) -> dict[str, Any]:
        return {"cov": self._cov}

    def restore(self, state: dict[str, Any]) -> None:
        self._cov = state["cov"]

    def filter(self, x: ArrayLike) -> FilterResult:
        """Predictions at every step of x [*s T ...]."""
        mean, seen, lead = self._predict(x)
        shape = (*lead, mean.shape[1])
        return FilterResult(
            mean.reshape(*shape, self._dz),
            self._cov.expand(*shape, *self._cov.shape),
            seen.reshape(shape),
        )

    @torch.no_grad()
    def _predict(
        self, x: ArrayLike
    ) -> tuple[Float[Tensor, "s t dz"], Bool[Tensor, "s t"], tuple[int, ...]]:
        psi, seen, lead = self.encode(x)
        module = self._get()
        assert isinstance(module, LSTMModule)
        held = hold(psi, seen).to(module.z_mean.device)
        mean = torch.stack([module.predict_latents(rows).cpu().double() for rows in held])
        return mean, seen, lead


def hold(psi: Float[Tensor, "s t d"], seen: Bool[Tensor, "s t"]) -> Float[Tensor, "s t d"]:
    """Rows that are missing become the last one seen; before the first one seen, that one."""
    steps = torch.arange(psi.shape[1]).expand(psi.shape[:2])
    last = torch.where(seen, steps, -1).cummax(1).values
    first = seen.to(torch.int8).argmax(1, keepdim=True).expand_as(last)
    index = torch.where(last >= 0, last, first)
    return psi.gather(1, index.unsqueeze(-1).expand_as(psi))
