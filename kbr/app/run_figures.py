"""Pictures of one run."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from kbr.app.methods import Outcome
from kbr.app.style import RC, save

SHOWN_STEPS = 100


def run_figures(folder: Path, outcome: Outcome) -> list[Path]:
    """The first trial: answers against the truth, with two standard deviations where known."""
    folder.mkdir(parents=True, exist_ok=True)
    mean, truth = outcome.mean[0].double().numpy(), outcome.truth[0].double().numpy()
    if outcome.evidence is None or outcome.cov is None:
        return [_scatter(folder / "posterior_mean.png", mean, truth)]
    spread = outcome.cov[0].double().diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().numpy()
    return [_track(folder / "trajectory.png", mean, truth, spread, outcome.labels)]


def _track(
    path: Path,
    mean: np.ndarray,
    truth: np.ndarray,
    spread: np.ndarray,
    labels: tuple[str, ...] | None,
) -> Path:
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
            axis.set_ylabel(labels[k] if labels else f"$z_{k + 1}$")
        axes[-1, 0].set_xlabel("step of the test sequence")
        axes[0, 0].legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
        figure.tight_layout()
        return save(figure, path.with_suffix(""), ("png",))[0]


def _scatter(path: Path, mean: np.ndarray, truth: np.ndarray) -> Path:
    with plt.rc_context(RC):
        figure, axis = plt.subplots(figsize=(3.8, 3.6))
        axis.scatter(truth.ravel(), mean.ravel(), s=6, color="#0072B2", alpha=0.4, lw=0)
        ends = [truth.min(), truth.max()]
        axis.plot(ends, ends, color="#000000", lw=1)
        axis.set_xlabel("exact posterior mean")
        axis.set_ylabel("estimate")
        figure.tight_layout()
        return save(figure, path.with_suffix(""), ("png",))[0]
