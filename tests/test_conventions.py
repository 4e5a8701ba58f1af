"""Filters among scikit-learn's estimators: parameters, clones, scores, grids, pickles."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_regressor
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
from sklearn.utils.validation import check_is_fitted
from test_showing import FEW, X_TEST, YAW, Z_TEST, X, Z

from kbr import (
    ExtendedKalmanFilter,
    Gaussian,
    ImportanceWeightedRule,
    KalmanFilter,
    KbrError,
    KernelBayesFilter,
    Laplace,
    MovingFilter,
    ParticleFilter,
    StateSpaceModel,
    UnscentedKalmanFilter,
)
from kbr.core.filters.refined import RefinedFilter
from kbr.training import (
    GRUFilter,
    KalmanNNFilter,
    LearnedFilter,
    LRUFilter,
    LSTMFilter,
    PairedFilter,
    RKNFilter,
    TransformerFilter,
)
from kbr.training.encoders import MLP

KINDS = {
    KernelBayesFilter: {"eta": 0.1, "scales": (0.5,), "rule": ImportanceWeightedRule(lam=0.3)},
    RefinedFilter: {"base": KernelBayesFilter(eta=0.1), "steps": 2},
    MovingFilter: {"n_particles": 50, "temper": 0.5, "velocity": "auto"},
    LearnedFilter: {"epochs": 3, "n_fourier": 32, "encoder": MLP},
    PairedFilter: {"epochs": 4, "n_fourier": 64},
    LSTMFilter: {"hidden": 5},
    GRUFilter: {"gaps": 0.2},
    LRUFilter: {"layers": 1},
    TransformerFilter: {"heads": 2, "window": 3},
    RKNFilter: {"basis": 4, "loss": "mse"},
    KalmanNNFilter: {"hidden": 4},
}


@pytest.mark.parametrize(("kind", "settings"), KINDS.items())
def test_clones_have_the_same_settings_and_nothing_learned(kind, settings):
    filt = kind(**settings)
    copy = clone(filt)
    assert type(copy) is kind
    plain = (int, float, str, tuple, type(None))
    for name, value in filt.get_params(deep=True).items():
        found = copy.get_params(deep=True)[name]
        assert found == value if isinstance(value, plain) else type(found) is type(value)
    assert not copy.is_fitted
    assert is_regressor(filt)


def test_clones_keep_the_kernels_of_sensors():
    copy = clone(KernelBayesFilter(sensor_kernels={"a": Laplace(scale=2.0)}))
    assert copy.sensor_kernels["a"].scale == 2.0


def test_parameters_are_those_of_the_constructor():
    filt = KernelBayesFilter(eta=0.1)
    assert set(filt.get_params(deep=False)) >= {"rule", "eta", "scales", "history"}
    assert filt.get_params()["rule__lam"] is None
    nested = RefinedFilter(base=filt).get_params()
    assert nested["base__eta"] == 0.1
    assert nested["base__rule__ratio__eta"] is None


def test_parameters_are_set_before_fit_and_checked():
    filt = KernelBayesFilter()
    assert filt.set_params(eta=0.2, rule__lam=0.4, rule__kernel_z=Gaussian(scale=2.0)) is filt
    assert (filt.eta, filt.rule.lam, filt.rule.kernel_z.scale) == (0.2, 0.4, 2.0)
    refined = RefinedFilter().set_params(base__rule__lam=0.4, steps=0)
    assert refined.base.rule.lam == 0.4
    with pytest.raises(KbrError, match="Did you mean 'lams'"):
        filt.set_params(lam=1.0)
    with pytest.raises(KbrError, match="eta must be"):
        filt.set_params(eta=-1.0)
    with pytest.raises(KbrError, match="no settings of its own"):
        filt.set_params(eta__lam=1.0)
    assert filt.eta == 0.2


def test_a_fitted_filter_keeps_its_settings():
    filt = KernelBayesFilter(**FEW)
    with pytest.raises(Exception, match="not fitted"):
        check_is_fitted(filt)
    check_is_fitted(filt.fit(X, Z))
    with pytest.raises(KbrError, match="is fitted"):
        filt.set_params(eta=0.1)
    assert filt.set_params() is filt
    assert not clone(filt).is_fitted


SMALL = {"temper": 1.0, "inflate": 1.0, "outliers": 0.01, "sensing": "shows"}
SMALL |= {"jitter": 0.0, "lasting": 0.0}


@pytest.mark.parametrize(
    ("filt", "name"),
    [
        (MovingFilter(n_particles=20, **SMALL), "n_particles"),
        (LSTMFilter(epochs=1, window=2, hidden=3, encoder=MLP), "window"),
        (RefinedFilter(base=KernelBayesFilter(**FEW), steps=0), "steps"),
    ],
)
def test_settings_are_not_assigned_after_a_fit(filt, name):
    """They would not be used, without a word."""
    setattr(filt, name, getattr(filt, name))
    filt.fit(X, Z)
    with pytest.raises(KbrError, match="is fitted, and keeps its settings"):
        setattr(filt, name, 7)
    assert getattr(filt, name) != 7


def test_score_is_the_share_of_variance_explained():
    filt = KernelBayesFilter(**FEW).fit(X, Z)
    expected = r2_score(Z_TEST, filt.filter(X_TEST).mean)
    assert filt.score(X_TEST, Z_TEST) == pytest.approx(expected)
    both = filt.score([X_TEST[:30], X_TEST], [Z_TEST[:30], Z_TEST])
    means = [filt.filter(x).mean for x in (X_TEST[:30], X_TEST)]
    truths = np.concatenate([Z_TEST[:30], Z_TEST])
    assert both == pytest.approx(r2_score(truths, np.concatenate(means)))
    with pytest.raises(KbrError, match="as many sequences"):
        filt.score([X_TEST], [Z_TEST, Z_TEST])


def test_score_leaves_out_steps_without_a_truth_and_whole_sequences_of_them():
    filt, none = KernelBayesFilter(**FEW).fit(X, Z), np.full_like(Z_TEST, np.nan)
    half = np.concatenate([none[:20], Z_TEST[20:]])
    expected = r2_score(Z_TEST[20:], filt.filter(X_TEST).mean[20:])
    assert filt.score([X_TEST, X_TEST], [half, none]) == pytest.approx(expected)
    with pytest.raises(KbrError, match="no step has a truth"):
        filt.score([X_TEST, X_TEST], [none, none])


def test_score_of_an_angle_does_not_see_where_a_turn_begins():
    filt = KernelBayesFilter(**FEW).fit(X, YAW, circular="z_1")
    score = filt.score(X, YAW)
    assert 0.8 < score < 1
    assert filt.score(X, (YAW + 90) % 360 - 90) == pytest.approx(score)


def test_a_constant_latent_has_no_variance_to_explain():
    filt = KernelBayesFilter(**FEW).fit(X, Z)
    assert filt.score(X_TEST, np.ones_like(Z_TEST)) == 0


def test_grids_over_sequences_and_along_one():
    """Sequences as rows of lists; one sequence by its past and future."""
    xs, zs = ([part[k : k + 30] for k in range(0, 120, 30)] for part in (X, Z))
    grid = {"rule__lam": [0.1, 10.0]}
    search = GridSearchCV(KernelBayesFilter(scales=(0.5,)), grid, cv=2, error_score="raise")
    search.fit(xs, zs)
    assert search.best_params_ == {"rule__lam": 0.1}
    assert search.score([X_TEST], [Z_TEST]) > 0.8
    along = cross_val_score(
        KernelBayesFilter(**FEW), X, Z, cv=TimeSeriesSplit(3), error_score="raise"
    )
    assert along.shape == (3,)
    assert along[-1] > 0.8


def test_pickles_and_their_settings():
    filt = KernelBayesFilter(**FEW).fit(X, Z)
    again = pickle.loads(pickle.dumps(filt))
    assert again.score(X_TEST, Z_TEST) == pytest.approx(filt.score(X_TEST, Z_TEST))
    assert again.get_params(deep=False).keys() == filt.get_params(deep=False).keys()


def _same(z):
    return z


def linear_gaussian():
    eye = torch.eye(1)
    return StateSpaceModel(
        transition=_same,
        transition_cov=0.1 * eye,
        initial_mean=torch.zeros(1),
        initial_cov=eye,
        observation=_same,
        observation_cov=0.1 * eye,
    )


KNOWN = [
    KalmanFilter(model=linear_gaussian()),
    ExtendedKalmanFilter(model=linear_gaussian()),
    UnscentedKalmanFilter(model=linear_gaussian(), alpha=0.5),
    ParticleFilter(model=linear_gaussian(), n_particles=50),
]


@pytest.mark.parametrize("filt", KNOWN, ids=lambda filt: type(filt).__name__)
def test_filters_of_a_known_model_follow_them_too(filt):
    """Nothing is fitted, so settings can always be changed; and they are checked."""
    z = torch.linspace(-1, 1, 20).unsqueeze(-1)
    copy = clone(filt)
    assert copy.get_params(deep=False).keys() == filt.get_params(deep=False).keys()
    mean = filt.filter(z).mean
    torch.testing.assert_close(copy.filter(z).mean, mean)
    torch.testing.assert_close(pickle.loads(pickle.dumps(filt)).filter(z).mean, mean)
    assert filt.score(z, z) == pytest.approx(r2_score(z.numpy(), mean.numpy()), abs=1e-5)
    assert is_regressor(filt)
    with pytest.raises(KbrError, match="takes x alone"):
        filt.score(z, z, u=z)
    with pytest.raises(KbrError, match="has no setting 'particles'"):
        copy.set_params(particles=3)
    shown = repr(filt.summary())
    assert shown.startswith(f"{type(filt).__name__}\n  model           x [1] -> z (z_1)")
    assert "trained on" not in shown
    assert "coverage" not in shown
    assert "fit " not in shown


def test_settings_of_a_particle_filter_are_set_and_checked():
    filt = clone(KNOWN[-1])
    assert filt.set_params(n_particles=70) is filt
    assert filt.n_particles == 70
    assert "  settings        n_particles=70, resample_threshold=0.5, seed=0" in repr(
        filt.summary()
    )
    with pytest.raises(KbrError, match="n_particles must be at least 1"):
        filt.set_params(n_particles=0)
    assert filt.n_particles == 70
