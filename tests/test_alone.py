"""One sequence alone takes another path than several together: the answers are the same."""

import pytest
import torch

from kbr import ImportanceWeightedRule, KernelBayesFilter
from kbr.core.datasets.dynamics import Rotation
from kbr.core.filters.kernel.engines.alone import is_alone, weights_alone
from kbr.core.linalg import quick_ridge_solve, ridge_solve
from kbr.core.tables import at_rows, by_feature, extended, sum_rows, weighted_gram

RULES = [ImportanceWeightedRule(lam=1e-2), ImportanceWeightedRule(lam=1e-2, normalize=False)]


@pytest.fixture(scope="module")
def data():
    return Rotation().generate(n_train=150, n_test=40, seed=0)


def fitted(data, rule, engine="auto"):
    return KernelBayesFilter(rule=rule, engine=engine, eta=1e-5, scales=(1.0,)).fit(
        data.x_train, data.z_train
    )


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("engine", ["low_rank", "compressed"])
@pytest.mark.parametrize("rule", RULES, ids=["iw", "iw_paper"])
def test_alone_is_as_together(data, rule, engine):
    """With missing rows, and with an observation that tells nothing."""
    filt, x = fitted(data, rule, engine), data.x_test.clone()
    x[[7, 8]], x[20] = torch.nan, 40.0
    one, two = filt.filter(x), filt.filter(torch.stack([x, x.flip(0)]))
    assert torch.equal(one.evidence, two.evidence[0])
    for name in ("mean", "cov", "effective_sample_size"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name)[0], rtol=1e-9, atol=1e-9)
    belief = filt.init()
    for t, row in enumerate(x):
        belief = filt.step(belief, row)
        torch.testing.assert_close(belief.mean, one.mean[t], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", RULES, ids=["iw", "iw_paper"])
def test_weights_are_those_of_the_rule(data, rule):
    """Whatever the ratio's scale; no positive ratio, or no evidence, is left to the rule."""
    filt = fitted(data, rule)
    operators, lam = filt.operators, filt.fitted.lam
    query = operators.observe(data.x_test[:1])
    ratio = 3 * normal(1, operators.n) + 1
    assert is_alone(operators.update, operators.rule, ratio, lam)
    made = weights_alone(operators.update, operators.rule, ratio, query, lam.item())
    r = operators.rule.effective_ratio(ratio)
    weights, total, usable = operators.posterior(r, query, lam)
    if usable or not rule.normalize:
        exact = weights / total.unsqueeze(-1) if rule.normalize else weights
        torch.testing.assert_close(made[0], exact, rtol=1e-9, atol=1e-12)
    else:
        assert made is None
    nothing = weights_alone(operators.update, operators.rule, -ratio.abs(), query, lam.item())
    assert nothing is None or not (rule.normalize or nothing[1])


def test_gradients_are_left_to_the_rule(data):
    filt = fitted(data, RULES[0])
    operators, lam = filt.operators, filt.fitted.lam
    ratio = normal(1, operators.n)
    assert not is_alone(operators.update, operators.rule, ratio, lam.clone().requires_grad_())
    assert not is_alone(operators.update, operators.rule, ratio.requires_grad_(), lam)
    assert not is_alone(operators.update, operators.rule, normal(2, operators.n), lam)


def test_answers_are_ordinary_tensors(data):
    """What is filtered without gradients can be used where there are some."""
    filt = fitted(data, RULES[0])
    parts = [*vars(filt.filter(data.x_test)).values(), *vars(filt.smooth(data.x_test)).values()]
    belief = filt.step(filt.init(), data.x_test[0])
    parts += [*vars(filt.step(belief, data.x_test[1])).values(), belief.mean, belief.cov]
    assert not any(isinstance(part, torch.Tensor) and part.is_inference() for part in parts)
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (filt.filter(data.x_test).mean @ weight).sum().backward()
    assert weight.grad is not None


def test_tables_by_feature_are_the_same_tables():
    table, weights, coords = normal(9, 4), normal(1, 9, seed=1), normal(1, 4, seed=2)
    other = by_feature(table)
    assert torch.equal(other, table)
    assert other.mT.is_contiguous()
    for made, exact in (
        (at_rows(coords, other), at_rows(coords, table)),
        (sum_rows(weights, other), sum_rows(weights, table)),
        (weighted_gram(weights, other), table.mT @ (weights.mT * table)[None]),
    ):
        torch.testing.assert_close(made, exact)
    for each in (table, other):
        longer = extended(each, 3)
        assert torch.equal(longer[:9], table)
        assert longer.shape == (12, 4)
    assert extended(other, 3).mT.is_contiguous()


def test_a_quick_solve_is_a_solve_or_nothing():
    points, right = normal(6, 3), normal(6, 1, seed=1)
    system = points @ points.mT
    exact = ridge_solve(system, right, ridge=1e-2)
    torch.testing.assert_close(quick_ridge_solve(system.clone(), right, ridge=1e-2), exact)
    assert quick_ridge_solve(-system, right, ridge=1e-2) is None
    assert quick_ridge_solve(system * torch.nan, right, ridge=1e-2) is None
