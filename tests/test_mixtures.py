"""Mixtures of feature maps: their inner products are the weighted sum of kernels."""

import pytest
import torch

from kbr import (
    Embedding,
    Gaussian,
    Identity,
    ImportanceWeightedRule,
    KbrError,
    KernelBayesFilter,
    Laplace,
    Mixture,
    PivotedCholesky,
    load_filter,
)
from kbr.core.datasets.dynamics import Oscillatory


def points(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_inner_products_are_the_weighted_sum():
    a, b = points(0, 20, 3), points(1, 6, 3)
    wide, narrow = Gaussian(bandwidth=3.0), Laplace(bandwidth=0.5)
    made = Mixture(maps=(wide, narrow, Identity()), weights=(0.5, 2.0, 0.1)).fit(a)
    truth = 0.5 * wide(a, a) + 2 * narrow(a, a) + 0.1 * a @ a.mT
    torch.testing.assert_close(made.train @ made.train.mT, truth)
    torch.testing.assert_close(made.kernel(a, a), truth)
    torch.testing.assert_close(made.kernel.diagonal(a), truth.diagonal())
    far = 0.5 * wide(b, a) + 2 * narrow(b, a) + 0.1 * b @ a.mT
    torch.testing.assert_close(made(b) @ made.train.mT, far)


def test_maps_see_their_columns():
    """Learned features in front, the raw vector behind them."""
    a = points(0, 15, 5)
    made = Mixture(maps=(Identity(), Gaussian(bandwidth=1.0)), columns=([0, 3], [3, 5])).fit(a)
    truth = (a[:, :3] @ a[:, :3].mT + Gaussian(bandwidth=1.0)(a[:, 3:], a[:, 3:])) / 2
    torch.testing.assert_close(made.train @ made.train.mT, truth)


def test_one_map_is_that_map():
    x, z = points(0, 40, 2), points(1, 40, 2)
    prior = Embedding.from_samples(z[:20])
    alone, mixed = (
        ImportanceWeightedRule(kernel_x=kernel, lam=0.1).fit(x, z).posterior(x[:3], prior)
        for kernel in (Gaussian(), Mixture(maps=(Gaussian(),)))
    )
    torch.testing.assert_close(mixed.weights, alone.weights, rtol=0, atol=1e-8)


def test_a_filter_with_a_mixture_filters_saves_and_loads(tmp_path):
    data = Oscillatory().generate(n_train=120, n_test=30, seed=0)
    parts = (PivotedCholesky(kernel=Gaussian(), tolerance=1e-8), Identity())
    rule = ImportanceWeightedRule(kernel_x=Mixture(maps=parts, weights=(0.9, 0.1)))
    filt = KernelBayesFilter(rule=rule, scales=(1.0,), lams=(1e-3, 1e-2))
    mean = filt.fit(data.x_train, data.z_train).filter(data.x_test).mean
    assert (mean - data.z_test).square().sum(-1).mean() < 0.12
    filt.save(tmp_path / "filter.pt")
    again = load_filter(tmp_path / "filter.pt").filter(data.x_test).mean
    torch.testing.assert_close(again, mean, rtol=0, atol=1e-10)
    with pytest.raises(KbrError, match="cannot be compressed"):
        filt.compress(30)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"maps": ()}, "at least one map"),
        ({"weights": (1.0,)}, "weights must hold one entry"),
        ({"weights": (1.0, -1.0)}, "greater than zero"),
        ({"columns": ([0, 1], [1, 9])}, "within the 2 coordinates"),
        ({"columns": ([0], [1, 2])}, "pairs"),
    ],
)
def test_errors_say_what_to_change(settings, words):
    with pytest.raises(KbrError, match=words):
        Mixture(**settings).fit(points(0, 5, 2))
