"""The pictures of a sweep: error against what is varied, and models against each other by seed."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator

from kbr.app.figures.style import handles_of, picture, styles_of
from kbr.app.report.comparison import QUICK, Comparison
from kbr.app.report.summary import standard_error
from kbr.core.showing.plotting import no_math

ERROR = "MSE (sum over latent coordinates)"
MOST_ACROSS = 3  # panels side by side
WIDE = 4  # times that errors in units differ from which on their axis is logarithmic
NAME = 100  # letters of a name in a picture


def sweep_figure(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Mean error against x for each model, one panel a data set; bands: two standard errors."""
    across = min(len(comparisons), MOST_ACROSS)
    down = math.ceil(len(comparisons) / across)
    size, kinds = (3.9 * across + 1.5, 3.4 * down), ("png", "svg")
    with picture(path, down, across, kinds=kinds, figsize=size) as (figure, axes):
        for axis in axes.flat[len(comparisons) :]:
            axis.set_visible(False)
        for axis, comparison in zip(axes.flat, comparisons, strict=False):
            error_panel(axis, comparison)
            axis.set_title(folded(comparison.data))
        for row in axes if comparisons[0].x is not None else ():
            row[0].set_ylabel(ERROR)
        handles, names = handles_of(axes)
        if names:
            axes[0, -1].legend(handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5))
        if any(comparison.is_quick for comparison in comparisons):
            figure.suptitle(QUICK, fontsize="small")


def error_panel(axis: Any, comparison: Comparison) -> None:
    """Curves over x, or a line for each model where nothing numeric is varied."""
    draw = _model_lines if comparison.x is None else _curves
    draw(axis, comparison)


def paired_panel(axis: Any, comparison: Comparison, model: str) -> None:
    """A point for each seed and x: error of the reference against error of `model`."""
    assert comparison.reference is not None
    ours, theirs = (comparison.errors(name) for name in (model, comparison.reference))
    common = sorted(ours.keys() & theirs.keys())
    x, y = (np.array([errors[key] for key in common]) for errors in (theirs, ours))
    style = styles_of(comparison.models)[model]
    look = {"color": style["color"], "marker": style["marker"]}
    axis.scatter(x, y, s=14, alpha=0.6, linewidths=0.6, **look)
    values = np.concatenate([x, y]) if common else np.array([0.0, 1.0])
    low, high = values.min(), values.max()
    if low > 0 and high / low > 5:
        axis.set(xscale="log", yscale="log")
        margin = (high / low) ** 0.05
        ends = [low / margin, high * margin]
    else:
        margin = 0.05 * (high - low) or 0.05 * high or 1.0
        ends = [low - margin, high + margin]
        axis.locator_params(axis="x", nbins=4)
        axis.locator_params(axis="y", nbins=5)
    axis.plot(ends, ends, color="#000000", lw=0.8)
    axis.set(xlim=ends, ylim=ends, aspect="equal")
    axis.set_xlabel(folded(f"MSE of {comparison.reference}"))
    axis.set_ylabel(folded(f"MSE of {model}"))


def folded(name: str) -> str:
    """Long names of variants on several lines; of very long ones both ends."""
    if len(name) > NAME:
        name = f"{name[: NAME // 2]}…{name[-NAME // 2 :]}"
    lines = "\n".join(textwrap.wrap(no_math(name), 26))
    return f" {lines}" if lines.startswith("_") else lines  # Matplotlib hides such names


def _curves(axis: Any, comparison: Comparison) -> None:
    for model, style in styles_of(comparison.models).items():
        mine = [one for one in comparison.summary if one.model == model]
        at, mean, stderr = np.array([(one.at, one.mean, one.stderr) for one in mine], dtype=float).T
        axis.plot(at, mean, label=folded(model), **style)
        lower = np.maximum(mean - 2 * stderr, mean / 10)  # log axes have no zero
        axis.fill_between(at, lower, mean + 2 * stderr, color=style["color"], alpha=0.15, lw=0)
    ticks = [float(at) for at in comparison.lowest]
    if ticks[0] > 0:
        axis.set_xscale("log", base=2 if comparison.x == "dim" else 10)
    if all(one.mean > 0 for one in comparison.summary):  # an error of zero has no place there
        axis.set_yscale("log")
        _more_marks(axis.yaxis, *axis.get_ylim())
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    axis.set_xlabel(folded(comparison.label))


def _model_lines(axis: Any, comparison: Comparison) -> None:
    """Every trial as a faint point, the mean with two standard errors over it."""
    for place, (model, style) in enumerate(styles_of(comparison.models).items()):
        errors = np.array(comparison.shown(model))
        axis.scatter(errors, np.full(len(errors), place), s=12, color=style["color"], alpha=0.35)
        look = {"color": style["color"], "marker": style["marker"], "capsize": 3}
        axis.errorbar(errors.mean(), place, xerr=2 * standard_error(errors), **look)
    axis.set_yticks(range(len(comparison.models)), [folded(name) for name in comparison.models])
    axis.set_ylim(len(comparison.models) - 0.5, -0.5)
    axis.set_xlabel(comparison.measure or ERROR)
    shown = [error for model in comparison.models for error in comparison.shown(model)]
    if comparison.measure and 0 < WIDE * min(shown) < max(shown):
        axis.set_xscale("log")
        axis.set_xlim(min(shown) / 1.3, max(shown) * 1.3)
        _more_marks(axis.xaxis, *axis.get_xlim())
        axis.minorticks_off()


def _more_marks(axis: Any, low: float, high: float) -> None:
    """Powers of ten alone would leave a short logarithmic axis bare."""
    if high / low < 20:
        marks = np.arange(1, 10, 0.5).tolist() if high / low < 3 else [1, 1.5, 2, 3, 4, 5, 6, 8]
        axis.set_major_locator(LogLocator(subs=marks))
        axis.set_major_formatter("{x:g}")
