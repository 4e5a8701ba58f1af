"""The picture of a sweep: error against the swept setting, for every model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from kbr.app.style import OTHER, RC, STYLES, save


def sweep_figure(path: Path, rows: Sequence[dict[str, str]], *, x: str, label: str) -> list[Path]:
    """Mean error against x for each model, one panel a data set; bands: two standard errors."""
    with plt.rc_context(RC):
        panels = list(dict.fromkeys(row["data"] for row in rows))
        figure, axes = plt.subplots(
            1, len(panels), figsize=(3.9 * len(panels) + 1.5, 3.4), squeeze=False
        )
        for axis, panel in zip(axes[0], panels, strict=True):
            _panel(axis, [row for row in rows if row["data"] == panel], x)
            axis.set_title(panel)
            axis.set_xlabel(label)
        axes[0][0].set_ylabel("MSE (sum over latent coordinates)")
        axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        figure.tight_layout()
        return save(figure, path, ("png", "svg"))


def _panel(axis: Any, rows: Sequence[dict[str, str]], x: str) -> None:
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        at = sorted({float(row[x]) for row in mine})
        errors = [np.array([float(r["mse"]) for r in mine if float(r[x]) == a]) for a in at]
        mean = np.array([e.mean() for e in errors])
        half = np.array([2 * e.std(ddof=1) / len(e) ** 0.5 if len(e) > 1 else 0.0 for e in errors])
        style = STYLES.get(model, OTHER)
        axis.plot(at, mean, label=model, markersize=5, **style)
        axis.fill_between(at, mean - half, mean + half, color=style["color"], alpha=0.15, lw=0)
    axis.set_xscale("log", base=2 if x == "dim" else 10)
    axis.set_yscale("log")
    ticks = sorted({float(row[x]) for row in rows})
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    if high / low < 20:  # powers of ten alone would leave the axis bare
        steps = np.arange(1, 10, 0.5) if high / low < 3 else (1, 1.5, 2, 3, 4, 5, 6, 8)
        marks = [m * 10.0**e for e in range(-4, 3) for m in steps]
        shown = [m for m in marks if low <= m <= high]
        axis.set_yticks(shown, [f"{m:g}" for m in shown])
