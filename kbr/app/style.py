"""How every picture looks: one colour, marker and dash for each model, everywhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

# Okabe and Ito's palette: distinct to colour-blind readers; markers and dashes survive greyscale.
STYLES: dict[str, dict[str, Any]] = {
    "original": {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    "iw_paper": {"color": "#56B4E9", "marker": "^", "linestyle": "-."},
    "iw": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "iw_true_ratio": {"color": "#CC79A7", "marker": "v", "linestyle": ":"},
    "iw_nn": {"color": "#009E73", "marker": "D", "linestyle": "-"},
    "lstm": {"color": "#D55E00", "marker": "P", "linestyle": "--"},
    "ekf": {"color": "#666666", "marker": "x", "linestyle": ":"},
    "ukf": {"color": "#999933", "marker": "+", "linestyle": ":"},
    "particle": {"color": "#000000", "marker": "*", "linestyle": "-."},
}
OTHER = {"color": "#882255", "marker": ".", "linestyle": "-"}
RC: Any = {
    "figure.dpi": 130,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "kbr",
}


def save(figure: Any, path: Path, kinds: Sequence[str]) -> list[Path]:
    """The figure at `path` in every one of `kinds`; it is closed."""
    written = []
    for kind in kinds:
        target = path.with_suffix(f".{kind}")
        figure.savefig(target, metadata={"Date": None} if kind == "svg" else None)
        written.append(target)
    plt.close(figure)
    return written
