"""The hyper-parameters that a fitted filter uses."""

from dataclasses import dataclass, fields

from jaxtyping import Float
from torch import Tensor

from kbr.core.filters.kernel.search import Edge


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What is in use for each data set, its validation error, and which edges it lies on."""

    scale_x: Float[Tensor, "*b"]
    scale_z: Float[Tensor, "*b"]
    lam: Float[Tensor, "*b"]
    eta: Float[Tensor, "*b"]
    lam_transition: Float[Tensor, "*b"]
    val_mse: Float[Tensor, "*b"]
    edges: tuple[Edge, ...] = ()


CHOICES = tuple(item.name for item in fields(Choice) if item.name != "edges")
