"""Weighted embeddings: moments, expectations, inner products, herding."""

import numpy as np
import pytest
import reference
import torch

from kbr import Embedding, KbrError, RandomFourier
from kbr.core.kernels import Gaussian, Laplace


def points(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def test_samples_weigh_the_same_unless_told():
    made = Embedding.from_samples(points(0, 3, 5, 2))
    torch.testing.assert_close(made.weights, torch.full((3, 5), 0.2, dtype=torch.float64))
    assert Embedding.from_samples([1.0, 2.0, 3.0]).mean.tolist() == [2.0]
    given = Embedding.from_samples(np.eye(2, dtype=np.float32), [0.25, 0.75])
    assert given.weights.dtype == torch.float32
    assert given.mean.tolist() == [0.25, 0.75]


def test_moments_are_those_of_numpy():
    z, w = points(0, 50, 3), points(1, 50).abs()
    made = Embedding(z, w)
    np.testing.assert_allclose(made.mean, sum(w_ * z_ for w_, z_ in zip(w, z, strict=True)))
    np.testing.assert_allclose(made.cov, np.cov(z.numpy().T, aweights=w.numpy(), ddof=0))


def test_moments_broadcast_weights_over_points():
    z, w = points(0, 1, 20, 2), points(1, 4, 20).abs()
    many = Embedding(z, w)
    for q in range(4):
        one = Embedding(z[0], w[q])
        torch.testing.assert_close(many.mean[q], one.mean)
        torch.testing.assert_close(many.cov[q], one.cov)
        torch.testing.assert_close(many.sample(5)[q], one.sample(5))
        square = many.expect(lambda z: z.square())[q]
        torch.testing.assert_close(square, one.expect(lambda z: z.square()))


def test_covariance_keeps_its_digits_far_from_the_origin():
    z, w = points(0, 50, 2), points(1, 50).abs()
    torch.testing.assert_close(Embedding(z + 1e7, w).cov, Embedding(z, w).cov, rtol=1e-6, atol=0)


def test_covariance_of_signed_weights_is_positive_semi_definite():
    cov = Embedding(points(0, 20, 30, 3), points(1, 20, 30)).cov
    assert cov.isfinite().all()
    assert torch.linalg.eigvalsh(cov).min() > -1e-9 * cov.abs().max()


@pytest.mark.parametrize("weights", [torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0])])
def test_weights_without_a_total_never_yield_nan(weights):
    made = Embedding(points(0, 4, 2), weights.double())
    proper = made.nonnegative()
    answers = (made.mean, made.cov, made.effective_sample_size, made.sample(3), proper.weights)
    assert all(answer.isfinite().all() for answer in answers)
    torch.testing.assert_close(proper.weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_expectation_of_numbers_rows_and_events():
    z, w = points(0, 2, 9, 2), points(1, 2, 9)
    made = Embedding(z, w)
    torch.testing.assert_close(made.expect(lambda z: z), made.mean)
    torch.testing.assert_close(made.expect(lambda z: z[..., 0]), made.mean[..., 0])
    event = made.expect(lambda z: z[..., 0] > 0)
    torch.testing.assert_close(event, (w * (z[..., 0] > 0)).sum(-1))


def test_effective_sample_size_counts_equal_weights():
    z = points(0, 4, 1)
    assert Embedding.from_samples(z).effective_sample_size == 4
    assert Embedding(z, torch.tensor([2.0, 2.0, 0, 0]).double()).effective_sample_size == 2


def test_the_nonnegative_version_is_a_distribution():
    proper = Embedding(points(0, 3, 1), torch.tensor([3.0, -1.0, 1.0])).nonnegative()
    torch.testing.assert_close(proper.weights, torch.tensor([0.75, 0.0, 0.25]))


def test_the_inner_product_is_a_double_sum():
    a, b = Embedding(points(0, 6, 2), points(1, 6)), Embedding(points(2, 4, 2), points(3, 4))
    gram = reference.gram(reference.laplace(0.7), a.points.numpy(), b.points.numpy())
    expected = sum(a.weights[i] * b.weights[j] * gram[i, j] for i in range(6) for j in range(4))
    kernel = Laplace(bandwidth=0.7)
    np.testing.assert_allclose(a.inner(b, kernel), expected, rtol=1e-10)
    np.testing.assert_allclose(b.inner(a, kernel), expected, rtol=1e-10)


def test_mmd_is_zero_for_the_same_distribution_only():
    z = points(0, 30, 2)
    made = Embedding.from_samples(z)
    assert made.mmd(made) < 1e-7
    shuffled = Embedding.from_samples(z[torch.randperm(30)])
    doubled = Embedding.from_samples(torch.cat([z, z]))
    assert made.mmd(shuffled) < 1e-7
    assert made.mmd(doubled) < 1e-7
    assert made.mmd(Embedding.from_samples(z + 0.1)) > 0.01
    heavier = Embedding(z, torch.softmax(points(1, 30), 0))
    assert made.mmd(heavier) > 0.01


def test_mmd_of_a_shift_follows_the_formula_of_two_points():
    a, b = Embedding.from_samples([[0.0]]), Embedding.from_samples([[1.5]])
    expected = (2 - 2 * np.exp(-(1.5**2) / 2)) ** 0.5
    np.testing.assert_allclose(a.mmd(b, Gaussian(bandwidth=1.0)), expected)


def test_mmd_falls_with_the_number_of_samples():
    kernel, large = Gaussian(bandwidth=1.0), Embedding.from_samples(points(0, 3000, 1))
    errors = [float(large.mmd(Embedding.from_samples(points(1, n, 1)), kernel)) for n in (20, 2000)]
    assert errors[1] < 0.3 * errors[0]


def test_embeddings_of_different_precision_meet_in_the_finer_one():
    coarse = Embedding.from_samples(points(0, 8, 2, dtype=torch.float32))  # 1/8: exact in both
    fine = Embedding.from_samples(coarse.points.double())
    assert fine.mmd(coarse) < 1e-7  # the root of float64's rounding, 4e-4 is that of float32's
    assert coarse.mmd(fine) < 1e-7
    assert coarse.inner(fine).dtype == coarse.mmd(fine).dtype == torch.float64


def test_herded_samples_track_the_mean_and_the_embedding():
    target = Embedding(points(0, 200, 2), torch.softmax(3 * points(1, 200), 0))
    kernel = Gaussian(bandwidth=1.0)
    distance, mean = [], []
    for n in (5, 50, 500):
        herd = Embedding.from_samples(target.sample(n, kernel))
        distance.append(float(target.mmd(herd, kernel)))
        mean.append(float((herd.mean - target.mean).norm()))
    assert mean[2] < 0.02
    assert mean[0] > mean[1] > mean[2]
    # Herding is faster than the n^-1/2 of random draws: 100 times the samples, 20 times nearer.
    assert distance[2] < distance[0] / 20


def test_herding_draws_from_the_points_and_repeats_itself():
    target = Embedding(points(0, 3, 10, 2), points(1, 3, 10))
    drawn = target.sample(4)
    assert drawn.shape == (3, 4, 2)
    assert torch.equal(drawn, target.sample(4))
    for batch in range(3):
        for row in drawn[batch]:
            assert (target.points[batch] == row).all(-1).any()
    with pytest.raises(KbrError, match="at least 1"):
        target.sample(0)


def test_coordinates_in_a_feature_space_give_the_inner_product():
    z = points(0, 20, 2)
    features = RandomFourier(n_features=64).fit(z)
    a, b = Embedding(z, points(1, 20)), Embedding.from_samples(points(2, 7, 2).float())
    m = a.project(features)
    torch.testing.assert_close(m, (a.weights.unsqueeze(-1) * features.train).sum(0))
    assert b.project(features).dtype == torch.float64
