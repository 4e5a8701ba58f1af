"""Kernel Bayes' rule with learned features: Bayesian updating and filtering from samples.

Public names are loaded when first used: `import kbr` and the command line's `--help` stay fast.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbr.core.embedding import Embedding as Embedding
    from kbr.core.errors import KbrError as KbrError
    from kbr.core.features import Identity as Identity
    from kbr.core.features import Nystroem as Nystroem
    from kbr.core.features import PivotedCholesky as PivotedCholesky
    from kbr.core.features import RandomFourier as RandomFourier
    from kbr.core.filters.belief import Belief as Belief
    from kbr.core.filters.classical.extended import ExtendedKalmanFilter as ExtendedKalmanFilter
    from kbr.core.filters.classical.kalman import KalmanFilter as KalmanFilter
    from kbr.core.filters.classical.particle import ParticleFilter as ParticleFilter
    from kbr.core.filters.classical.state_space import StateSpaceModel as StateSpaceModel
    from kbr.core.filters.classical.unscented import UnscentedKalmanFilter as UnscentedKalmanFilter
    from kbr.core.filters.kernel.dynamics.known_transition import TransitionRatio as TransitionRatio
    from kbr.core.filters.kernel.filter import KernelBayesFilter as KernelBayesFilter
    from kbr.core.filters.moving.filter import MovingFilter as MovingFilter
    from kbr.core.filters.result import FilterResult as FilterResult
    from kbr.core.kernels import Gaussian as Gaussian
    from kbr.core.kernels import Laplace as Laplace
    from kbr.core.kernels import Linear as Linear
    from kbr.core.kernels import Matern32 as Matern32
    from kbr.core.kernels import Matern52 as Matern52
    from kbr.core.likelihood_free import SimulationPosterior as SimulationPosterior
    from kbr.core.likelihood_free import posterior_from_simulations as posterior_from_simulations
    from kbr.core.likelihood_free import posterior_from_simulator as posterior_from_simulator
    from kbr.core.mixtures import Mixture as Mixture
    from kbr.core.moments import ShrunkenMean as ShrunkenMean
    from kbr.core.per_coordinate import PerCoordinate as PerCoordinate
    from kbr.core.ratios import ExactRatio as ExactRatio
    from kbr.core.ratios import KuLSIF as KuLSIF
    from kbr.core.ratios import RuLSIF as RuLSIF
    from kbr.core.rule_tuning import tune_rule as tune_rule
    from kbr.core.rules import ImportanceWeightedRule as ImportanceWeightedRule
    from kbr.core.rules import OriginalRule as OriginalRule
    from kbr.core.uncertainty.calibration import Calibration as Calibration
    from kbr.core.units.trend import Trend as Trend

__version__ = "0.2.0"

_NAMES = {  # by module of kbr.core, as a reader meets them
    "rules": ("ImportanceWeightedRule", "OriginalRule"),
    "rule_tuning": ("tune_rule",),
    "ratios": ("KuLSIF", "RuLSIF", "ExactRatio"),
    "moments": ("ShrunkenMean",),
    "filters.kernel.dynamics.known_transition": ("TransitionRatio",),
    "embedding": ("Embedding",),
    "likelihood_free": (
        "posterior_from_simulator",
        "posterior_from_simulations",
        "SimulationPosterior",
    ),
    "filters.kernel.filter": ("KernelBayesFilter",),
    "filters.moving.filter": ("MovingFilter",),
    "filters.belief": ("Belief",),
    "filters.result": ("FilterResult",),
    "uncertainty.calibration": ("Calibration",),
    "kernels": ("Gaussian", "Laplace", "Matern32", "Matern52", "Linear"),
    "units.trend": ("Trend",),
    "per_coordinate": ("PerCoordinate",),
    "features": ("PivotedCholesky", "Nystroem", "RandomFourier", "Identity"),
    "mixtures": ("Mixture",),
    "filters.classical.state_space": ("StateSpaceModel",),
    "filters.classical.kalman": ("KalmanFilter",),
    "filters.classical.extended": ("ExtendedKalmanFilter",),
    "filters.classical.unscented": ("UnscentedKalmanFilter",),
    "filters.classical.particle": ("ParticleFilter",),
    "errors": ("KbrError",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["load_filter", "read_recording", *_HOME]


def load_filter(path: str | Path, *, trial: int = 0, trust: Sequence[str] = ()) -> Any:
    """A fitted filter from a file of `save`, a run folder or a run's best.ckpt, whatever its kind.

    `trial` picks one of several. Nothing in the file is executed. What it names of your own, parts
    of a filter or a whole model, is built where `trust` names its module.
    """
    return import_module("kbr.loading").load_filter(path, trial=trial, trust=trust)


def read_recording(path: str | Path | Sequence[str], filt: Any = None, **keys: Any) -> Any:
    """A recording (CSV, npz, parquet, mat, video, folder) as a table that `filt.filter` takes.

    Columns are found by the names `filt` was trained on; see `kbr.app.recordings.new`.
    """
    return import_module("kbr.app.recordings.new").read_recording(path, filt, **keys)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'kbr' has no attribute {name!r}")
    return getattr(import_module(f"kbr.core.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
