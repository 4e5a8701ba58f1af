"""LRU: a state-space baseline, linear in its state and trained in parallel over time."""

from dataclasses import dataclass
from typing import ClassVar

from kbr.core.inputs import check_sizes
from kbr.training.filters.memory import StateFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.lru import LRUModule


@dataclass(kw_only=True, eq=False, repr=False)
class LRUFilter(StateFilter):
    """Layers of linear recurrent units over the features of all frames so far.

    hidden   width of the layers, and how many complex states each has.

    Ref: Orvieto et al. 2023.
    """

    layers: int = 2

    kind: ClassVar[str] = "kbr.lru_filter"
    network: ClassVar[type[SequenceModule]] = LRUModule

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(layers=self.layers)
