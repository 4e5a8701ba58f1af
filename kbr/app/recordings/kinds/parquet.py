"""Parquet as named columns (pyarrow)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kbr.app.recordings.columns import Columns
from kbr.app.recordings.kinds.table import chosen
from kbr.core.errors import KbrError
from kbr.core.io.memory import check_memory

if TYPE_CHECKING:
    from kbr.app.recordings.read import Source


def read_parquet(source: "Source", path: Path) -> Columns:
    """The columns of a table; which of them are x and z, the user has to say."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise KbrError(f'{path} needs pyarrow: pip install "kbr[parquet]"') from None
    damage = (ArrowException, OSError, ValueError, OverflowError, MemoryError)

    def failed(error: BaseException) -> KbrError:
        said = " ".join(str(error).split())[:120]
        return KbrError(f"{path} is damaged or no parquet file: {said}.")

    try:
        file = parquet.ParquetFile(path)
        names, rows = tuple(file.schema_arrow.names), int(file.metadata.num_rows)
    except damage as error:
        raise failed(error) from error
    if rows < 1:
        raise KbrError(f"{path} has no rows. Take it out of data.path.")
    check_memory(16.0 * rows * len(names), what=str(path), advice="Write fewer columns.")

    def column(name: str) -> Any:
        try:
            return _cells(file.read(columns=[name]).column(name))
        except damage as error:
            if isinstance(error, KbrError):
                raise
            raise failed(error) from error

    renamed = {source.renamed(name): name for name in names}
    table = Columns(
        kind="parquet",
        path=path,
        names=tuple(map(source.renamed, names)),
        get=lambda name: column(renamed[name]),
        x=tuple(source.x or source.parts or ()),
        z=tuple(source.z or ()),
        lines=range(1, rows + 1),
    )
    return chosen(source, table)


def _cells(column: Any) -> Any:
    """Text cells, or an array [T] or [T, k] in which what is missing is NaN."""
    from pyarrow import float64, types, uint8

    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return ["" if cell is None else cell.strip() for cell in column.to_pylist()]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [str(cell or "") for cell in column.to_pylist()]
    if types.is_decimal(kind) or types.is_null(kind):
        column = column.cast(float64())
    elif types.is_boolean(kind):
        column = column.cast(uint8())
    return np.asarray(column.to_numpy())
