"""Pictures of a run and of a sweep; one colour and marker for each model everywhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from kbr.app.methods import Outcome

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
SHOWN_STEPS = 100


def run_figures(folder: Path, outcome: Outcome) -> list[Path]:
    """The first trial: answers against the truth, with two standard deviations where known."""
    folder.mkdir(parents=True, exist_ok=True)
    mean, truth = outcome.mean[0].double().numpy(), outcome.truth[0].double().numpy()
    if outcome.evidence is None or outcome.cov is None:
        return [_scatter(folder / "posterior_mean.png", mean, truth)]
    spread = outcome.cov[0].double().diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().numpy()
    return [_track(folder / "trajectory.png", mean, truth, spread)]


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
        return _save(figure, path, ("png", "svg"))


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


def _track(path: Path, mean: np.ndarray, truth: np.ndarray, spread: np.ndarray) -> Path:
    with plt.rc_context(RC):
        steps = min(SHOWN_STEPS, len(mean))
        coordinates = mean.shape[-1]
        figure, axes = plt.subplots(
            coordinates, 1, figsize=(7, 1.7 * coordinates + 0.6), sharex=True, squeeze=False
        )
        time = np.arange(steps)
        for k, axis in enumerate(axes[:, 0]):
            axis.plot(time, truth[:steps, k], color="#000000", lw=1, label="truth")
            axis.plot(time, mean[:steps, k], color="#0072B2", lw=1.2, label="filter mean")
            centre, half = mean[:steps, k], 2 * spread[:steps, k]
            axis.fill_between(
                time, centre - half, centre + half, color="#0072B2", alpha=0.2, lw=0, label="± 2 sd"
            )
            axis.set_ylabel(f"$z_{k + 1}$")
        axes[-1, 0].set_xlabel("step of the test sequence")
        axes[0, 0].legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
        figure.tight_layout()
        return _save(figure, path.with_suffix(""), ("png",))[0]


def _scatter(path: Path, mean: np.ndarray, truth: np.ndarray) -> Path:
    with plt.rc_context(RC):
        figure, axis = plt.subplots(figsize=(3.8, 3.6))
        axis.scatter(truth.ravel(), mean.ravel(), s=6, color="#0072B2", alpha=0.4, lw=0)
        ends = [truth.min(), truth.max()]
        axis.plot(ends, ends, color="#000000", lw=1)
        axis.set_xlabel("exact posterior mean")
        axis.set_ylabel("estimate")
        figure.tight_layout()
        return _save(figure, path.with_suffix(""), ("png",))[0]


def _save(figure: Any, path: Path, kinds: Sequence[str]) -> list[Path]:
    written = []
    for kind in kinds:
        target = path.with_suffix(f".{kind}")
        figure.savefig(target, metadata={"Date": None} if kind == "svg" else None)
        written.append(target)
    plt.close(figure)
    return written
