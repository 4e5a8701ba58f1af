"""Kernel Bayes' rule with learned features: Bayesian updating and filtering from samples."""

from kbr.core.embedding import Embedding
from kbr.core.errors import KbrError
from kbr.core.features import Identity, Nystroem, PivotedCholesky, RandomFourier
from kbr.core.filters.belief import Belief
from kbr.core.filters.extended_kalman import ExtendedKalmanFilter
from kbr.core.filters.kalman import KalmanFilter
from kbr.core.filters.kernel_bayes import KernelBayesFilter
from kbr.core.filters.particle import ParticleFilter
from kbr.core.filters.result import FilterResult
from kbr.core.filters.state_space import StateSpaceModel
from kbr.core.filters.unscented_kalman import UnscentedKalmanFilter
from kbr.core.kernels import Gaussian, Laplace, Linear, Matern32, Matern52
from kbr.core.ratios import ExactRatio, KuLSIF, RuLSIF
from kbr.core.rule_tuning import tune_rule
from kbr.core.rules import ImportanceWeightedRule, OriginalRule

__version__ = "0.1.0"

__all__ = [
    "Belief",
    "Embedding",
    "ExactRatio",
    "ExtendedKalmanFilter",
    "FilterResult",
    "Gaussian",
    "Identity",
    "ImportanceWeightedRule",
    "KalmanFilter",
    "KbrError",
    "KernelBayesFilter",
    "KuLSIF",
    "Laplace",
    "Linear",
    "Matern32",
    "Matern52",
    "Nystroem",
    "OriginalRule",
    "ParticleFilter",
    "PivotedCholesky",
    "RandomFourier",
    "RuLSIF",
    "StateSpaceModel",
    "UnscentedKalmanFilter",
    "tune_rule",
]
