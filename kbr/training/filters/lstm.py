"""LSTM: the paper's neural baseline, behind the same methods as the kernel filters."""

from dataclasses import dataclass
from typing import ClassVar

from kbr.core.inputs import check_sizes
from kbr.training.filters.recurrent import RecurrentFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.lstm import LSTMModule


@dataclass(kw_only=True, eq=False, repr=False)
class LSTMFilter(RecurrentFilter):
    """An LSTM over the features of the last `window` frames.

    Ref: Xu et al. 2022, section 5.3.
    """

    noise: float | None = None
    window: int = 10

    kind: ClassVar[str] = "kbr.lstm_filter"
    noises: ClassVar[tuple[float, float] | None] = (0.5, 0.05)
    network: ClassVar[type[SequenceModule]] = LSTMModule

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(window=self.window)
