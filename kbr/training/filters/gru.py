"""GRU: a recurrent baseline that carries its state through the whole sequence."""

from dataclasses import dataclass
from typing import ClassVar

from kbr.core.inputs import check_sizes
from kbr.training.filters.recurrent import RecurrentFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.gru import GRUModule


@dataclass(kw_only=True, eq=False, repr=False)
class GRUFilter(RecurrentFilter):
    """A gated recurrent unit over the features of all frames so far.

    chunk   frames of the pieces that it is trained on, which are cut elsewhere in every epoch.

    Ref: Cho et al. 2014.
    """

    noise: float = 0.1  # less than the LSTM's is better on vectors, and no worse on images
    chunk: int = 100

    kind: ClassVar[str] = "kbr.gru_filter"
    network: ClassVar[type[SequenceModule]] = GRUModule

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(chunk=self.chunk)
