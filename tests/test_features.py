"""Finite features: exact ones equal the kernel, random ones approach it."""

import pytest
import torch

from kbr.core import features as module
from kbr.core.errors import KbrError
from kbr.core.features import (
    Identity,
    KernelPCA,
    Nystroem,
    PivotedCholesky,
    RandomFourier,
    as_feature_map,
)
from kbr.core.kernels import Gaussian, Laplace, Linear, Matern32, Matern52

STATIONARY = [Gaussian, Laplace, Matern32, Matern52]


def points(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def gram_error(feature_map, a):
    """Largest difference between psi(a_i)' psi(a_j) and k(a_i, a_j)."""
    made = feature_map.fit(a)
    return (made.train @ made.train.mT - made.kernel(a, a)).abs().max()


@pytest.mark.parametrize("kernel", STATIONARY)
def test_pivoted_cholesky_and_all_landmarks_are_the_kernel(kernel):
    a, query = points(0, 40, 2), points(1, 9, 2)
    for feature_map in (
        PivotedCholesky(kernel=kernel()),
        Nystroem(kernel=kernel(), n_landmarks=40, tolerance=1e-14),
    ):
        made = feature_map.fit(a)
        assert gram_error(feature_map, a) < 1e-11
        torch.testing.assert_close(made(a), made.train, rtol=0, atol=1e-6)
        cross = made(query) @ made.train.mT
        torch.testing.assert_close(cross, made.kernel(query, a), rtol=0, atol=1e-8)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-4, 1e-8])
def test_pivoted_cholesky_keeps_its_tolerance_with_few_features(tolerance):
    a = points(0, 300, 1)
    chosen = PivotedCholesky(tolerance=tolerance)
    assert gram_error(chosen, a) <= tolerance
    assert chosen.fit(a).train.shape[-1] < 25


def test_pivoted_cholesky_by_columns_equals_that_of_the_whole_gram_matrix(monkeypatch):
    a = points(0, 3, 50, 2)
    whole = PivotedCholesky(tolerance=1e-6).fit(a)
    monkeypatch.setattr(module, "GRAM_POINTS", 10)
    columns = PivotedCholesky(tolerance=1e-6).fit(a)
    torch.testing.assert_close(columns.train, whole.train, rtol=0, atol=1e-9)


def test_fewer_features_on_demand():
    a = points(0, 50, 2)
    assert PivotedCholesky(max_rank=7).fit(a).train.shape == (50, 7)
    assert Nystroem(n_landmarks=7).fit(a).train.shape == (50, 7)
    assert Nystroem(n_landmarks=200).fit(a).train.shape == (50, 50)


def test_kernel_pca_is_the_best_of_its_number():
    a = points(0, 60, 5)
    gram = Gaussian().fit(a)(a, a)
    made = KernelPCA(n_features=12).fit(a)
    left = torch.linalg.eigvalsh(gram - made.train @ made.train.mT)
    expected = torch.linalg.eigvalsh(gram)[:-12]
    torch.testing.assert_close(left[-48:].sort().values, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(made(a), made.train, rtol=0, atol=1e-9)
    whole = KernelPCA(n_features=60).fit(a).train
    torch.testing.assert_close(whole @ whole.mT, gram, rtol=0, atol=1e-10)


def mean_error(kernel, n_features, orthogonal, dim=4, seeds=range(12)):
    """Mean over seeds of the root mean square error of the approximate Gram matrix."""
    a = points(0, 50, dim)
    errors = []
    for seed in seeds:
        chosen = RandomFourier(
            kernel=kernel(), n_features=n_features, orthogonal=orthogonal, seed=seed
        )
        made = chosen.fit(a)
        error = made.train @ made.train.mT - made.kernel(a, a)
        errors.append(error.square().mean().sqrt())
    return float(torch.stack(errors).mean())


@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("orthogonal", [False, True])
def test_random_features_approach_the_kernel_at_the_monte_carlo_rate(kernel, orthogonal):
    few, many = (mean_error(kernel, p, orthogonal) for p in (64, 4096))
    assert many < 0.02
    assert 5 < few / many < 13  # sqrt(4096 / 64) = 8


@pytest.mark.parametrize("kernel", STATIONARY)
def test_orthogonal_features_are_better_on_average(kernel):
    plain, orthogonal = (mean_error(kernel, 64, o, seeds=range(40)) for o in (False, True))
    assert orthogonal < plain


def test_random_features_have_norm_one_and_come_from_their_seed():
    a = points(0, 10, 3)
    psi = RandomFourier(n_features=128, seed=3).fit(a).train
    torch.testing.assert_close(psi.square().sum(-1), torch.ones(10, dtype=torch.float64))
    assert torch.equal(psi, RandomFourier(n_features=128, seed=3).fit(a).train)
    assert not torch.equal(psi, RandomFourier(n_features=128, seed=4).fit(a).train)


def test_orthogonal_frequencies_are_orthogonal_in_blocks():
    w = RandomFourier(n_features=16).frequencies(4)
    for block in (w[:, :4], w[:, 4:]):
        product = block.mT @ block
        torch.testing.assert_close(product, torch.diag(product.diagonal()))


@pytest.mark.parametrize("kernel", STATIONARY)
def test_bandwidths_are_those_of_each_batch_member(kernel):
    a = points(0, 20, 3)
    both = RandomFourier(kernel=kernel()).fit(torch.stack([a, 10 * a])).train
    torch.testing.assert_close(both[0], both[1])


def test_a_kernel_stands_for_its_feature_map():
    assert as_feature_map(Gaussian(bandwidth=2.0)).kernel.bandwidth == 2.0
    assert isinstance(as_feature_map(Linear()), Identity)
    chosen = RandomFourier()
    assert as_feature_map(chosen) is chosen


def test_the_linear_kernel_has_no_spectrum():
    with pytest.raises(KbrError, match="stationary"):
        RandomFourier(kernel=Linear())


def test_each_data_set_keeps_its_own_tolerance():
    """A batch is as wide as its hardest member needs, no wider."""
    a, tolerances = points(0, 2, 80, 2), torch.tensor([1e-4, 1e-9], dtype=torch.float64)
    kernel = Gaussian(bandwidth=torch.tensor([0.5, 2.0], dtype=torch.float64))
    both = PivotedCholesky(kernel=kernel, tolerance=tolerances).fit(a)
    ranks = []
    for k in range(2):
        own = Gaussian(bandwidth=float(kernel.bandwidth[k]))
        alone = PivotedCholesky(kernel=own, tolerance=float(tolerances[k])).fit(a[k])
        ranks.append(alone.train.shape[-1])
        torch.testing.assert_close(both.train[k, :, : ranks[-1]], alone.train)
        assert not both.train[k, :, ranks[-1] :].any()
    assert both.train.shape[-1] == max(ranks)
    with pytest.raises(KbrError, match="tolerance"):
        PivotedCholesky(tolerance=torch.tensor([0.1, 1.5]))
