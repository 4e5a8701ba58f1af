"""The learned dynamics: pairs inside sequences, the operator, and the choice of its ridge."""

import numpy as np
import pytest
import torch
from filter_reference import dense_filter, gram, median_bandwidth, transition

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.operators import leave_one_out_score, transition_pairs


def test_pairs_never_cross_a_border():
    before, after = transition_pairs([3, 1, 4])
    assert before.tolist() == [0, 1, 4, 5, 6]
    assert after.tolist() == [1, 2, 5, 6, 7]


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1]])
def test_no_step_to_learn_from_is_an_error(lengths):
    with pytest.raises(KbrError, match=r"at least 2.*Raise n_train"):
        transition_pairs(lengths)


def sequences(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = [Rotation().sample(length, generator) for length in lengths]
    return [x.numpy() for x, _ in drawn], [z.numpy() for _, z in drawn]


def test_operator_is_ridge_regression():
    """Rows of E' are the ridge regression of the next features on the present ones."""
    (x,), (z,) = sequences([60])
    rule = ImportanceWeightedRule(lam=1e-2)
    filt = KernelBayesFilter(rule=rule, eta=1e-3, lam_transition=0.1, scales=(2.0,)).fit(x, z)
    phi = filt.operators.phi.numpy()
    p = phi.shape[-1]
    stacked = np.vstack([phi[:-1], np.sqrt(59 * 0.1) * np.eye(p)])
    exact = np.linalg.lstsq(stacked, np.vstack([phi[1:], np.zeros((p, p))]), rcond=None)[0]
    np.testing.assert_allclose(filt.operators.transition, exact, atol=1e-12)


def test_forecast_equals_the_dense_transition():
    """Weights one step ahead: w_1 = 0 and Algorithm 2, step 4, on the others."""
    (x,), (z,) = sequences([90])
    rule = ImportanceWeightedRule(lam=1e-2, normalize=False)
    filt = KernelBayesFilter(
        rule=rule, eta=1e-4, scales=(1.0,), widths=(1.0,), standardize=False
    ).fit(x, z)
    belief = filt.step(filt.init(), x[5])
    ahead = filt.forecast(belief)
    g_z = gram(z, z, median_bandwidth(z))
    exact = transition(g_z, belief.weights.numpy(), 1e-4)
    assert ahead.weights[0] == 0
    np.testing.assert_allclose(ahead.weights, exact, atol=1e-6)
    np.testing.assert_allclose(ahead.mean, exact @ z, atol=1e-6)


def test_several_sequences_equal_the_dense_algorithm_without_border_pairs():
    lengths = [40, 1, 25, 60]
    xs, zs = sequences(lengths)
    (x_test,), _ = sequences([60], seed=1)
    rule = ImportanceWeightedRule(lam=1e-2, normalize=False)
    filt = KernelBayesFilter(
        rule=rule, eta=1e-4, scales=(1.0,), widths=(1.0,), standardize=False
    ).fit(xs, zs)
    x, z = np.concatenate(xs), np.concatenate(zs)
    widths = {"width_x": median_bandwidth(x), "width_z": median_bandwidth(z)}
    ridges = {"eta": 1e-4, "lam": 1e-2}
    inside, _ = dense_filter(x, z, x_test, **widths, **ridges, lengths=lengths)
    across, _ = dense_filter(x, z, x_test, **widths, **ridges)
    mean = filt.filter(x_test).mean.numpy()
    np.testing.assert_allclose(mean, inside, atol=1e-6)
    assert np.abs(mean - across).max() > 1e-4


def test_leave_one_out_equals_refitting_without_each_step():
    """Every step left out by hand: its pair from the transition, its later point from C_ZZ.

    As in ridge regression's closed form, the ridge keeps its size k eta when a pair is left out.
    """
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(24, 5)) @ np.diag([1.0, 0.7, 0.4, 0.2, 0.05])
    before, after = (index.numpy() for index in transition_pairs([10, 14]))
    n, k, etas = 24, len(before), (1e-4, 1e-2, 1.0)
    marginal, expected = phi.T @ phi / n, []
    for eta in etas:
        scores = []
        for j in range(k):
            rest = np.delete(np.arange(k), j)
            early, late = phi[before[rest]], phi[after[rest]]
            system = early.T @ early + k * eta * np.eye(5)
            m = np.linalg.solve(system, early.T @ late).T @ phi[before[j]]
            others = np.delete(phi, after[j], 0)
            b = np.linalg.solve(others.T @ others / (n - 1) + eta * np.eye(5), m)
            scores.append(b @ marginal @ b / 2 - phi[after[j]] @ b)
        expected.append(np.mean(scores))
    rows = torch.from_numpy(phi)
    score = leave_one_out_score(rows, rows[before], rows[after])
    made = torch.stack([score(eta) for eta in etas])
    np.testing.assert_allclose(made, expected, rtol=1e-8)


def test_leave_one_out_of_a_batch_is_a_loop():
    phi = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    score = leave_one_out_score(phi, phi[:, :-1], phi[:, 1:])
    alone = [leave_one_out_score(one, one[:-1], one[1:]) for one in phi]
    for eta in (1e-3, 1e-1):
        torch.testing.assert_close(score(eta), torch.stack([one(eta) for one in alone]))


def test_leave_one_out_of_a_batch_with_columns_of_zeros():
    """The rank of a batch is that of its hardest member: others have columns of zeros."""
    phi = torch.randn(2, 20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi[1, :, 2:] = 0.0
    eta = torch.tensor([[1e-3], [1e-1]], dtype=torch.float64)
    scores = leave_one_out_score(phi, phi[:, :-1], phi[:, 1:])(eta)
    for one, own, made in zip((phi[0], phi[1, :, :2]), eta, scores, strict=True):
        torch.testing.assert_close(made, leave_one_out_score(one, one[:-1], one[1:])(own))
