"""Rules, kernels, feature maps and ratios as plain values by name, and back.

A description can only name classes that kbr knows (and kernels and rules derived from kbr's own):
a file never chooses what is imported or run.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.features import Identity, Nystroem, PivotedCholesky, RandomFourier
from kbr.core.kernels import Kernel
from kbr.core.mixtures import Mixture
from kbr.core.per_coordinate import PerCoordinate
from kbr.core.ratios import KuLSIF
from kbr.core.rules import Rule


def describe(value: object) -> Any:
    """A setting as plain containers, numbers, strings and tensors."""
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value.detach().clone() if isinstance(value, Tensor) else value
    if is_dataclass(value) and _known().get(type(value).__name__) is type(value):
        settings = {item.name: describe(getattr(value, item.name)) for item in fields(value)}
        return {"type": type(value).__name__, "settings": settings}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    raise KbrError(
        f"{type(value).__name__} cannot be saved: a file holds settings, not code. Saved by name "
        f"are {', '.join(sorted(_known()))}, and kernels and rules derived from kbr's."
    )


def build(described: Any) -> Any:
    """The inverse of `describe`; unknown names and settings are refused."""
    if isinstance(described, list):
        return tuple(build(item) for item in described)
    if not isinstance(described, dict):
        return described
    name, settings = described.get("type"), described.get("settings")
    cls = _known().get(name) if isinstance(name, str) else None
    if cls is None or not isinstance(settings, dict):
        raise KbrError(
            f"the file names {name!r}, which this kbr does not know. Import the module that "
            "defines it before loading, or use the version of kbr that wrote the file."
        )
    try:
        return cls(**{key: build(item) for key, item in settings.items()})
    except KbrError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise KbrError(f"the file's settings of {name} do not fit this kbr: {error}") from error


def _known() -> dict[str, type[Any]]:
    classes = [Identity, Mixture, Nystroem, PerCoordinate, PivotedCholesky, RandomFourier, KuLSIF]
    return {cls.__name__: cls for cls in (*classes, *_below(Kernel), *_below(Rule))}


def _below(base: type[Any]) -> list[type[Any]]:
    children = base.__subclasses__()
    return [cls for child in children for cls in (child, *_below(child))]
