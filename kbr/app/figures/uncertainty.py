"""Two pictures over all trials: is the filter as sure as it should be?"""

from pathlib import Path

import numpy as np

from kbr.app.figures.style import picture
from kbr.app.figures.view import coordinate_names
from kbr.app.models.kernel import Outcome
from kbr.core.uncertainty.regions import coverage, gaussian_pit

LEVELS = tuple(k / 20 for k in range(1, 20))
CALIBRATED, RAW = "#0072B2", "#E69F00"


def uncertainty_figures(folder: Path, outcome: Outcome) -> list[Path]:
    """coverage.png (promised against measured) and pit.png (flat if calibrated)."""
    if outcome.cov is None:
        return []
    _coverage(folder / "coverage.png", outcome)
    _pit(folder / "pit.png", outcome)
    return [folder / "coverage.png", folder / "pit.png"]


def _coverage(path: Path, outcome: Outcome) -> None:
    mean, truth = outcome.mean.double(), outcome.truth.double()
    label = "cov, of the model" if outcome.raw_cov is None else "cov, calibrated"
    curves = (
        ("raw_cov, of the weights", outcome.raw_cov, RAW, "--", "s"),
        (label, outcome.cov, CALIBRATED, "-", "o"),
    )
    with picture(path, figsize=(3.8, 3.6)) as (_, [[axis]]):
        axis.plot([0, 1], [0, 1], color="#000000", lw=1)
        for label, cov, colour, dash, marker in curves:
            if cov is not None:
                share = [float(coverage(mean, cov.double(), truth, level=p).mean()) for p in LEVELS]
                axis.plot(LEVELS, share, color=colour, ls=dash, marker=marker, ms=3, label=label)
        axis.set(xlabel="level of the region", ylabel="share of truths inside")
        axis.set(xlim=(0, 1), ylim=(0, 1))
        axis.legend(ncols=2, loc="lower right", bbox_to_anchor=(1.02, 1), columnspacing=1)


def _pit(path: Path, outcome: Outcome) -> None:
    assert outcome.cov is not None
    values = gaussian_pit(outcome.mean.double(), outcome.cov.double(), outcome.truth.double())
    dz = values.shape[-1]
    names = coordinate_names(outcome.labels, dz)
    with picture(path, 1, dz, figsize=(max(3.8, 2.6 * dz), 2.4), sharey=True) as (_, axes):
        for k, axis in enumerate(axes[0]):
            inside = values[..., k].flatten().clamp(0, 1).numpy()
            axis.hist(inside, np.linspace(0, 1, 11), density=True, color=CALIBRATED, alpha=0.6)
            axis.axhline(1, color="#000000", lw=1)
            axis.set_xlabel(f"PIT of {names[k]}")
        axes[0, 0].set_ylabel("density")
