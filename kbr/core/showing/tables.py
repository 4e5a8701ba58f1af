"""Answers as a pandas DataFrame; pandas is loaded when the first is made."""

from typing import Any

import torch
from torch import Tensor

from kbr.core.errors import KbrError
from kbr.core.uncertainty.calibration import NEVER

TOLD = ("evidence", "since")  # columns beside those of the latents


def to_frame(
    names: tuple[str, ...],
    mean: Tensor,
    sd: Tensor,
    evidence: Tensor,
    since: Tensor | None,
    index: Any = None,
) -> Any:
    """A row a step: `<name>`, `<name>_sd`, evidence and since; several sequences: a MultiIndex."""
    try:
        import pandas
    except ImportError as error:
        raise KbrError("to_pandas needs pandas: pip install pandas.") from error
    *several, steps, dz = mean.shape
    columns: dict[str, Any] = {}
    for k, name in enumerate(names):
        columns[name] = _flat(mean[..., k])
    for k, name in enumerate(names):
        columns[f"{name}_sd"] = _flat(sd[..., k])
    if len({*columns, *TOLD}) < 2 * dz + len(TOLD):
        raise KbrError(
            f"the names of z ({', '.join(names)}) meet those of other columns of the table. "
            "Rename the column of z."
        )
    columns["evidence"] = _flat(evidence)
    if since is not None:
        columns["since"] = _since(since, pandas)
    if index is None:
        index = pandas.RangeIndex(steps, name="step")
        if several:
            parts = [range(size) for size in (*several, steps)]
            many = [f"sequence_{k + 1}" for k in range(len(several))]
            called = ["sequence"] if len(several) == 1 else many
            index = pandas.MultiIndex.from_product(parts, names=[*called, "step"])
    elif len(index) != mean.shape[:-1].numel():
        raise KbrError(
            f"index must hold one entry a row, here {mean.shape[:-1].numel()}; got {len(index)}."
        )
    return pandas.DataFrame(columns, index=index)


def _since(since: Tensor, pandas: Any) -> Any:
    """Steps since the last evidence, none before any; of smoothed steps, how far from it."""
    if since.is_floating_point():
        far = since >= NEVER / 2
        return _flat(torch.where(far, torch.nan, since))
    counts = pandas.Series(_flat(since.clamp_min(0)), dtype="Int64")
    return counts.mask(_flat(since) >= NEVER).array


def _flat(values: Tensor) -> Any:
    return values.detach().cpu().numpy().reshape(-1)
