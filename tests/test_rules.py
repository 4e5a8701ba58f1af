"""Both rules: plain loops, Gram form and feature form agree; the posterior converges."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import reference
import torch

from kbr import (
    Embedding,
    ExactRatio,
    Identity,
    ImportanceWeightedRule,
    KuLSIF,
    OriginalRule,
    PivotedCholesky,
    RandomFourier,
    RuLSIF,
)
from kbr.core.datasets.gaussian import GaussianTask
from kbr.core.kernels import Gaussian, Laplace
from kbr.core.rules import normalize_ratio

PAPER = ImportanceWeightedRule(normalize=False, ratio=KuLSIF(eta=0.05), lam=0.01)
ORIGINAL = OriginalRule(ratio=KuLSIF(eta=0.05), lam=1e-3)
RULES = [
    pytest.param(PAPER, reference.importance_weighted, id="importance-weighted"),
    pytest.param(ORIGINAL, reference.original, id="original"),
]


def importance_weighted(psi, query, ratio, *, lam, form="auto"):
    return replace(PAPER, lam=lam, form=form).weights(psi, query, ratio)


def original(psi, query, ratio, *, lam, form="auto"):
    return replace(ORIGINAL, lam=lam, form=form).weights(psi, query, ratio)


FUNCTIONS = [
    pytest.param(importance_weighted, reference.importance_weighted, id="importance-weighted"),
    pytest.param(original, reference.original, id="original"),
]


def points(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_loops(function, rule, x, z, prior, queries):
    """Weights [q n] of one training set by the reference, bandwidths by the median rule."""
    x, z = x.numpy(), z.numpy()
    there, weights = prior.points.numpy(), prior.weights.numpy()
    kernel_x = reference.gaussian(reference.median_distance(x))
    kernel_z = reference.gaussian(reference.median_distance(z))
    ratio = reference.kulsif(kernel_z, z, there, weights, rule.ratio.eta)
    return np.stack([function(kernel_x, x, q, ratio, rule.lam) for q in queries.numpy()])


def problem(*batch, n=24, m=15, q=5):
    """Observations of a latent, a signed prior, and observations to condition on."""
    z = points(0, *batch, n, 2)
    x = z @ points(1, 2, 3) + 0.3 * points(2, *batch, n, 3)
    prior = Embedding(0.6 * points(3, *batch, m, 2) + 0.3, points(4, *batch, m) + 1)
    return x, z, prior, 1.2 * points(5, *batch, q, 3)


@pytest.mark.parametrize(("rule", "function"), RULES)
@pytest.mark.parametrize("form", ["auto", "gram", "feature"])
def test_posterior_equals_plain_loops(rule, function, form):
    x, z, prior, queries = problem()
    fitted = replace(rule, form=form).fit(x, z)
    expected = by_loops(function, rule, x, z, prior, queries)
    many = fitted.posterior(queries, prior)
    np.testing.assert_allclose(many.weights, expected, rtol=0, atol=1e-8)
    for query, row in zip(queries, expected, strict=True):
        one = fitted.posterior(query, prior)
        assert one.weights.shape == (24,)
        np.testing.assert_allclose(one.weights, row, rtol=0, atol=1e-8)
    np.testing.assert_allclose(many.mean, expected @ z.numpy(), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("rule", "function"), RULES)
@pytest.mark.parametrize("form", ["auto", "gram", "feature"])
@pytest.mark.parametrize("batch", [(3,), (2, 2)])
def test_batched_posterior_equals_plain_loops(rule, function, form, batch):
    x, z, prior, queries = problem(*batch)
    fitted = replace(rule, form=form).fit(x, z)
    many = fitted.posterior(queries, prior)
    single = fitted.posterior(queries[..., 0, :], prior)
    assert many.weights.shape == (*batch, 5, 24)
    assert many.mean.shape == (*batch, 5, 2)
    assert many.cov.shape == (*batch, 5, 2, 2)
    assert single.mean.shape == (*batch, 2)
    for i in np.ndindex(batch):
        alone = Embedding(prior.points[i], prior.weights[i])
        expected = by_loops(function, rule, x[i], z[i], alone, queries[i])
        np.testing.assert_allclose(many.weights[i], expected, rtol=0, atol=1e-8)
        np.testing.assert_allclose(single.weights[i], expected[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize(("function", "loops"), FUNCTIONS)
@pytest.mark.parametrize("d", [4, 40])
def test_gram_form_equals_feature_form_and_loops_for_finite_features(function, loops, d):
    """The n x n and the d x d solve are one posterior (push-through), d below and above n."""
    psi, query, ratio = points(0, 2, 20, d), points(1, 2, 3, d), points(2, 2, 20) + 0.5
    forms = [function(psi, query, ratio, lam=0.01, form=f) for f in ("auto", "gram", "feature")]
    for i in range(2):
        expected = np.stack(
            [loops(np.dot, psi[i].numpy(), q, ratio[i].numpy(), 0.01) for q in query[i].numpy()]
        )
        for made in forms:
            np.testing.assert_allclose(made[i].mT, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("function", "loops"), FUNCTIONS)
def test_one_ridge_for_each_batch_member(function, loops):
    psi, query, ratio = points(0, 3, 10, 4), points(1, 3, 2, 4), points(2, 3, 10)
    lam = torch.tensor([1e-3, 1e-2, 1e-1], dtype=torch.float64)
    for form in ("gram", "feature"):
        batched = function(psi, query, ratio, lam=lam, form=form)
        for i in range(3):
            alone = function(psi[i], query[i], ratio[i], lam=float(lam[i]), form=form)
            torch.testing.assert_close(batched[i], alone)


@pytest.mark.parametrize(("rule", "function"), RULES)
@pytest.mark.parametrize("kernel", [Gaussian(bandwidth=1.5), Laplace(bandwidth=3.0)])
def test_active_points_alone_give_the_same_posterior(rule, function, kernel):
    """Points with ratio zero have weight zero, whether or not they are part of the solve."""
    x, query = points(0, 20, 2), points(1, 1, 2)
    ratio = points(2, 20).clamp_min(0)
    features = PivotedCholesky(kernel=kernel).fit(x)
    full = rule.weights(features.train, features(query), ratio)[:, 0]
    active = ratio > 0
    lam = torch.tensor(rule.lam, dtype=torch.float64)
    gram, cross = kernel(x[active], x[active]), kernel(x[active], query)
    part = rule.gram_weights(gram, cross, ratio[active], 20, lam)[:, 0]
    torch.testing.assert_close(full[active], part, rtol=0, atol=1e-8)
    assert full[~active].abs().max() < 1e-12


def test_the_importance_weighted_operator_minimises_its_loss():
    """Equation (5) of the paper: the gradient of the weighted ridge regression is zero."""
    psi, phi, r = points(0, 30, 4), points(1, 30, 3), points(2, 30).abs()
    lam = 0.07
    weights = importance_weighted(psi, torch.eye(4).double(), r, lam=lam)
    operator = (weights.mT @ phi).requires_grad_()  # E* e_k = sum_i w_i(e_k) phi_i
    fit = phi - psi @ operator
    loss = (r * fit.square().sum(-1)).mean() + lam * operator.square().sum()
    loss.backward()
    assert operator.grad.abs().max() < 1e-10


def test_negative_ratios_count_in_the_original_rule_only():
    psi, query, ratio = points(0, 20, 4), points(1, 1, 4), points(2, 20)
    cut = ratio.clamp_min(0)
    same = importance_weighted(psi, query, ratio, lam=0.1)
    torch.testing.assert_close(same, importance_weighted(psi, query, cut, lam=0.1))
    assert not torch.allclose(
        original(psi, query, ratio, lam=0.1), original(psi, query, cut, lam=0.1)
    )


def test_the_true_ratio_of_a_prior_like_the_data_is_kernel_ridge_regression():
    x, z, prior, queries = problem()
    rule = replace(PAPER, ratio=ExactRatio(function=lambda z: torch.ones(z.shape[:-1]).double()))
    made = rule.fit(x, z).posterior(queries, prior)
    kernel = reference.gaussian(reference.median_distance(x.numpy()))
    gram = reference.gram(kernel, x.numpy(), x.numpy())
    cross = reference.gram(kernel, x.numpy(), queries.numpy())
    expected = np.linalg.solve(gram + 24 * 0.01 * np.eye(24), cross).T
    np.testing.assert_allclose(made.weights, expected, atol=1e-8)


def test_normalized_weights_sum_to_one_and_do_not_know_the_scale_of_the_ratio():
    x, z, prior, queries = problem(2)
    rule = replace(PAPER, normalize=True)
    made = rule.fit(x, z).posterior(queries, prior)
    torch.testing.assert_close(made.weights.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    heavier = Embedding(prior.points, 7 * prior.weights)
    again = rule.fit(x, z).posterior(queries, heavier)
    torch.testing.assert_close(made.weights, again.weights)
    ratio = normalize_ratio(points(0, 4, 9))
    assert ratio.min() >= 0
    torch.testing.assert_close(ratio.mean(-1), torch.ones(4, dtype=torch.float64))


def test_an_observation_without_evidence_answers_with_the_prior():
    x, z, prior, _ = problem()
    rule = replace(PAPER, normalize=True)
    fitted = rule.fit(x, z)
    far = fitted.posterior(torch.full((3,), 1e4, dtype=torch.float64), prior)
    ratio = normalize_ratio(rule.ratio(fitted.z, z, prior))
    torch.testing.assert_close(far.weights, ratio / 24)


def test_inputs_of_any_kind_and_shape_give_one_answer():
    x, z, prior, queries = problem()
    expected = PAPER.fit(x, z).posterior(queries, prior).weights
    arrays = PAPER.fit(x.numpy().reshape(24, 3, 1), z.numpy())
    torch.testing.assert_close(
        arrays.posterior(queries.numpy()[..., None], prior).weights, expected
    )
    lists = PAPER.fit(x.tolist(), z.tolist())
    torch.testing.assert_close(lists.posterior(queries.tolist(), prior).weights, expected)
    numbers = PAPER.fit(x[:, 0].tolist(), z[:, 0].tolist())
    assert numbers.posterior([0.5, 1.0], Embedding.from_samples([0.0, 1.0])).mean.shape == (2, 1)
    assert numbers.posterior(np.array(0.5), Embedding.from_samples([0.0, 1.0])).mean.shape == (1,)


@pytest.mark.parametrize("kernel_z", [Gaussian(), RandomFourier(), Identity()])
def test_priors_of_another_precision_are_welcome(kernel_z):
    x, z, prior, queries = problem()
    coarse = Embedding(prior.points.float(), prior.weights.float())
    fitted = replace(PAPER, kernel_z=kernel_z).fit(x.float(), z.float())
    made = fitted.posterior(queries.float(), coarse)
    assert made.weights.dtype == torch.float64
    exact = fitted.posterior(queries, prior).weights
    torch.testing.assert_close(made.weights, exact, rtol=0, atol=1e-4)


def test_one_prior_serves_every_batch_member():
    x, z, _, queries = problem(3)
    prior = Embedding.from_samples(points(9, 6, 2))
    batched = PAPER.fit(x, z).posterior(queries, prior)
    for i in range(3):
        alone = PAPER.fit(x[i], z[i]).posterior(queries[i], prior)
        torch.testing.assert_close(batched.weights[i], alone.weights, rtol=0, atol=1e-8)


def test_a_posterior_is_the_prior_of_the_next_update():
    x, z, prior, queries = problem()
    fitted = PAPER.fit(x, z)
    first = fitted.posterior(queries[0], prior)
    second = fitted.posterior(queries[1], first)
    expected = by_loops(reference.importance_weighted, PAPER, x, z, first, queries[1:2])
    np.testing.assert_allclose(second.weights, expected[0], rtol=0, atol=1e-8)


def posterior_error(dim, n, seeds=range(4)):
    """Errors of mean (squared), covariance and P(z_1 > 0), averaged over queries and seeds."""
    chosen = PivotedCholesky(kernel=Gaussian(bandwidth=2.0), tolerance=1e-10)
    ridge = 0.2 * n**-0.5
    rule = ImportanceWeightedRule(
        kernel_x=chosen, kernel_z=chosen, ratio=KuLSIF(eta=ridge), lam=ridge
    )
    errors = []
    for seed in seeds:
        task = GaussianTask(dim=dim, n_train=n, n_prior=n, n_test=50)
        data = task.generate(torch.Generator().manual_seed(seed))
        prior = Embedding.from_samples(data.z_prior)
        made = rule.fit(data.x_train, data.z_train).posterior(data.x_test, prior)
        deviations = data.mean[:, 0] / data.cov[0, 0].sqrt()
        chance = torch.special.ndtr(deviations)
        event = made.expect(lambda z: z[..., 0] > 0)
        errors.append(
            [
                float((made.mean - data.mean).square().sum(-1).mean()),
                float((made.cov - data.cov).abs().amax((-2, -1)).mean()),
                float((event - chance).abs().mean()),
            ]
        )
    return np.mean(errors, 0)


@pytest.mark.parametrize(
    ("dim", "sizes", "bounds"),
    [(1, (200, 3000, 20000), (0.001, 0.03, 0.01)), (2, (200, 3000), (0.03, 0.2, 0.05))],
)
def test_the_posterior_converges_to_the_exact_one(dim, sizes, bounds):
    errors = [posterior_error(dim, n) for n in sizes]
    for fewer, more in pairwise(errors):
        assert (more < 0.6 * fewer).all()
    assert (errors[-1] < bounds).all()


X, Z = points(20, 6, 2), points(21, 6, 2)
DEGENERATE = [
    pytest.param(X[:1], Z[:1], id="n=1"),
    pytest.param(torch.ones(6, 2), Z, id="constant-x"),
    pytest.param(X, torch.ones(6, 2), id="constant-z"),
    pytest.param(torch.zeros(6, 2), torch.zeros(6, 2), id="all-zero"),
    pytest.param(X.repeat(3, 1), Z.repeat(3, 1), id="duplicated"),
]


@pytest.mark.parametrize(("x", "z"), DEGENERATE)
@pytest.mark.parametrize(
    "ratio",
    [
        KuLSIF(eta=1e-6),
        KuLSIF(),
        RuLSIF(eta=1e-6),
        ExactRatio(function=lambda z: torch.zeros(z.shape[:-1]).double()),
    ],
    ids=["kulsif", "tuned", "rulsif", "zero"],
)
@pytest.mark.parametrize(
    "rule",
    [
        ImportanceWeightedRule(lam=1e-6),
        ImportanceWeightedRule(lam=1e-6, normalize=False),
        OriginalRule(lam=1e-9),
    ],
    ids=["normalized", "paper", "original"],
)
@pytest.mark.parametrize("kernel", [Gaussian(), Identity()], ids=["gaussian", "identity"])
def test_degenerate_data_never_yields_nan(x, z, ratio, rule, kernel):
    queries = torch.cat([x[:2].double(), torch.tensor([[1e6, -1e6]]).double()])
    for form in ("gram", "feature"):
        chosen = replace(rule, kernel_x=kernel, kernel_z=kernel, ratio=ratio, form=form)
        for prior in (Embedding.from_samples(Z + 50), Embedding.from_samples(z.double())):
            made = chosen.fit(x, z).posterior(queries, prior)
            for answer in (made.weights, made.mean, made.cov, made.sample(2), made.mmd(made)):
                assert answer.isfinite().all()


@pytest.mark.parametrize("rule", [ImportanceWeightedRule(lam=1e-3), OriginalRule(lam=1e-6)])
@pytest.mark.parametrize("kernel", [Gaussian(), Laplace()], ids=["gaussian", "laplace"])
def test_units_and_offsets_of_the_data_do_not_matter(rule, kernel):
    x, z, prior, queries = problem()
    chosen = replace(rule, kernel_x=kernel, kernel_z=kernel, ratio=KuLSIF(eta=1e-3))
    plain = chosen.fit(x, z).posterior(queries, prior).weights
    small = Embedding(1e-8 * prior.points, prior.weights)
    moved = chosen.fit(x + 1e6, 1e-8 * z).posterior(queries + 1e6, small).weights
    torch.testing.assert_close(moved, plain, rtol=0, atol=1e-5)
