"""Is the filter as sure as it should be: scores for metrics.json, and two pictures."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from torch import Tensor

from kbr.app.figures.style import STYLE, save
from kbr.app.figures.view import coordinate_names
from kbr.app.models.kernel import Outcome
from kbr.core.uncertainty.regions import (
    coverage,
    gaussian_crps,
    gaussian_energy_score,
    gaussian_pit,
)

LEVELS = tuple(k / 20 for k in range(1, 20))
CALIBRATED, RAW = "#0072B2", "#E69F00"


def trial_coverage(outcome: Outcome) -> dict[str, Tensor]:
    """Share of truths in their 90 % regions, one number a trial: calibrated, and of the weights."""
    if outcome.evidence is None or outcome.cov is None:
        return {}
    mean, truth = outcome.mean.double(), outcome.truth.double()
    raw = outcome.cov if outcome.raw_cov is None else outcome.raw_cov
    covs = {"coverage_90": outcome.cov, "coverage_90_raw": raw}
    return {n: coverage(mean, cov.double(), truth, level=0.9) for n, cov in covs.items()}


def uncertainty_metrics(outcome: Outcome) -> dict[str, float]:
    """Coverage of 90 % regions, CRPS and energy score of the calibrated beliefs, averaged."""
    shares = trial_coverage(outcome)
    if outcome.cov is None or not shares:
        return {}
    mean, cov, truth = (t.double() for t in (outcome.mean, outcome.cov, outcome.truth))
    return {
        **{f"test/{name}": float(share.mean()) for name, share in shares.items()},
        "test/crps": float(gaussian_crps(mean, cov, truth).mean()),
        "test/energy_score": float(gaussian_energy_score(mean, cov, truth).mean()),
    }


def uncertainty_figures(folder: Path, outcome: Outcome) -> list[Path]:
    """coverage.png (promised against found) and pit.png (flat if calibrated), over all trials."""
    if outcome.cov is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [_coverage(folder / "coverage", outcome), _pit(folder / "pit", outcome)]


def _coverage(path: Path, outcome: Outcome) -> Path:
    mean, truth = outcome.mean.double(), outcome.truth.double()
    label = "cov, of the model" if outcome.raw_cov is None else "cov, calibrated"
    curves = [(label, outcome.cov, CALIBRATED, "-", "o")]
    if outcome.raw_cov is not None:
        curves.insert(0, ("raw_cov, of the weights", outcome.raw_cov, RAW, "--", "s"))
    with plt.style.context(STYLE):
        figure, axis = plt.subplots(figsize=(3.8, 3.6))
        axis.plot([0, 1], [0, 1], color="#000000", lw=1)
        for label, cov, colour, dash, marker in curves:
            assert cov is not None
            found = [float(coverage(mean, cov.double(), truth, level=p).mean()) for p in LEVELS]
            axis.plot(LEVELS, found, color=colour, ls=dash, marker=marker, ms=3, label=label)
        axis.set(
            xlabel="level of the region", ylabel="share of truths inside", xlim=(0, 1), ylim=(0, 1)
        )
        axis.legend(ncols=2, loc="lower right", bbox_to_anchor=(1.02, 1), columnspacing=1)
        figure.tight_layout()
        return save(figure, path, ("png",))[0]


def _pit(path: Path, outcome: Outcome) -> Path:
    assert outcome.cov is not None
    cov = outcome.cov.double()
    values = gaussian_pit(outcome.mean.double(), cov, outcome.truth.double())
    names = coordinate_names(outcome.labels, values.shape[-1])
    with plt.style.context(STYLE):
        dz = values.shape[-1]
        figure, axes = plt.subplots(
            1, dz, figsize=(max(3.8, 2.6 * dz), 2.4), sharey=True, squeeze=False
        )
        for k, axis in enumerate(axes[0]):
            shown = values[..., k].flatten().clamp(0, 1).numpy()
            axis.hist(shown, bins=np.linspace(0, 1, 11), density=True, color=CALIBRATED, alpha=0.6)
            axis.axhline(1, color="#000000", lw=1)
            axis.set_xlabel(f"PIT of {names[k]}")
        axes[0, 0].set_ylabel("density")
        figure.tight_layout()
        return save(figure, path, ("png",))[0]
