"""Transformer: causal attention over the last few frames."""

from dataclasses import dataclass
from typing import ClassVar

from kbr.core.errors import KbrError
from kbr.core.inputs import check_sizes
from kbr.training.filters.recurrent import RecurrentFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.transformer import TransformerModule


@dataclass(kw_only=True, eq=False, repr=False)
class TransformerFilter(RecurrentFilter):
    """Layers of attention, each over the last `window` steps of the one below.

    hidden   width of the layers, a multiple of `heads`.

    Ref: Vaswani et al. 2017.
    """

    noise: float = 0.1
    window: int = 10
    layers: int = 2
    heads: int = 4

    kind: ClassVar[str] = "kbr.transformer_filter"
    network: ClassVar[type[SequenceModule]] = TransformerModule

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(window=self.window, layers=self.layers, heads=self.heads)
        if self.hidden % self.heads:
            raise KbrError(
                f"hidden must be a multiple of heads = {self.heads}; got {self.hidden}. Set hidden "
                "or heads."
            )
