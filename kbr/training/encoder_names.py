"""Encoders in checkpoints: a class and its arguments in plain words, and back."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from kbr.core.errors import KbrError
from kbr.core.io import checkpoint

Encoder = Callable[..., nn.Module]


def describe_encoder(encoder: Encoder) -> dict[str, Any]:
    function = encoder.func if isinstance(encoder, partial) else encoder
    arguments = encoder.keywords if isinstance(encoder, partial) else {}
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"target": f"{function.__module__}.{name}", "arguments": checkpoint.plain(arguments)}


def known_encoder(described: dict[str, Any]) -> Encoder:
    """The encoder a checkpoint names, if it is kbr's own: a file does not choose what to run."""
    module, _, name = described["target"].rpartition(".")
    found = None
    if module == "kbr.training.encoders":
        found = getattr(import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise KbrError(
            f"the checkpoint's encoder {described['target']} is not one of kbr's own. Pass it: "
            "load(path, encoder=functools.partial(YourEncoder, ...))."
        )
    return partial(found, **described["arguments"])
