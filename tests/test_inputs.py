"""What users may pass, and what they are told when it does not fit."""

import jaxtyping
import numpy as np
import pytest
import torch

from kbr import (
    Embedding,
    ExactRatio,
    Gaussian,
    ImportanceWeightedRule,
    KbrError,
    KuLSIF,
    Laplace,
    Linear,
    Nystroem,
    OriginalRule,
    PivotedCholesky,
    RandomFourier,
    RuLSIF,
)
from kbr.core.inputs import as_pairs, as_tensor, check_positive
from kbr.core.linalg import ridge_solve
from kbr.core.rules import importance_weighted

X, Z = np.random.default_rng(0).normal(size=(2, 6, 2))


def fitted(x=X, z=Z, **options):
    return ImportanceWeightedRule(ratio=KuLSIF(eta=0.2), lam=0.2, **options).fit(x, z)


def uniform(shape=(5, 2)):
    return Embedding.from_samples(np.random.default_rng(1).normal(size=shape))


@pytest.fixture
def unchecked():
    """Shape checks off, as for users: only the package's own messages remain."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.0, 2.0], torch.float64),
        (np.ones((2, 2), np.float32), torch.float32),
        (np.ones((2, 2), np.uint8), torch.float32),
        (np.array([True, False]), torch.float32),
        (torch.ones(2, dtype=torch.float16), torch.float16),
        (np.arange(6.0)[::-2], torch.float64),
    ],
)
def test_arrays_lists_and_tensors_become_floating_point(value, dtype):
    tensor = as_tensor(value, name="x")
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(value))


def test_read_only_arrays_are_copied_without_a_warning():
    array = np.broadcast_to(np.ones(2), (3, 2))
    assert as_tensor(array, name="x").shape == (3, 2)


def test_arrays_share_memory_where_they_can():
    array = np.ones(3)
    assert as_tensor(array, name="x").numpy() is not array
    assert np.shares_memory(as_tensor(array, name="x").numpy(), array)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[1.0], [1.0, 2.0]], "x must be a numeric array"),
        (np.array(["a", "b"]), "x must be a numeric array"),
        (np.array([1j]), "x must be real"),
    ],
)
def test_what_is_not_numeric_is_refused(value, words):
    with pytest.raises(KbrError, match=words):
        as_tensor(value, name="x")


def test_pairs_flatten_observations_and_keep_their_shape():
    x, z, shape = as_pairs(np.ones((2, 5, 4, 3)), np.ones((2, 5, 1)))
    assert x.shape == (2, 5, 12)
    assert z.shape == (2, 5, 1)
    assert shape == (4, 3)
    x, z, shape = as_pairs([1.0, 2.0], [3.0, 4.0])
    assert x.shape == z.shape == (2, 1)
    assert shape == ()


BROKEN = X.copy()
BROKEN[3, 1] = np.nan
ENDLESS = Z.copy()
ENDLESS[2, 0] = np.inf


@pytest.mark.parametrize(
    ("x", "z", "words"),
    [
        (X[:4], Z, "same number of rows; got 4 observations x and 6 latents z"),
        (X, np.array(3.0), r"z must have shape \[n, dz\]"),
        (
            np.ones((3, 6, 2)),
            np.ones((2, 6, 2)),
            r"x must have shape \[2, 6, ...\].*got \(3, 6, 2\)",
        ),
        (np.ones(6), np.ones((2, 6, 1)), "x must have shape"),
        (X[:0], Z[:0], "at least one row"),
        (BROKEN, Z, r"x must be finite; 1 of 12.*first at index \(3, 1\)"),
        (X, ENDLESS, r"z must be finite; 1 of 12.*first at index \(2, 0\)"),
    ],
)
def test_training_data_that_does_not_fit_is_refused(x, z, words):
    with pytest.raises(KbrError, match=words):
        fitted(x, z)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, 0.0])])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lam", lambda v: ImportanceWeightedRule(lam=v)),
        ("lam", lambda v: OriginalRule(lam=v)),
        ("eta", lambda v: KuLSIF(eta=v)),
        ("eta", lambda v: RuLSIF(eta=v)),
        ("bandwidth", lambda v: Gaussian(bandwidth=v)),
        ("scale", lambda v: Laplace(scale=v)),
        ("noise", lambda v: check_positive(v, name="noise")),
    ],
)
def test_ridges_and_bandwidths_must_be_positive(name, make, value):
    with pytest.raises(KbrError, match=f"{name} must be a finite number greater than zero"):
        make(value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RuLSIF(eta=0.1, alpha=1.0), r"alpha must lie in \[0, 1\); got 1.0"),
        (lambda: RandomFourier(n_features=3), "n_features must be an even number"),
        (lambda: RandomFourier(kernel=Linear()), "needs a stationary kernel; got Linear"),
        (lambda: Nystroem(n_landmarks=0), "n_landmarks must be at least 1"),
        (lambda: PivotedCholesky(max_rank=0), "max_rank must be at least 1"),
        (lambda: PivotedCholesky(tolerance=-1.0), "tolerance must lie in"),
        (lambda: ImportanceWeightedRule().fit(X, Z), "lam is not set"),
        (lambda: Gaussian()(torch.ones(1, 1), torch.ones(1, 1)), "no bandwidth yet"),
    ],
)
def test_settings_that_make_no_sense_are_named(make, words):
    with pytest.raises(KbrError, match=words):
        make()


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.ones((0, 2)), "at least one point; got none"),
        (np.array([[1.0, np.nan]]), "samples must be finite"),
    ],
)
def test_an_empty_or_broken_prior_is_refused(samples, words):
    with pytest.raises(KbrError, match=words):
        Embedding.from_samples(samples)


def test_weights_must_be_finite_and_one_a_point(unchecked):
    with pytest.raises(KbrError, match="weights must be finite"):
        Embedding.from_samples(Z, np.full(6, np.inf))
    with pytest.raises(KbrError, match=r"points \[..., n, d\] and weights"):
        Embedding.from_samples(Z, np.ones(4))
    with pytest.raises(KbrError, match=r"samples must have shape \[n, d\]"):
        Embedding.from_samples(np.array(1.0))


@pytest.mark.parametrize("shape", [(), (3,), (4, 3), (2, 4, 2), (0,)])
def test_observations_of_another_shape_than_in_training_are_refused(shape):
    with pytest.raises(KbrError, match=r"observations x must have shape \['q', 2\].*or \[2\]"):
        fitted().posterior(np.ones(shape), uniform())


def test_observations_of_another_batch_than_in_training_are_refused():
    rule = fitted(np.ones((3, 6, 2)), np.ones((3, 6, 2)))
    with pytest.raises(KbrError, match=r"observations x must have shape \[3, 'q', 2\]"):
        rule.posterior(np.ones((4, 5, 2)), uniform((3, 5, 2)))


def test_an_observation_that_is_not_finite_is_refused():
    with pytest.raises(KbrError, match="the observation x must be finite"):
        fitted().posterior([np.nan, 1.0], uniform())


@pytest.mark.parametrize("shape", [(5, 3), (5, 1), (2, 5, 2)])
def test_a_prior_in_another_space_is_refused(shape):
    with pytest.raises(KbrError, match=r"prior needs points of shape \['m', 2\].*Change the prior"):
        fitted().posterior(X, uniform(shape))


def test_many_priors_for_one_training_set_are_refused():
    many = fitted().posterior(X, uniform())
    with pytest.raises(KbrError, match="the prior needs"):
        fitted().posterior(X, many)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda z: torch.ones(3), "one value for each of the points"),
        (lambda z: z[..., 0] / 0, "must be finite at every training point"),
    ],
)
def test_an_exact_ratio_must_be_one_finite_number_a_point(unchecked, function, words):
    rule = ImportanceWeightedRule(ratio=ExactRatio(function=function), lam=0.1)
    with pytest.raises(KbrError, match=words):
        rule.fit(X, Z).posterior(X, uniform())


def test_an_expectation_needs_one_value_a_point():
    with pytest.raises(KbrError, match="one value, or one row, for each of the points"):
        uniform().expect(lambda z: z.sum())


def test_wrong_shapes_fail_in_the_test_run():
    """Signatures are checked here: three ratios for four points do not pass."""
    psi = torch.ones(4, 2, dtype=torch.float64)
    with pytest.raises(jaxtyping.TypeCheckError, match="ratio"):
        importance_weighted(psi, psi, torch.ones(3, dtype=torch.float64), lam=0.1)
    with pytest.raises(jaxtyping.TypeCheckError):
        ridge_solve(psi, psi, ridge=0.1)
