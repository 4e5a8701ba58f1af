"""Tables whose columns are found by name: mappings, DataFrames, and single rows of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from kbr.core.errors import KbrError

BLANK = ("", "<NA>", "NaT")  # text of cells that hold nothing, beside None


def is_table(value: Any) -> bool:
    """Whether values are reached by the names of columns: a mapping, a DataFrame, a row of one."""
    if isinstance(value, Tensor):  # asked at every step of a stream: the usual answer first
        return False
    if isinstance(value, Mapping) or hasattr(value, "columns"):
        return True
    named = hasattr(value, "to_numpy") and hasattr(value, "keys")
    return named and all(isinstance(key, str) for key in value.keys())  # noqa: SIM118


def is_several(value: Any) -> bool:
    """A list of arrays or tables is several sequences; nested lists of numbers are one array."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return isinstance(value[0], Tensor | np.ndarray) or is_table(value[0])


def names_of(table: Any) -> list[Any]:
    return list(table.columns if hasattr(table, "columns") else table.keys())


def numbered(letter: str, count: int) -> tuple[str, ...]:
    """Names of columns that have none: x_1, x_2, ..."""
    return tuple(f"{letter}_{k + 1}" for k in range(count))


def numbers(column: Any, name: str) -> np.ndarray:
    """A column, or one cell, as float64; None, empty text and masked entries are missing."""
    if isinstance(column, np.ma.MaskedArray):
        column = np.ma.filled(column.astype(np.float64), np.nan)
    array = np.asarray(column)
    try:
        if array.dtype.kind in "OUS":
            flat = array.reshape(-1)
            cells = [np.nan if is_blank(cell) else float(cell) for cell in flat]
            return np.array(cells, dtype=np.float64).reshape(array.shape)
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise KbrError(f"column '{name}' must hold numbers; {error}.") from error


def is_blank(cell: Any) -> bool:
    return cell is None or str(cell).strip() in BLANK
