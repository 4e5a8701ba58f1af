"""An engine of the user's own: an object whose `build` makes the update."""

from dataclasses import dataclass

import pytest
import torch

from kbr import ImportanceWeightedRule, KbrError, KernelBayesFilter, OriginalRule
from kbr.core.datasets.dynamics import Rotation
from kbr.core.features import Features
from kbr.core.filters.kernel.engines import large


@dataclass(frozen=True, eq=False)
class GramUpdate:
    """Weights from Gram matrices of all points, whatever their ratio."""

    features: Features
    name = "whole_gram"

    def observe(self, x):
        return self.features(x) @ self.features.train.mT

    def weights(self, rule, ratio, query, lam):
        psi = self.features.train
        gram, n = (psi @ psi.mT).unsqueeze(-3), psi.shape[-2]
        return rule.gram_weights(gram, query.unsqueeze(-1), ratio, n, lam).squeeze(-1)


class WholeGram:
    """What a yaml names: `engine: {_target_: mine.WholeGram}`."""

    def __init__(self):
        self.built = []

    def build(self, features, x, *, lam):
        self.built.append((x.shape[-2], lam))
        return GramUpdate(features.fit(x))


@pytest.fixture(scope="module")
def data():
    return Rotation().generate(n_train=90, n_test=15, seed=0)


@pytest.mark.parametrize("rule", [ImportanceWeightedRule(lam=1e-2), OriginalRule(lam=1e-5)])
def test_it_filters_like_the_low_rank_engine(data, rule):
    settings = {"rule": rule, "eta": 1e-3, "scales": (1.0,)}
    x = data.x_test.clone()
    x[4] = torch.nan
    own = KernelBayesFilter(engine=WholeGram(), **settings).fit(data.x_train, data.z_train)
    kbrs = KernelBayesFilter(engine="low_rank", **settings).fit(data.x_train, data.z_train)
    assert "engine=whole_gram" in repr(own)
    for run in ("filter", "smooth"):
        answer, expected = getattr(own, run)(x), getattr(kbrs, run)(x)
        torch.testing.assert_close(answer.mean, expected.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(own.filter(x).cov, kbrs.filter(x).cov, rtol=1e-3, atol=1e-5)
    step = own.step(own.init(), data.x_test[0])
    torch.testing.assert_close(step.mean, own.filter(data.x_test[:1]).mean[0])


def test_tuning_and_calibration_build_it_for_the_steps_that_are_left(data):
    engine = WholeGram()
    settings = {"eta": 1e-3, "scales": (1.0,), "lams": (1e-3, 1e-2), "correction": None}
    filt = KernelBayesFilter(engine=engine, **settings).fit(data.x_train, data.z_train)
    # Tuning on three blocks, their errors, the filter, two held-out blocks.
    assert [n for n, _ in engine.built] == [60, 60, 60, 60, 90, 60, 60]
    assert engine.built[0][1] == 1e-3  # the least of those tried
    again = KernelBayesFilter(engine=engine, **settings)
    again.restore(filt.state())
    assert torch.equal(again.filter(data.x_test).mean, filt.filter(data.x_test).mean)
    with pytest.raises(KbrError, match="WholeGram cannot be saved"):
        filt.save("never.ckpt")
    assert filt.compress(30).filter(data.x_test).mean.shape == data.z_test.shape


def test_what_is_no_engine_is_refused(data, monkeypatch):
    with pytest.raises(KbrError, match=r"local, or an object with the method build.*'fast'"):
        KernelBayesFilter(engine="fast")
    monkeypatch.setattr(large, "LARGE", 50)
    filt = KernelBayesFilter(engine=WholeGram(), eta=1e-3, scales=(1.0,), lams=(1e-2,))
    with pytest.raises(KbrError, match="the WholeGram engine is for at most 50 points"):
        filt.fit(data.x_train, data.z_train)
