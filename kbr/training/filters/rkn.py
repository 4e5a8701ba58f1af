"""RKN: the recurrent Kalman network, which updates a factorised belief elementwise."""

from dataclasses import dataclass
from typing import ClassVar

from kbr.core.errors import KbrError
from kbr.core.inputs import check_sizes
from kbr.training.filters.memory import StateFilter
from kbr.training.modules.base import SequenceModule
from kbr.training.modules.rkn import RKNModule


@dataclass(kw_only=True, eq=False, repr=False)
class RKNFilter(StateFilter):
    """A Kalman filter in a learned latent space, with locally linear dynamics.

    hidden   latent numbers, an even number: a frame shows half of them;
    basis    matrices of which the dynamics are a mixture at each step;
    band     diagonals on each side of the main one that the blocks of these have; from
             hidden / 2 - 1 on, all.

    Ref: Becker et al. 2019.
    """

    hidden: int = 32
    basis: int = 8
    band: int = 3
    chunk: int = 50
    loss: str = "likelihood"

    kind: ClassVar[str] = "kbr.rkn_filter"
    network: ClassVar[type[SequenceModule]] = RKNModule

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(basis=self.basis)
        if not self.band >= 0:
            raise KbrError(f"band must be at least 0; got {self.band}. Set band.")
        if self.hidden % 2:
            raise KbrError(f"hidden must be even, two halves; got {self.hidden}. Set hidden.")
