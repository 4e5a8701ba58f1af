"""Kalman filter behind the encoder: linear dynamics learned through the filter."""

from dataclasses import dataclass
from typing import ClassVar

from kbr.core.errors import KbrError
from kbr.training.filters.memory import StateFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.kalman_nn import KalmanNNModule


@dataclass(kw_only=True, eq=False, repr=False)
class KalmanNNFilter(StateFilter):
    """The encoder's mean and variance of z into a Kalman filter with learned linear dynamics.

    hidden   size of the latent state, at least that of z, its first part.

    Ref: Haarnoja et al. 2016.
    """

    hidden: int = 8
    chunk: int = 50
    loss: str = "likelihood"

    kind: ClassVar[str] = "kbr.kalman_nn_filter"
    network: ClassVar[type[SequenceModule]] = KalmanNNModule

    def _build(self, shape: tuple[int, ...], dz: int, seed: int) -> SequenceModule:
        if self.hidden < dz:
            raise KbrError(
                f"hidden must be at least {dz}, the size of z; got {self.hidden}. Set hidden."
            )
        return super()._build(shape, dz, seed)
