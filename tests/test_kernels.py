"""Kernels against plain loops, and the median rule for their bandwidth."""

import math

import numpy as np
import pytest
import reference
import torch

from kbr.core.kernels import (
    MEDIAN_POINTS,
    Gaussian,
    Laplace,
    Linear,
    Matern32,
    Matern52,
    median_distance,
    squared_distances,
)

FORMULAS = [
    (Gaussian, reference.gaussian),
    (Laplace, reference.laplace),
    (Matern32, reference.matern32),
    (Matern52, reference.matern52),
    (Linear, reference.linear),
]


def points(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("kernel", "formula"), FORMULAS)
@pytest.mark.parametrize("bandwidth", [0.3, 2.0])
def test_kernels_follow_their_formulas(kernel, formula, bandwidth):
    a, b = points(0, 7, 3), points(1, 5, 3)
    expected = reference.gram(formula(bandwidth), a.numpy(), b.numpy())
    made = kernel(bandwidth=bandwidth)
    np.testing.assert_allclose(made(a, b).numpy(), expected, rtol=0, atol=1e-13)
    itself = reference.gram(formula(bandwidth), a.numpy(), a.numpy())
    np.testing.assert_allclose(made.diagonal(a).numpy(), np.diag(itself), atol=1e-13)
    np.testing.assert_allclose(made(a, a).numpy(), itself, rtol=0, atol=1e-13)


def test_distances_keep_their_digits_far_from_the_origin():
    a, b = points(0, 6, 2), points(1, 4, 2)
    far = squared_distances(a + 1e6, b + 1e6)
    torch.testing.assert_close(far, squared_distances(a, b), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 3, 1000])
def test_equal_points_are_at_distance_zero(dtype, dim):
    a = points(0, 20, dim, dtype=dtype)
    assert not squared_distances(a, a).diagonal().any()
    assert not squared_distances(a.repeat(3, 1), a).view(3, 20, 20).diagonal(0, 1, 2).any()
    assert (Laplace(bandwidth=1.0)(a, a).diagonal() == 1).all()


@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_the_median_distance_is_that_of_a_sorted_list(n):
    a = points(n, 2, n, 3)
    expected = [reference.median_distance(member.tolist()) for member in a]
    np.testing.assert_allclose(median_distance(a).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_median_distance_of_coinciding_points_has_a_scale(dtype):
    one, constant = points(0, 1, 2, dtype=dtype), points(0, 1, 2, dtype=dtype).expand(9, 2)
    assert median_distance(one) == median_distance(constant) == 1
    mostly = constant.clone()
    mostly[0] += torch.tensor([3.0, 4.0])  # 8 of the 36 distances are 5, the others 0
    torch.testing.assert_close(median_distance(mostly), torch.tensor(5.0, dtype=dtype))


def test_the_median_of_many_points_is_taken_over_an_even_subset():
    n = MEDIAN_POINTS + 500
    line = torch.linspace(0, 1, n, dtype=torch.float64).unsqueeze(-1)
    # Distances of uniform points have density 2 (1 - t): the median is 1 - sqrt(1/2).
    assert abs(float(median_distance(line)) - (1 - math.sqrt(0.5))) < 1e-3


def test_a_bandwidth_is_fitted_once_and_for_each_batch_member():
    a = torch.stack([points(0, 10, 2), 5 * points(0, 10, 2)])
    recipe = Gaussian(scale=0.5)
    fitted = recipe.fit(a)
    torch.testing.assert_close(fitted.bandwidth, 0.5 * median_distance(a))
    assert recipe.bandwidth is None
    assert fitted.fit(points(1, 2, 4, 2)) is fitted
    torch.testing.assert_close(fitted(a, a)[0], fitted(a, a)[1])  # scale-free


def test_a_tensor_of_scales_is_one_for_each_batch_member():
    a, scale = points(0, 2, 6, 2), torch.tensor([0.5, 2.0], dtype=torch.float64)
    batched = Laplace(scale=scale).fit(a)(a, a)
    for member, s, gram in zip(a, scale, batched, strict=True):
        torch.testing.assert_close(Laplace(scale=float(s)).fit(member)(member, member), gram)


@pytest.mark.parametrize("same", [True, False])
def test_large_data_sets_of_a_batch_are_taken_one_by_one(monkeypatch, same):
    a = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    b = a if same else torch.randn(2, 3, 4, 5, dtype=torch.float64)
    at_once = squared_distances(a, b)
    monkeypatch.setattr("kbr.core.kernels.NUMBERS", 0)
    torch.testing.assert_close(squared_distances(a, b), at_once, rtol=1e-12, atol=1e-12)
