"""Signatures of `kbr.core` are checked while the tests run, once for each kind of arguments.

jaxtyping and beartype look at types and shapes, never at the numbers: a call whose arguments and
answer are of the same types and shapes as those of a call that passed would pass again. Looking
again at each of a filter's thousands of like steps took most of the suite's time.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
import numpy as np
import torch

_whole = jaxtyping.jaxtyped
_passed: dict[CodeType, dict[Any, set[Any]]] = {}  # kinds of arguments, and of their answers


def install() -> None:
    """Before `kbr.core` is imported."""
    jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = _jaxtyped
    jaxtyping.install_import_hook("kbr.core", "beartype.beartype")


def _jaxtyped(fn: Any = None, *, typechecker: Any) -> Any:
    """jaxtyping's decorator; a function that it is put on checks each kind of call once."""
    if fn is None:
        return partial(_jaxtyped, typechecker=typechecker)
    if not isinstance(fn, FunctionType):  # its functions come here one by one
        return _whole(fn, typechecker=typechecker)
    passed = _passed.setdefault(fn.__code__, {})
    checked: Callable[..., Any] | None = None
    answered: list[Any] = []

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if torch.compiler.is_compiling():  # sizes may be symbols, which are no keys
            return look(*args, **kwargs)
        given = _kind((args, kwargs))
        if given not in passed:
            answer = look(*args, **kwargs)
            passed[given] = {_kind(answer)}
            return answer
        answer = fn(*args, **kwargs)
        if (kind := _kind(answer)) not in passed[given]:
            answered.append(answer)
            try:
                look(*args, **kwargs)
            finally:
                answered.clear()
            passed[given].add(kind)
        return answer

    def look(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if checked is None:
            body = FunctionType(_body.__code__, fn.__globals__, closure=_body.__closure__)
            checked = _whole(wraps(fn)(body), typechecker=typechecker)
        return checked(*args, **kwargs)

    def _body(*args: Any, **kwargs: Any) -> Any:
        return answered[0] if answered else fn(*args, **kwargs)

    return call


def _kind(value: Any) -> Any:
    """All of a value that a check of types and shapes can see."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value), value.dtype, value.shape
    if isinstance(value, tuple | list):
        return type(value), *map(_kind, value)
    if isinstance(value, dict):
        return type(value), *((key, _kind(each)) for key, each in value.items())
    return value if isinstance(value, str) else type(value)
