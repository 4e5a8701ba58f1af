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
    KernelBayesFilter,
    KuLSIF,
    Laplace,
    Linear,
    Nystroem,
    OriginalRule,
    PivotedCholesky,
    RandomFourier,
    RuLSIF,
)
from kbr.core.filters.sequences import training_sequences
from kbr.core.inputs import as_pairs, as_tensor, check_positive
from kbr.core.linalg import ridge_solve

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
        (np.ones((2, 2, 2), np.uint8), torch.float32),  # images
        (np.ones((2, 2), np.uint8), torch.float64),
        (np.array([True, False]), torch.float64),
        (1_700_000_000 + np.arange(4), torch.float64),  # seconds of an epoch, to the second
        ([100_000_001, 100_000_002], torch.float64),
        (np.array([1, 2**31], np.uint32), torch.float64),
        (np.arange(3.0).astype(">f8"), torch.float64),
        (np.arange(3, dtype=np.longdouble), torch.float64),
        (torch.ones(2, dtype=torch.float16), torch.float16),
        (np.arange(6.0)[::-2], torch.float64),
    ],
)
def test_arrays_lists_and_tensors_become_floating_point(value, dtype):
    tensor = as_tensor(value, name="x")
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(value))


def test_what_is_masked_is_missing():
    mask = [[False, True], [False, False]]
    for values in (np.array([[1, 2], [3, 4]]), np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)):
        tensor = as_tensor(np.ma.masked_array(values, mask), name="x")
        np.testing.assert_array_equal(tensor.numpy(), [[1, np.nan], [3, 4]])
    with pytest.raises(KbrError, match="x must be finite; 1 of 4"):
        as_pairs(np.ma.masked_array(values, mask), values)


def test_lists_of_tensors_are_stacked_and_graphs_are_left_behind():
    leaf = torch.ones(2, requires_grad=True)
    for value in (leaf, 2 * leaf, [leaf, leaf]):
        assert not as_tensor(value, name="x").requires_grad


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
        (np.array(["a", "b"]), "numpy reads it as <U1"),
        ([1.0, None], "numpy reads it as object; missing values are NaN"),
        (None, "x must be a numeric array or tensor; got NoneType"),
        ({"a": 1.0}, "got dict"),
        (np.zeros(2, "M8[s]"), "numpy reads it as datetime64"),
        (np.zeros(2, [("a", "f8")]), "x must be a numeric array"),
        ([10**400], "x must be a numeric array"),
        ([torch.ones(2), torch.ones(3)], "x must be a numeric array"),
        (np.array([1j]), "real numbers; got torch.complex128"),
        (torch.eye(2).to_sparse(), "dense array.*got torch.sparse_coo"),
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


@pytest.mark.parametrize(
    ("x", "z", "lengths"),
    [
        (X.tolist(), Z.tolist(), [6]),
        (X.tolist(), Z[:, 0].tolist(), [6]),
        (X.tolist(), Z, [6]),
        (list(X), list(Z[:, 0]), [6]),
        (list(np.ones((6, 4, 3))), Z.tolist(), [6]),  # frames and their latents
        ([X], [Z], [6]),
        ([X, X], (Z, Z), [6, 6]),
        ([torch.as_tensor(X), X[:2]], [Z, Z[:2]], [6, 2]),
        ([X[:, 0], X[:2, 0]], [Z[:, 0], Z[:2, 0]], [6, 2]),
    ],
)
def test_lists_of_numbers_are_one_array_and_lists_of_arrays_are_sequences(x, z, lengths):
    assert training_sequences(x, z)[2] == lengths


@pytest.mark.parametrize(
    ("x", "z", "words"),
    [
        (list(X), list(Z), r"rows or sequences. Pass one array \(numpy.array\(x\)\)"),
        ([X, X], [Z.tolist(), Z.tolist()], "rows or sequences"),
        ([X.tolist(), X[:2].tolist()], [Z.tolist(), Z[:2].tolist()], "as a list of arrays"),
        (list(np.ones((6, 4, 3))), list(Z), r"got 4 and 2 in item 0.*numpy.array\(x\)"),
        ([X, X], [Z], "as many sequences; got 2 of x and 1 of z"),
        ([], [], "at least one row"),
    ],
)
def test_lists_that_could_be_read_in_two_ways_are_refused(x, z, words):
    with pytest.raises(KbrError, match=words):
        training_sequences(x, z)


def test_absent_observations_are_kept_where_they_are_allowed():
    x, gaps = X.copy(), X.copy()
    x[1, 0], x[4, 1], gaps[1, 0], gaps[4, 1] = np.nan, np.inf, np.nan, np.nan
    np.testing.assert_array_equal(as_pairs(x, Z, missing=True)[0].numpy(), gaps)
    np.testing.assert_array_equal(training_sequences([x], [Z], missing=True)[0].numpy(), gaps)
    with pytest.raises(KbrError, match="z must be finite"):
        as_pairs(X, x, missing=True)
    with pytest.raises(KbrError, match="at least one number that is not missing"):
        as_pairs(np.full_like(X, np.nan), Z, missing=True)


@pytest.mark.parametrize("convert", [np.array, torch.tensor, lambda a: torch.tensor(a).float()])
def test_what_is_done_to_arrays_after_fitting_changes_no_answer(convert):
    """The filter, several sequences, a rule and its prior own what they were given."""
    x, z, samples = convert(X), convert(Z), convert(Z[:5])
    settings = {"rule": ImportanceWeightedRule(lam=0.1), "eta": 0.1, "scales": (1.0,)}
    filt, several = (KernelBayesFilter(**settings) for _ in range(2))
    filt.fit(x, z)
    several.fit([x, x[:3]], [z, z[:3]])
    rule, prior = fitted(x, z), Embedding.from_samples(samples)

    def now():
        steps = [f.step(f.init(), X[0]).mean for f in (filt, several)]
        return torch.cat([*steps, filt.filter(X).mean[0], rule.posterior(X[0], prior).mean])

    before = now()
    for array in (x, z, samples):
        array += 100
    torch.testing.assert_close(now(), before)


def test_a_stream_keeps_no_graph():
    filt = KernelBayesFilter(rule=ImportanceWeightedRule(lam=0.1), eta=0.1, scales=(1.0,))
    x, z = (torch.tensor(part, requires_grad=True) for part in (X, Z))
    belief = filt.fit(x, z).step(filt.init(), x[0])
    for answer in (belief.mean, belief.state, filt.filter(x).mean, filt.smooth(x).mean):
        assert not answer.requires_grad


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
        (X[:, :0], Z, r"at least one number in every row; got x of shape \(6, 0\)"),
        (X, Z[:, :0], r"at least one number in every row.* z of shape \(6, 0\)"),
        (np.array(1.0), Z, "x must have shape"),
        (list("abcdef"), Z, "x must be a numeric array"),
        (BROKEN, Z, r"x must be finite; 1 of 12.*first at index \(3, 1\)"),
        (X, ENDLESS, r"z must be finite; 1 of 12.*first at index \(2, 0\)"),
    ],
)
def test_training_data_that_does_not_fit_is_refused(x, z, words):
    with pytest.raises(KbrError, match=words):
        fitted(x, z)


@pytest.mark.parametrize(
    "value", [0.0, -1.0, 1e-310, float("nan"), float("inf"), torch.tensor([1.0, 0.0])]
)
def test_a_number_that_is_not_positive_is_refused(value):
    with pytest.raises(KbrError, match=r"noise must be a finite number.*at least 2.2e-308\); got"):
        check_positive(value, name="noise")


@pytest.mark.parametrize("value", ["abc", None, [1.0]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(KbrError, match="noise must be a number greater than zero"):
        check_positive(value, name="noise")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lam", lambda v: ImportanceWeightedRule(lam=v)),
        ("lam", lambda v: OriginalRule(lam=v)),
        ("eta", lambda v: KuLSIF(eta=v)),
        ("eta", lambda v: RuLSIF(eta=v)),
        ("bandwidth", lambda v: Gaussian(bandwidth=v)),
        ("scale", lambda v: Laplace(scale=v)),
    ],
)
def test_ridges_and_bandwidths_must_be_positive(name, make):
    with pytest.raises(KbrError, match=f"{name} must be a finite number greater than zero"):
        make(0.0)


def test_a_ridge_lost_in_rounding_names_the_next_one_to_try():
    """1e-300 is greater than zero, but too small to change sums near one."""
    x = np.repeat(X, 30, 0)
    with pytest.raises(KbrError, match=r"= .*e-2..; raise n lam to .*e-1. or more"):
        ImportanceWeightedRule(lam=1e-300, form="gram").fit(x, x).posterior(X, uniform())


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
        ImportanceWeightedRule(lam=0.1).weights(psi, psi, torch.ones(3, dtype=torch.float64))
    with pytest.raises(jaxtyping.TypeCheckError):
        ridge_solve(psi, psi, ridge=0.1)
