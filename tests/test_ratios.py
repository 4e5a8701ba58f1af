"""Density ratios against plain loops, brute-force leave-one-out and the ratio of two Gaussians."""

import math

import numpy as np
import pytest
import reference
import torch

from kbr import Embedding, ExactRatio, KbrError, KuLSIF, RuLSIF
from kbr.core.features import Features, Identity, PivotedCholesky, RandomFourier
from kbr.core.kernels import Gaussian, Laplace
from kbr.core.ratios import kulsif_leave_one_out

KERNELS = [
    (Gaussian(bandwidth=0.8), reference.gaussian(0.8)),
    (Laplace(bandwidth=2.0), reference.laplace(2.0)),
]


def points(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spanning(kernel, z, prior):
    """Exact features of both sets of points, those of z as training points."""
    both = PivotedCholesky(kernel=kernel, tolerance=1e-15).fit(torch.cat([z, prior], -2))
    return Features(both.train[: len(z)], both.function, kernel)


@pytest.mark.parametrize(("kernel", "formula"), KERNELS)
@pytest.mark.parametrize("eta", [1e-3, 0.2])
def test_kulsif_is_step_two_of_algorithm_one(kernel, formula, eta):
    """Also for signed weights that do not sum to one, as posteriors have."""
    z, prior = points(0, 25, 2), Embedding(0.5 * points(1, 12, 2), points(2, 12))
    made = KuLSIF(eta=eta)(PivotedCholesky(kernel=kernel).fit(z), z, prior)
    expected = reference.kulsif(
        formula, z.numpy(), prior.points.numpy(), prior.weights.numpy(), eta
    )
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("kernel", "formula"), KERNELS)
def test_kulsif_off_the_training_points_is_kanamoris_formula(kernel, formula):
    z, prior, grid = points(0, 20, 2), Embedding.from_samples(points(1, 15, 2)), points(2, 6, 2)
    arrays = (z.numpy(), prior.points.numpy(), prior.weights.numpy(), 0.05)
    features = spanning(kernel, z, prior.points)
    expected = reference.kulsif_at(formula, *arrays, grid.numpy())
    np.testing.assert_allclose(KuLSIF(eta=0.05).at(features, grid, prior), expected, atol=1e-8)
    at_train = reference.kulsif_at(formula, *arrays, z.numpy())
    np.testing.assert_allclose(at_train, reference.kulsif(formula, *arrays), atol=1e-10)
    np.testing.assert_allclose(KuLSIF(eta=0.05)(features, z, prior), at_train, atol=1e-8)


def test_kulsif_takes_batches_and_one_eta_for_each():
    z, prior = points(0, 3, 20, 2), Embedding(points(1, 3, 8, 2), points(2, 3, 8))
    eta = torch.tensor([1e-3, 1e-2, 1e-1], dtype=torch.float64)
    chosen = PivotedCholesky()
    batched = KuLSIF(eta=eta)(chosen.fit(z), z, prior)
    for i in range(3):
        alone = KuLSIF(eta=float(eta[i]))(
            chosen.fit(z[i]), z[i], Embedding(prior.points[i], prior.weights[i])
        )
        torch.testing.assert_close(batched[i], alone, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("n", "m"), [(12, 12), (12, 7), (7, 12)])
@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("source", ["gaussian", "laplace", "fourier"])
def test_leave_one_out_is_that_of_fitting_again(n, m, uniform, source):
    z, there = points(0, n, 2), 0.7 * points(1, m, 2) + 0.3
    weights = torch.full((m,), 1 / m).double() if uniform else points(2, m).abs()
    if source == "fourier":
        fourier = RandomFourier(kernel=Gaussian(bandwidth=1.0), n_features=20)
        features, w = fourier.fit(z), fourier.frequencies(2).numpy()

        def formula(a, b):
            return np.cos((a - b) @ w).mean()
    else:
        kernel, formula = KERNELS[source == "laplace"]
        features = spanning(kernel, z, there)
    etas = [1e-2, 0.1, 1.0]
    scores = kulsif_leave_one_out(features.train, features(there), weights, etas)
    expected = [
        reference.kulsif_leave_one_out(formula, z.numpy(), there.numpy(), weights.numpy(), eta)
        for eta in etas
    ]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-8)


def test_the_choice_of_eta_minimises_the_score_for_each_batch_member():
    z, prior = points(0, 4, 30, 1), Embedding.from_samples(0.7 * points(1, 4, 20, 1))
    features = PivotedCholesky().fit(z)
    ratio = KuLSIF(etas=(1e-4, 1e-2, 1.0))
    scores = kulsif_leave_one_out(features.train, features(prior.points), prior.weights, ratio.etas)
    chosen = ratio.select(features, prior)
    assert chosen.eta.tolist() == [ratio.etas[i] for i in scores.argmin(0)]
    assert KuLSIF(eta=0.3).select(features, prior).eta == 0.3
    torch.testing.assert_close(ratio(features, z, prior), chosen(features, z, prior))


@pytest.mark.parametrize(("n", "m"), [(1, 5), (5, 1), (1, 1)])
def test_one_point_leaves_nothing_out_and_takes_the_middle_of_the_grid(n, m):
    z, prior = points(0, n, 2), Embedding.from_samples(points(1, m, 2))
    features = PivotedCholesky().fit(z)
    assert KuLSIF(etas=(1.0, 1e-4, 1e-2)).select(features, prior).eta == 1e-2
    assert KuLSIF()(features, z, prior).isfinite().all()
    with pytest.raises(KbrError, match="at least 2 training points and 2 prior points"):
        kulsif_leave_one_out(features.train, features(prior.points), prior.weights, [1.0])


@pytest.mark.parametrize("weights", [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, -1.0, 0.0]])
def test_eta_is_chosen_from_priors_with_all_weight_on_one_point(weights):
    z, prior = points(0, 2, 1), Embedding.from_samples(points(1, 3, 1), weights)
    features = PivotedCholesky().fit(z)
    scores = kulsif_leave_one_out(
        features.train, features(prior.points), prior.nonnegative().weights, [1e-7, 1.0]
    )
    assert scores.isfinite().all()
    assert KuLSIF()(features, z, prior).isfinite().all()


def gaussian_ratio_error(n, seed):
    """Sup error over [-3, 3] of KuLSIF for N(0, 1) against N(0, 2) from n samples of each."""
    generator = torch.Generator().manual_seed(seed)
    z, there = torch.randn(2, n, 1, dtype=torch.float64, generator=generator)
    features = PivotedCholesky(kernel=Gaussian(bandwidth=math.sqrt(2)), tolerance=1e-10)
    grid = torch.linspace(-3, 3, 121, dtype=torch.float64)
    made = KuLSIF(eta=0.5 * n**-0.5).at(
        features.fit(math.sqrt(2) * z), grid.unsqueeze(-1), Embedding.from_samples(there)
    )
    return float((made - math.sqrt(2) * torch.exp(-grid.square() / 4)).abs().max())


def test_kulsif_approaches_the_ratio_of_two_gaussians():
    """Appendix A of the paper: pi/p = sqrt(2) k(z, 0), in the space of k = exp(-(z - z')^2 / 4)."""
    few, more, many = (
        sum(gaussian_ratio_error(n, seed) for seed in range(6)) / 6 for n in (100, 700, 5000)
    )
    assert few > 1.4 * more
    assert more > 1.4 * many
    assert many < 0.1


def test_relative_ratio_with_alpha_zero_is_kulsif():
    z, prior = points(0, 3, 20, 2), Embedding.from_samples(points(1, 3, 9, 2))
    features = PivotedCholesky().fit(z)
    torch.testing.assert_close(
        RuLSIF(eta=0.1, alpha=0.0)(features, z, prior), KuLSIF(eta=0.1)(features, z, prior)
    )


def test_relative_ratio_is_the_minimiser_of_its_objective():
    """Of alpha/2 E_pi r^2 + (1 - alpha)/2 E_p r^2 - E_pi r + eta/2 |r|^2, by its gradient."""
    z, prior = points(0, 20, 2), Embedding(points(1, 9, 2), torch.softmax(points(2, 9), 0))
    alpha, eta = 0.3, 0.05
    features = Identity().fit(z)
    ratio = RuLSIF(eta=eta, alpha=alpha)(features, z, prior)
    beta = torch.linalg.lstsq(z, ratio.unsqueeze(-1)).solution.squeeze(-1).requires_grad_()
    at_prior, at_train = prior.points @ beta, z @ beta
    objective = (
        0.5 * alpha * (prior.weights * at_prior.square()).sum()
        + 0.5 * (1 - alpha) * at_train.square().mean()
        - (prior.weights * at_prior).sum()
        + 0.5 * eta * beta.square().sum()
    )
    objective.backward()
    assert beta.grad.abs().max() < 1e-10


def test_relative_ratio_is_bounded_where_the_ratio_is_not():
    """pi = N(0, 4) against p = N(0, 1): pi/p has no bound, its relative version 1/alpha."""
    z, prior = points(0, 2000, 1), Embedding.from_samples(2 * points(1, 2000, 1))
    features = PivotedCholesky(kernel=Gaussian(bandwidth=1.0), tolerance=1e-10).fit(z)
    relative = RuLSIF(eta=1e-3, alpha=0.5)(features, z, prior)
    density = [torch.exp(-(z[:, 0] ** 2) / (2 * v)) / math.sqrt(v) for v in (4, 1)]
    exact = density[0] / (0.5 * density[0] + 0.5 * density[1])
    assert relative.max() < 2.3
    assert (relative - exact).abs().mean() < 0.1


def test_exact_ratio_is_the_function_at_the_training_points():
    z, prior = points(0, 2, 5, 3), Embedding.from_samples(points(1, 2, 4, 3))
    ratio = ExactRatio(function=lambda z: z.square().sum(-1))
    torch.testing.assert_close(ratio(Identity().fit(z), z, prior), z.square().sum(-1))


def test_signed_priors_keep_the_relative_ratio_defined():
    z, prior = points(0, 20, 2), Embedding(points(1, 9, 2), points(2, 9))
    made = RuLSIF(eta=1e-4, alpha=0.9)(PivotedCholesky().fit(z), z, prior)
    assert made.isfinite().all()
