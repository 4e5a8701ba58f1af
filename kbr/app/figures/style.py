"""How every picture looks: one colour, marker and dash for each model, everywhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from kbr.core.io.checkpoint import write_atomically
from kbr.core.showing.plotting import STYLE as STYLE

# Okabe and Ito's palette: distinct to colour-blind readers; markers and dashes survive greyscale.
STYLES: dict[str, dict[str, Any]] = {
    "original": {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    "iw_paper": {"color": "#56B4E9", "marker": "^", "linestyle": "-."},
    "iw": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "iw_true_ratio": {"color": "#CC79A7", "marker": "v", "linestyle": ":"},
    "iw_nn": {"color": "#009E73", "marker": "D", "linestyle": "-"},
    "iw_paired": {"color": "#117733", "marker": "D", "linestyle": "-."},
    "moving": {"color": "#DDCC77", "marker": "o", "linestyle": "-"},
    "moving_readout": {"color": "#DDCC77", "marker": "p", "linestyle": "-"},
    "iw_readout": {"color": "#6699CC", "marker": "p", "linestyle": "-"},
    "lstm": {"color": "#D55E00", "marker": "P", "linestyle": "--"},
    "iw_refined": {"color": "#332288", "marker": "d", "linestyle": "--"},
    "knn": {"color": "#44AA99", "marker": "h", "linestyle": "--"},
    "kernel_ridge": {"color": "#AA4499", "marker": "<", "linestyle": "-."},
    "kalman_regression": {"color": "#117733", "marker": ">", "linestyle": ":"},
    "gru": {"color": "#A6761D", "marker": "X", "linestyle": "-."},
    "lru": {"color": "#CC6677", "marker": "8", "linestyle": "-."},
    "rkn": {"color": "#88CCEE", "marker": "H", "linestyle": "--"},
    "transformer": {"color": "#661100", "marker": "1", "linestyle": ":"},
    "kalman_nn": {"color": "#999999", "marker": "2", "linestyle": "--"},
    "ekf": {"color": "#666666", "marker": "x", "linestyle": ":"},
    "ukf": {"color": "#999933", "marker": "+", "linestyle": ":"},
    "particle": {"color": "#000000", "marker": "*", "linestyle": "-."},
}
# For models that have no colour of their own: variants of a sweep, a user's models.
OTHERS: tuple[dict[str, Any], ...] = (
    {"color": "#882255", "marker": ".", "linestyle": "-"},
    {"color": "#44AA99", "marker": "h", "linestyle": "--"},
    {"color": "#AA4499", "marker": "<", "linestyle": "-."},
    {"color": "#117733", "marker": ">", "linestyle": ":"},
    {"color": "#6699CC", "marker": "p", "linestyle": "-"},
    {"color": "#332288", "marker": "d", "linestyle": "--"},
)


def styles_of(models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each model's own style; those without one take turns through the others."""
    unknown = [name for name in models if name not in STYLES]
    turns = {name: OTHERS[i % len(OTHERS)] for i, name in enumerate(unknown)}
    return {name: STYLES.get(name) or turns[name] for name in models}


@contextmanager
def picture(
    path: Path, rows: int = 1, columns: int = 1, *, kinds: Sequence[str] = ("png",), **settings: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes [rows, columns], saved at `path`; `settings` are of plt.subplots."""
    with plt.style.context(STYLE):
        settings = {"layout": "constrained", **settings}
        figure, axes = plt.subplots(rows, columns, squeeze=False, **settings)
        yield figure, axes
        figure.align_ylabels()
        save(figure, path, kinds)


def handles_of(axes: Any) -> tuple[list[Any], list[str]]:
    """For one legend of several axes: what is drawn under each label, once."""
    named = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    return list(named.values()), list(named)


def save(figure: Any, path: Path, kinds: Sequence[str]) -> list[Path]:
    """The figure at `path` in every one of `kinds`; it is closed."""
    targets = [path.with_suffix(f".{kind}") for kind in kinds]
    for kind, target in zip(kinds, targets, strict=True):
        metadata = {"Date": None} if kind == "svg" else None
        write_atomically(target, partial(figure.savefig, format=kind, metadata=metadata))
    plt.close(figure)
    return targets
