"""GRU: a recurrent baseline that carries its state through the whole sequence."""

from dataclasses import dataclass
from typing import ClassVar

from kbr.training.filters.memory import StateFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.gru import GRUModule


@dataclass(kw_only=True, eq=False, repr=False)
class GRUFilter(StateFilter):
    """A gated recurrent unit over the features of all frames so far.

    Ref: Cho et al. 2014.
    """

    kind: ClassVar[str] = "kbr.gru_filter"
    network: ClassVar[type[SequenceModule]] = GRUModule
