"""Pictures of a recording whose truth nobody knows: what the filter believes at every row."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from kbr.app.figures.beliefs import AGAINST, ESTIMATE
from kbr.app.figures.style import STYLE, save
from kbr.app.figures.view import coordinate_names
from kbr.app.models.kernel import Outcome

SHOWN = 300  # rows


def recording_figures(folder: Path, outcome: Outcome) -> list[Path]:
    """trajectory.png of the first trial: means, 2 sd, and rows without evidence."""
    assert outcome.cov is not None
    assert outcome.evidence is not None
    folder.mkdir(parents=True, exist_ok=True)
    mean, evidence = outcome.mean[0].numpy()[:SHOWN], outcome.evidence[0].numpy()[:SHOWN]
    variance = np.diagonal(outcome.cov[0].numpy()[:SHOWN], axis1=-2, axis2=-1)
    half = 2 * np.sqrt(variance.clip(0))
    names = coordinate_names(outcome.labels, mean.shape[-1])
    row = np.arange(1, len(mean) + 1)
    with plt.style.context(STYLE):
        count = len(names)
        figure, axes = plt.subplots(
            count, 1, figsize=(7, 1.7 * count + 0.6), sharex=True, squeeze=False
        )
        for k, axis in enumerate(axes[:, 0]):
            low, high = mean[:, k] - half[:, k], mean[:, k] + half[:, k]
            axis.fill_between(
                row, low, high, color=ESTIMATE, alpha=0.2, lw=0, label=f"± {outcome.shown_spread}"
            )
            axis.plot(row, mean[:, k], color=ESTIMATE, lw=1.3, label="filter mean")
            if not evidence.all():
                where = ~evidence
                axis.plot(row[where], mean[where, k], "x", color=AGAINST, ms=5, label="no evidence")
            axis.set_ylabel(names[k])
        axes[-1, 0].set_xlabel("row of the recording")
        axes[0, 0].legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
        figure.align_ylabels()
        figure.tight_layout()
        return save(figure, folder / "trajectory", ("png",))
