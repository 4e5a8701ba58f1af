"""Ridge solves and the pivoted Cholesky factor against numpy."""

import numpy as np
import pytest
import torch

from kbr.core.errors import KbrError
from kbr.core.kernels import Gaussian
from kbr.core.linalg import (
    add_ridge,
    pivoted_cholesky,
    ridge_cholesky,
    ridge_solve,
    squared_ridge_solve,
)


def gram(seed, *batch, n=40, dim=2):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(*batch, n, dim, dtype=torch.float64, generator=generator)
    return Gaussian(bandwidth=1.0)(points, points)


def factorise(matrix, **options):
    def column(index):
        wide = index[..., None, None].expand(*matrix.shape[:-1], 1)
        return matrix.gather(-1, wide).squeeze(-1)

    return pivoted_cholesky(matrix.diagonal(dim1=-2, dim2=-1), column, **options)


def test_ridge_solve_equals_the_inverse():
    a, b = gram(0, n=10), torch.randn(10, 3, dtype=torch.float64)
    expected = np.linalg.inv(a.numpy() + 0.1 * np.eye(10)) @ b.numpy()
    np.testing.assert_allclose(ridge_solve(a, b, ridge=0.1).numpy(), expected, rtol=1e-9)


def test_squared_ridge_solve_takes_indefinite_matrices():
    c = gram(0, n=8) - 0.5 * torch.eye(8, dtype=torch.float64)
    assert torch.linalg.eigvalsh(c).min() < 0
    b = torch.randn(8, 2, dtype=torch.float64)
    c_ = c.numpy()
    expected = np.linalg.inv(c_ @ c_ + 1e-2 * np.eye(8)) @ c_ @ b.numpy()
    np.testing.assert_allclose(squared_ridge_solve(c, b, ridge=1e-2).numpy(), expected, rtol=1e-8)


def test_a_grid_of_ridges_is_one_batched_solve():
    a, b = gram(1, 3, n=6), torch.randn(3, 6, 2, dtype=torch.float64)
    ridges = torch.tensor([[1e-3], [1e-1]], dtype=torch.float64)
    batched = ridge_solve(a, b, ridge=ridges)
    assert batched.shape == (2, 3, 6, 2)
    for row, ridge in zip(batched, ridges[:, 0], strict=True):
        for one, a_, b_ in zip(row, a, b, strict=True):
            torch.testing.assert_close(one, ridge_solve(a_, b_, ridge=float(ridge)))


def test_solves_are_float64_and_leave_their_input_alone():
    a = gram(2, n=4).float()
    before = a.clone()
    assert ridge_solve(a, a, ridge=0.1).dtype == torch.float64
    assert add_ridge(a, 1.0).dtype == torch.float64
    assert torch.equal(a, before)


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ridge_that_is_not_positive_is_named(ridge):
    with pytest.raises(KbrError, match="eta must be a finite number greater than zero"):
        ridge_cholesky(gram(0, n=3), ridge=ridge, name="eta")


def test_a_failed_factorisation_names_the_ridge_and_the_size():
    with pytest.raises(KbrError, match=r"5 x 5 system.*lam = 1e-18.*raise lam"):
        ridge_cholesky(-torch.eye(5, dtype=torch.float64), ridge=1e-18, name="lam")


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-12])
def test_pivoted_cholesky_residual_is_below_its_tolerance(batch, tolerance):
    matrix = gram(3, *batch)
    factor, pivots = factorise(matrix, tolerance=tolerance)
    assert factor.shape[-1] == pivots.shape[-1] <= 40
    residual = matrix - factor @ factor.mT
    # The residual is itself positive semi-definite: its largest entry is on the diagonal.
    assert residual.abs().max() <= tolerance + 1e-14


def test_pivoted_cholesky_of_a_batch_is_that_of_its_members():
    wide, narrow = gram(4, n=30), gram(4, n=30, dim=1)
    factor, _ = factorise(torch.stack([wide, narrow]), tolerance=1e-8)
    for matrix, member in zip([wide, narrow], factor, strict=True):
        alone, _ = factorise(matrix, tolerance=1e-8)
        torch.testing.assert_close(member[:, : alone.shape[-1]], alone)
        assert not member[:, alone.shape[-1] :].any()  # finished members get zero columns


def test_pivoted_cholesky_keeps_to_its_rank_and_takes_the_greedy_pivot():
    matrix = torch.diag(torch.tensor([1.0, 5.0, 3.0], dtype=torch.float64))
    factor, pivots = factorise(matrix, tolerance=0.0, max_rank=2)
    assert pivots.tolist() == [1, 2]
    assert factor.shape == (3, 2)


def test_pivoted_cholesky_grows_past_its_first_block():
    matrix = torch.eye(100, dtype=torch.float64)
    factor, _ = factorise(matrix, tolerance=0.0)
    torch.testing.assert_close(factor @ factor.mT, matrix)


def test_pivoted_cholesky_of_matrices_of_lower_rank_is_finite_at_tolerance_zero():
    ones, eye = torch.ones(4, 4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    matrix = torch.stack([ones, eye, torch.zeros_like(eye)])
    factor, _ = factorise(matrix, tolerance=0.0)
    torch.testing.assert_close(factor @ factor.mT, matrix)


def test_pivoted_cholesky_of_zero_has_rank_zero():
    factor, pivots = factorise(torch.zeros(2, 3, 3, dtype=torch.float64), tolerance=1e-10)
    assert factor.shape == (2, 3, 0)
    assert pivots.shape == (2, 0)
