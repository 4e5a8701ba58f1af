"""Kernel Bayes' rule with learned features: Bayesian updating and filtering from samples.

Public names are loaded when first used: `import kbr` and the command line's `--help` stay fast.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbr.core.embedding import Embedding
    from kbr.core.errors import KbrError
    from kbr.core.features import Identity, Nystroem, PivotedCholesky, RandomFourier
    from kbr.core.filters.belief import Belief
    from kbr.core.filters.classical.extended import ExtendedKalmanFilter
    from kbr.core.filters.classical.kalman import KalmanFilter
    from kbr.core.filters.classical.particle import ParticleFilter
    from kbr.core.filters.classical.state_space import StateSpaceModel
    from kbr.core.filters.classical.unscented import UnscentedKalmanFilter
    from kbr.core.filters.kernel.filter import KernelBayesFilter
    from kbr.core.filters.kernel.known_transition import TransitionRatio
    from kbr.core.filters.result import FilterResult
    from kbr.core.kernels import Gaussian, Laplace, Linear, Matern32, Matern52
    from kbr.core.likelihood_free import (
        SimulationPosterior,
        posterior_from_simulations,
        posterior_from_simulator,
    )
    from kbr.core.mixtures import Mixture
    from kbr.core.per_coordinate import PerCoordinate
    from kbr.core.ratios import ExactRatio, KuLSIF, RuLSIF
    from kbr.core.rule_tuning import tune_rule
    from kbr.core.rules import ImportanceWeightedRule, OriginalRule
    from kbr.core.uncertainty.calibration import Calibration

__version__ = "0.2.0"

_HOME = {
    "Belief": "filters.belief",
    "Calibration": "uncertainty.calibration",
    "Embedding": "embedding",
    "ExactRatio": "ratios",
    "ExtendedKalmanFilter": "filters.classical.extended",
    "FilterResult": "filters.result",
    "Gaussian": "kernels",
    "Identity": "features",
    "ImportanceWeightedRule": "rules",
    "KalmanFilter": "filters.classical.kalman",
    "KbrError": "errors",
    "KernelBayesFilter": "filters.kernel.filter",
    "KuLSIF": "ratios",
    "Laplace": "kernels",
    "Linear": "kernels",
    "Matern32": "kernels",
    "Matern52": "kernels",
    "Mixture": "mixtures",
    "Nystroem": "features",
    "OriginalRule": "rules",
    "ParticleFilter": "filters.classical.particle",
    "PerCoordinate": "per_coordinate",
    "PivotedCholesky": "features",
    "RandomFourier": "features",
    "RuLSIF": "ratios",
    "SimulationPosterior": "likelihood_free",
    "StateSpaceModel": "filters.classical.state_space",
    "TransitionRatio": "filters.kernel.known_transition",
    "UnscentedKalmanFilter": "filters.classical.unscented",
    "posterior_from_simulations": "likelihood_free",
    "posterior_from_simulator": "likelihood_free",
    "tune_rule": "rule_tuning",
}

__all__ = [  # noqa: RUF022  (grouped as a reader meets them)
    "ImportanceWeightedRule",
    "OriginalRule",
    "tune_rule",
    "KuLSIF",
    "RuLSIF",
    "ExactRatio",
    "TransitionRatio",
    "Embedding",
    "posterior_from_simulator",
    "posterior_from_simulations",
    "SimulationPosterior",
    "KernelBayesFilter",
    "Belief",
    "FilterResult",
    "Calibration",
    "load_filter",
    "read_recording",
    "Gaussian",
    "Laplace",
    "Matern32",
    "Matern52",
    "Linear",
    "PerCoordinate",
    "PivotedCholesky",
    "Nystroem",
    "RandomFourier",
    "Identity",
    "Mixture",
    "StateSpaceModel",
    "KalmanFilter",
    "ExtendedKalmanFilter",
    "UnscentedKalmanFilter",
    "ParticleFilter",
    "KbrError",
]


def load_filter(path: str | Path, *, trial: int = 0, trust: Sequence[str] = ()) -> Any:
    """A fitted filter from a file of `save`, a run folder or a run's best.ckpt, whatever its kind.

    `trial` picks one of several. Nothing in the file is executed; a model of your own is built from
    the run's settings where `trust` names its module.
    """
    return import_module("kbr.loading").load_filter(path, trial=trial, trust=trust)


def read_recording(path: str | Path, filt: Any = None, **keys: Any) -> Any:
    """A recording (CSV, npz, folder of arrays or frames) as a table that `filt.filter` takes.

    Columns are found by the names `filt` was trained on; see `kbr.app.recordings.new`.
    """
    return import_module("kbr.app.recordings.new").read_recording(path, filt, **keys)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'kbr' has no attribute {name!r}")
    return getattr(import_module(f"kbr.core.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
