"""A density ratio of the user's own in a filter, by its method `for_filter`."""

from dataclasses import dataclass

import pytest
import torch

from kbr import ExactRatio, ImportanceWeightedRule, KbrError, KernelBayesFilter, KuLSIF, RuLSIF
from kbr.core.datasets.dynamics import Rotation
from kbr.core.embedding import Embedding
from kbr.core.features import Features
from kbr.core.linalg import ridge_cholesky, ridge_solve
from kbr.core.tables import weighted_gram


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterRuLSIF(RuLSIF):
    """The relative ratio of predictions: its matrix is a mixture with the prediction's own."""

    def for_filter(self, phi, eta):
        marginal = (1 - self.alpha) * phi.mT @ phi / phi.shape[-2]

        def ratio(m, weights):
            a = weights().clamp_min(0)
            a = a / a.sum(-1, keepdim=True)
            second = self.alpha * weighted_gram(a, phi) + marginal.unsqueeze(-3)
            beta = ridge_solve(second, m.unsqueeze(-1), ridge=eta.unsqueeze(-1)).squeeze(-1)
            return beta @ phi.mT

        return ratio


@dataclass(frozen=True, kw_only=True, eq=False)
class Same:
    """KuLSIF once more, from its formula; eta is the filter's."""

    def __call__(self, features, points, prior):
        raise NotImplementedError

    def for_filter(self, phi, eta):
        factor = ridge_cholesky(phi.mT @ phi / phi.shape[-2], ridge=eta)
        return lambda m, weights: torch.cholesky_solve(m.mT, factor).mT @ phi.mT


def fixed(ratio, **settings):
    rule = ImportanceWeightedRule(lam=1e-2, ratio=ratio)
    return KernelBayesFilter(rule=rule, scales=(1.0,), **settings)


@pytest.fixture(scope="module")
def data():
    return Rotation().generate(n_train=120, n_test=20, seed=0)


@pytest.mark.parametrize("ratio", [Same(), FilterRuLSIF(eta=1e-3, alpha=0.0)])
def test_a_ratio_that_is_kulsif_filters_like_kulsif(data, ratio):
    x = data.x_test.clone()
    x[5:8] = torch.nan
    filters = [fixed(r, eta=1e-3).fit(data.x_train, data.z_train) for r in (KuLSIF(), ratio)]
    for run in ("filter", "smooth"):
        expected, answer = (getattr(filt, run)(x) for filt in filters)
        torch.testing.assert_close(answer.mean, expected.mean, rtol=0, atol=1e-7)
        torch.testing.assert_close(answer.cov, expected.cov, rtol=0, atol=1e-6)


def test_the_ratio_of_each_prediction_is_that_of_its_embedding(data):
    """The method, given coordinates and weights, equals the estimator on the embedding itself."""
    ratio = FilterRuLSIF(eta=1e-2, alpha=0.5)
    filt = fixed(ratio).fit(data.x_train, data.z_train)
    assert float(filt.choice.eta) == 1e-2
    operators, z = filt.operators, filt.operators.points
    belief = filt.step(filt.step(filt.init(), data.x_test[0]), data.x_test[1])
    ahead = operators.ahead(belief.state.unsqueeze(0))
    features = Features(operators.phi, filt.fitted.latents)
    expected = RuLSIF(eta=1e-2, alpha=0.5)(features, z, Embedding(z, ahead.weights[0]))
    found = operators.ahead_ratio(belief.state.unsqueeze(0))[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert bool((found <= 2.2).all())  # 1 / alpha, but for the ridge
    streamed = filt.init()
    for x in data.x_test:
        streamed = filt.step(streamed, x)
    torch.testing.assert_close(streamed.mean, filt.filter(data.x_test).mean[-1])
    first = filt.step(filt.init(prior=data.z_train[:30]), data.x_test[0])
    assert bool(first.mean.isfinite().all())


def test_data_sets_together_equal_a_loop(data):
    several = [Rotation().generate(n_train=60, n_test=5, seed=seed) for seed in range(2)]
    x, z, x_test = (
        torch.stack([getattr(d, name) for d in several])
        for name in ("x_train", "z_train", "x_test")
    )
    together = fixed(FilterRuLSIF(eta=1e-2)).fit(x, z).filter(x_test).mean
    for k in range(2):
        alone = fixed(FilterRuLSIF(eta=1e-2)).fit(x[k], z[k]).filter(x_test[k]).mean
        torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-7)


def test_a_saved_filter_comes_back_by_the_same_settings(data):
    filt = fixed(FilterRuLSIF(eta=1e-2)).fit(data.x_train, data.z_train)
    again = fixed(FilterRuLSIF(eta=1e-2)).restore(filt.state())
    assert torch.equal(again.filter(data.x_test).mean, filt.filter(data.x_test).mean)
    with pytest.raises(KbrError, match="compress takes filters whose ratio is KuLSIF"):
        filt.compress(20)


def test_a_ratio_that_cannot_follow_predictions_says_what_it_needs(data):
    for ratio in (RuLSIF(eta=0.1), ExactRatio(function=lambda z: z[..., 0])):
        with pytest.raises(KbrError, match=r"for_filter\(phi, eta\).*got " + type(ratio).__name__):
            fixed(ratio)


def test_a_ratio_of_the_wrong_shape_is_refused(data):
    class Wrong(Same):
        def for_filter(self, phi, eta):
            return lambda m, weights: m

    with pytest.raises(KbrError, match=r"Wrong.for_filter must have the shape \[1, 80\]"):
        fixed(Wrong(), eta=1e-3).fit(data.x_train, data.z_train).filter(data.x_test)
