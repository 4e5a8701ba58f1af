"""The pictures of a sweep: error against what is varied, and models against each other by seed."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from kbr.app.figures.style import STYLE, save, styles_of
from kbr.app.report.sections import QUICK, Row, Section
from kbr.app.report.summary import standard_error
from kbr.app.text.plain import no_math

ERROR = "MSE (sum over latent coordinates)"
NAME = 100  # letters of a name in a picture


def sweep_figure(path: Path, sections: Sequence[Section]) -> list[Path]:
    """Mean error against x for each model, one panel a data set; bands: two standard errors."""
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(
            1, len(sections), figsize=(3.9 * len(sections) + 1.5, 3.4), squeeze=False
        )
        for axis, section in zip(axes[0], sections, strict=True):
            error_panel(axis, section)
            axis.set_title(folded(section.data))
        if sections[0].x is not None:
            axes[0][0].set_ylabel(ERROR)
        named = {
            label: handle
            for axis in axes[0]
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if named:
            place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
            axes[0][-1].legend(named.values(), named.keys(), **place)
        if any(section.is_quick for section in sections):
            figure.suptitle(QUICK, fontsize="small")
        figure.tight_layout()
        return save(figure, path, ("png", "svg"))


def error_panel(axis: Any, section: Section) -> None:
    """Curves over x, or a line for each model where nothing numeric is varied."""
    if section.x is None:
        _model_lines(axis, section)
    else:
        _curves(axis, section, section.x)
        axis.set_xlabel(folded(section.label))


def paired_panel(axis: Any, section: Section, model: str) -> None:
    """A point for each seed and x: error of the reference against error of `model`."""
    assert section.reference is not None
    ours, theirs = (_by_trial(section, name) for name in (model, section.reference))
    common = sorted(ours.keys() & theirs.keys())
    x, y = (np.array([errors[key] for key in common]) for errors in (theirs, ours))
    style = styles_of(section.models)[model]
    axis.scatter(
        x, y, s=14, color=style["color"], marker=style["marker"], alpha=0.6, linewidths=0.6
    )
    values = np.concatenate([x, y]) if common else np.array([0.0, 1.0])
    low, high = values.min(), values.max()
    if low > 0 and high / low > 5:
        axis.set_xscale("log")
        axis.set_yscale("log")
        margin = (high / low) ** 0.05
        ends = [low / margin, high * margin]
    else:
        margin = 0.05 * (high - low) or 0.05 * high or 1.0
        ends = [low - margin, high + margin]
        axis.locator_params(axis="x", nbins=4)
        axis.locator_params(axis="y", nbins=5)
    axis.plot(ends, ends, color="#000000", lw=0.8)
    axis.set(xlim=ends, ylim=ends, aspect="equal")
    axis.set_xlabel(folded(f"MSE of {section.reference}"))
    axis.set_ylabel(folded(f"MSE of {model}"))


def paired_models(section: Section) -> list[str]:
    """The models that have a seed and x in common with the reference."""
    assert section.reference is not None
    theirs = _by_trial(section, section.reference)
    others = [name for name in section.models if name != section.reference]
    return [name for name in others if _by_trial(section, name).keys() & theirs.keys()]


def folded(name: str) -> str:
    """Long names of variants on several lines; of very long ones both ends."""
    if len(name) > NAME:
        name = f"{name[: NAME // 2]}…{name[-NAME // 2 :]}"
    lines = "\n".join(textwrap.wrap(no_math(name), 26))
    return f" {lines}" if lines.startswith("_") else lines  # Matplotlib hides such names


def _by_trial(section: Section, model: str) -> dict[tuple[str, int], float]:
    return {
        (row[section.x] if section.x else "", int(row["seed"])): float(row["mse"])
        for row in section.rows
        if row["model"] == model
    }


def _curves(axis: Any, section: Section, x: str) -> None:
    styles = styles_of(section.models)
    has_log = True
    for model in section.models:
        at, errors = _errors(section.rows, model, x)
        mean = np.array([e.mean() for e in errors])
        half = np.array([2 * standard_error(e) for e in errors])
        style, has_log = styles[model], has_log and bool((mean > 0).all())
        axis.plot(at, mean, label=folded(model), **style)
        lower = np.maximum(mean - half, mean / 10)  # a log axis has no place for less than zero
        axis.fill_between(at, lower, mean + half, color=style["color"], alpha=0.15, lw=0)
    ticks = sorted({float(row[x]) for row in section.rows})
    if ticks[0] > 0:
        axis.set_xscale("log", base=2 if x == "dim" else 10)
    if has_log:  # an error of zero has no place there
        axis.set_yscale("log")
        _label_axis(axis.yaxis, *axis.get_ylim())
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()


def _label_axis(axis: Any, low: float, high: float) -> None:
    """Powers of ten alone would leave a short log axis bare."""
    if high / low < 20:
        steps = np.arange(1, 10, 0.5) if high / low < 3 else (1, 1.5, 2, 3, 4, 5, 6, 8)
        marks = [m * 10.0**e for e in range(-9, 9) for m in steps]
        shown = [m for m in marks if low <= m <= high]
        axis.set_ticks(shown, [f"{m:g}" for m in shown])


def _model_lines(axis: Any, section: Section) -> None:
    """Every trial as a faint point, the mean with two standard errors over it."""
    styles = styles_of(section.models)
    for place, model in enumerate(section.models):
        errors = np.array([float(r["mse"]) for r in section.rows if r["model"] == model])
        style = styles[model]
        axis.scatter(errors, np.full(len(errors), place), s=12, color=style["color"], alpha=0.35)
        half = 2 * standard_error(errors)
        axis.errorbar(
            errors.mean(), place, xerr=half, color=style["color"], marker=style["marker"], capsize=3
        )
    axis.set_yticks(range(len(section.models)), [folded(name) for name in section.models])
    axis.set_ylim(len(section.models) - 0.5, -0.5)
    axis.set_xlabel(ERROR)


def _errors(rows: Sequence[Row], model: str, x: str) -> tuple[list[float], list[np.ndarray]]:
    mine = [row for row in rows if row["model"] == model]
    at = sorted({float(row[x]) for row in mine})
    return at, [np.array([float(r["mse"]) for r in mine if float(r[x]) == a]) for a in at]
