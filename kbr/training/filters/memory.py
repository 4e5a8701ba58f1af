"""Filters of networks that carry a state: what they share beside the recurrence."""

from abc import ABC
from dataclasses import dataclass

from kbr.core.inputs import check_sizes
from kbr.training.filters.recurrent import RecurrentFilter


@dataclass(kw_only=True, eq=False, repr=False)
class StateFilter(RecurrentFilter, ABC):
    """A state over the features of all frames so far.

    chunk   frames of the pieces that it is trained on, which are cut elsewhere in every epoch.
    """

    noise: float = 0.1  # less than the LSTM's is better on vectors, and no worse on images
    chunk: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(chunk=self.chunk)

    @property
    def piece_steps(self) -> int:
        return self.chunk
